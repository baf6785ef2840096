from orbitset.report.tables import ordered, text_table


def _row(method, metric="accuracy", **more):
    base = {"mean": 0.5, "sd": 0.1, "n": 100, "repeated": "draws", "seeds": 1, "paper": None}
    return {"method": method, "metric": metric, **base, **more}


def test_baselines_come_first_within_each_metric():
    rows = [_row("OJ"), _row("OJ", "auc"), _row("untrained"), _row("pixels")]
    assert [r["method"] for r in ordered(rows)] == ["pixels", "untrained", "OJ", "OJ"]


def test_text_table_says_what_was_repeated_and_fits_a_narrow_terminal():
    table = text_table([_row("pixels"), _row("OJ", paper=0.66, seeds=3)])
    assert "100 draws, 3 seeds" in table
    assert "paper 0.66" in table
    assert max(map(len, table.splitlines())) <= 60
