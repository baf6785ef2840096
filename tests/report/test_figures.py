from dataclasses import replace

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg

from orbitset.recipes.methods import METHODS
from orbitset.report import figures


def _pixels(figure):
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def test_grid_shows_the_images_it_was_given():
    levels = {"canonical": 255, "transformed": 0, "rectified": 128}
    rows = [(name, np.full((3, 1, 8, 8), level, np.uint8)) for name, level in levels.items()]
    shown = _pixels(figures.image_rows(rows))
    height, width = shown.shape[:2]
    middles = [shown[int(height * f), int(width * 0.7), 0] for f in (1 / 6, 3 / 6, 5 / 6)]
    assert middles[0] == 255 and middles[1] == 0 and abs(int(middles[2]) - 128) <= 1


def test_colour_images_are_shown_in_colour():
    members = np.zeros((1, 2, 3, 8, 8), np.uint8)
    members[:, :, 0] = 255
    shown = _pixels(figures.member_strips(members))
    assert (shown[shown.shape[0] // 2, int(shown.shape[1] * 0.8), :3] == (255, 0, 0)).all()


def test_curves_draw_one_line_per_method_and_the_baseline():
    record = {"epoch": 0.0, "accuracy": {"mean": 0.1, "sd": 0.01}}
    records = [record, {"epoch": 1.0, "accuracy": {"mean": 0.5, "sd": 0.02}}]
    figure = figures.accuracy_curves([("OJ", records), ("AE", records)], 0.1)
    lines = figure.axes[0].get_lines()
    assert [line.get_label() for line in lines] == ["raw pixels", "OJ", "AE"]
    assert lines[1].get_ydata().tolist() == [0.1, 0.5]


def test_margin_is_marked_only_where_the_sweep_reaches_it():
    arrays = {"epsilons": np.array([0.1, 1.0, 10.0])}
    arrays |= {"invariance": np.array([0, 0.5, 1]), "selectivity": np.array([1, 0.9, 0])}
    assert len(figures.invariance_curves(arrays, 1.0, "OJ").axes[0].get_lines()) == 3
    assert len(figures.invariance_curves(arrays, 99.0, "OJ").axes[0].get_lines()) == 2


def test_tsne_map_has_a_colour_per_class():
    points = np.random.default_rng(0).random((30, 2))
    figure = figures.tsne_maps([("OJ", points)], np.arange(30) % 3)
    assert len(figure.axes[0].collections) == 3


def test_a_transformer_has_its_methods_colour_in_dashes():
    records = [{"epoch": 0.0, "accuracy": {"mean": 0.1, "sd": 0.01}}]
    lines = (
        figures.accuracy_curves([("OT", records), ("OT-STN", records)], None).axes[0].get_lines()
    )
    assert lines[0].get_color() == lines[1].get_color()
    assert [line.get_linestyle() for line in lines] == ["-", "--"]


def test_tsne_maps_show_the_same_classes_in_the_same_colours():
    rng = np.random.default_rng(0)
    maps = [(name, rng.random((30, 2))) for name in ("OJ", "OE", "AE", "EX", "ST")]
    figure = figures.tsne_maps(maps, np.arange(30) % 3)
    drawn = [axes for axes in figure.axes if axes.collections]
    assert [axes.get_title(loc="left") for axes in drawn] == ["OJ", "OE", "AE", "EX", "ST"]
    colours = {
        tuple(map(tuple, [c.get_facecolor()[0] for c in axes.collections])) for axes in drawn
    }
    assert len(colours) == 1


def test_a_legend_of_codes_in_the_plane_has_the_names_of_labels():
    points, labels = np.random.default_rng(0).random((30, 2)), np.arange(30) % 3 + 4
    for names, shown in (
        (None, ["4", "5", "6"]),
        (np.array(["ann", "bob", "x" * 40]), ["ann", "bob", "x" * 23 + "…"]),
    ):
        (legend,) = figures.tsne_maps([("OJ", points)], labels, names).legends
        assert [text.get_text() for text in legend.get_texts()] == shown


def test_columns_show_a_kind_each():
    kinds = [
        (name, np.full((2, 1, 8, 8), value, np.uint8)) for name, value in (("a", 0), ("b", 255))
    ]
    shown = _pixels(figures.image_columns(kinds))
    height, width = shown.shape[:2]
    middles = [shown[int(height * 0.75), int(width * f), 0] for f in (0.25, 0.75)]
    assert middles == [0, 255]


def test_the_ratio_curve_has_its_points():
    points = [{"ratio": r, "mean": m, "sd": 0.01} for r, m in ((1.0, 0.4), (100.0, 0.6))]
    axes = figures.ratio_curve(points).axes[0]
    assert axes.get_xscale() == "log"
    assert axes.containers[0].lines[0].get_ydata().tolist() == [0.4, 0.6]


def test_labels_without_colours_of_their_own_are_told_apart():
    records = [{"epoch": 0.0, "accuracy": {"mean": 0.1, "sd": 0.01}}]
    labels = ["OJ, a", "OJ, b", "OJ"]
    lines = (
        figures.accuracy_curves([(label, records) for label in labels], None).axes[0].get_lines()
    )
    assert len({line.get_color() for line in lines}) == 3


def test_a_curve_has_the_colour_that_the_table_of_methods_gives(monkeypatch):
    monkeypatch.setitem(METHODS, "OT", replace(METHODS["OT"], colour="#123456"))
    records = [{"epoch": epoch, "accuracy": {"mean": 0.1, "sd": None}} for epoch in (0.0, 1.0)]
    curves = [(label, records) for label in ("OT", "OT-STN", "my_losses:own")]
    lines = figures.accuracy_curves(curves, None).axes[0].get_lines()
    assert [line.get_color() for line in lines][:2] == ["#123456", "#123456"]
    assert [line.get_linestyle() for line in lines] == ["-", "--", "-"]
