from orbitset.training.progress import Lines, Silent, default_progress, format_seconds


def test_lines_show_terms_speed_and_time_left(capsys):
    lines = Lines()
    lines.start("OJ demo", total=2, done=0)
    lines.update(2, 512, {"loss": 0.1234})
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "OJ demo  2/2  loss 0.123" in shown.err
    assert "images/s" in shown.err
    assert "left" in shown.err


def test_progress_is_lines_without_a_terminal_and_nothing_when_quiet():
    assert isinstance(default_progress(), Lines)
    assert isinstance(default_progress(quiet=True), Silent)


def test_seconds_are_shown_as_a_clock():
    assert [format_seconds(s) for s in (0, 59.6, 3600)] == ["0:00", "1:00", "1:00:00"]
