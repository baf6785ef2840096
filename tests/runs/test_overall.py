from contextlib import contextmanager

from orbitset.runs import overall
from orbitset.runs.overall import Overall


class Heard:
    def __init__(self):
        self.notes, self.calls = [], []

    def start(self, label, total, done):
        self.calls.append(("start", label, total, done))

    def update(self, done, images, terms):
        self.calls.append(("update", done, images, terms))

    @contextmanager
    def pause(self, message):
        self.calls.append(("pause", message))
        yield

    def note(self, message):
        self.notes.append(message)

    def stop(self):
        self.calls.append(("stop",))


def test_time_left_is_what_the_done_part_took_for_each_unit(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(overall.time, "monotonic", lambda: clock[0])
    heard = Heard()
    progress = Overall(heard, [1.0, 2.0, 3.0, 4.0], done={0})
    clock[0] += 20
    progress.end(1, "OJ")
    clock[0] += 30
    progress.end(2, "OE")
    progress.end(3, "OT")
    assert heard.notes == [
        "2/4 complete: OJ, about 1:10 left for all",
        "3/4 complete: OE, about 0:40 left for all",
        "4/4 complete: OT",
    ]


def test_everything_else_is_passed_on():
    heard = Heard()
    progress = Overall(heard, [1.0])
    progress.begin(0, "OJ")
    progress.start("training", 10, 3)
    progress.update(4, 64, {"loss": 1.0})
    with progress.pause("evaluating"):
        progress.note("hello")
    progress.stop()
    assert [call[0] for call in heard.calls] == ["start", "update", "pause", "stop"]
    assert heard.calls[0] == ("start", "1/1 OJ", 10, 3)
    assert heard.notes[-1] == "hello"


def test_a_note_that_differs_only_in_its_numbers_is_said_once():
    heard = Heard()
    overall = Overall(heard, [1.0, 1.0])
    for seed in (0, 1):
        overall.note(f"OJ, seed {seed}: note: rectify is {seed + 2}e+04 times discriminate")
    overall.note("OE, seed 0: note: rectify is 3e+04 times discriminate")
    overall.note("OJ trial 1 counts as 0")
    overall.note("OJ trial 2 counts as 0")
    assert len(heard.notes) == 4
