"""Plots show every value they are given, for one model and for many, and leave nothing global behind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from dlbricks.analyzer.report.plots import (
    Fall,
    GranularityPoint,
    Mark,
    ModelLatency,
    ModelShare,
    Past,
    Rival,
    Roof,
    RooflineDot,
    Step,
    accuracy_against_granularity,
    estimate_beside_measured,
    forest,
    latency_by_layer,
    over_time,
    roofline_chart,
    save,
    similarity_grid,
    unique_share,
    waterfall,
)
from dlbricks.analyzer.report.plots.figure import GREEN, RED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONG = "a/folder/inside/a/folder/with_a_model_whose_name_does_not_end_before_it_is_far_too_long_v"


def steps(count: int) -> list[Step]:
    return [
        Step("Conv+Relu", 2 * i, 2, None if i % 7 == 3 else 0.1 + (i * 37 % 11) / 5, critical=i % 3 != 0)
        for i in range(count)
    ]


def latencies(count: int) -> list[ModelLatency]:
    return [
        ModelLatency(f"{LONG}{i}", 1.1 * 2**i, 0.8 * 2**i, 2.0**i if i % 4 else None, (2.0**i, 1.2 * 2**i))
        for i in range(count)
    ]


def granularities(count: int) -> list[GranularityPoint]:
    return [GranularityPoint(g, (0.9, 1.0 + g / 50), None if g == 2 else 4 / g) for g in range(1, count + 1)]


FALLS = [
    Fall("bricks", 12.0, 0.3, total=True),
    Fall("fusion", -4.0, 0.2),
    Fall("cache", 2.0),
    Fall("layout", 0.0),
    Fall("estimate", 10.0, 0.5, total=True),
    Fall("measured", 9.0, total=True),
]
ROOF = Roof(179.0, {"L1d": 130.0, "L2": 101.0, "L3": 29.6, "memory": 23.2})
DOTS = [RooflineDot(f"{LONG}{i % 9}", 10.0**i if i % 3 else 0.0, 1e4 * 3**i, 0.001 * 2**i, 1 / 20) for i in range(20)]

FIGURES: dict[str, Any] = {
    "layers": lambda: latency_by_layer(steps(450), title=LONG),
    "zoo": lambda: estimate_beside_measured(latencies(40), title=LONG),
    "unique": lambda: unique_share([ModelShare(f"{LONG}{i}", 100 * i, 9 * i) for i in range(40)], title="t"),
    "similarity": lambda: similarity_grid([LONG] * 40, [[1 / (1 + abs(i - j)) for j in range(40)] for i in range(40)],
                                          title="t"),
    "roofline": lambda: roofline_chart(DOTS, ROOF, title=LONG),
    "roofline-flat": lambda: roofline_chart([RooflineDot("Relu", 0.0, 8.0, 1.0, 1.0)], Roof(1.0, {}), title="t"),
    "waterfall": lambda: waterfall(FALLS, title=LONG),
    "waterfall-negative": lambda: waterfall([Fall("bricks", 1e-4, 3e-4, total=True), Fall("x", -4e4, 1.0)], title="t"),
    "granularity": lambda: accuracy_against_granularity(granularities(10), title="t"),
    "nothing": lambda: latency_by_layer([], title=LONG),
    "no model": lambda: estimate_beside_measured([], title=LONG),
    "no cause": lambda: waterfall([], title="t"),
}  # fmt: skip


@pytest.mark.sweep(4)
@pytest.mark.parametrize("kind", FIGURES)
def test_no_text_is_cut_off(kind: str) -> None:
    """Every title, label and annotation lies inside the figure: what sticks out would be cut off in the file."""
    figure: Figure = FIGURES[kind]()
    figure.canvas.draw()
    canvas = figure.bbox.padded(2)

    boxes = [axes.get_tightbbox() for axes in figure.axes] + [title.get_window_extent() for title in figure.texts]

    assert not [
        box
        for box in boxes
        if box is not None
        and not (canvas.x0 <= box.x0 and box.x1 <= canvas.x1 and canvas.y0 <= box.y0 and box.y1 <= canvas.y1)
    ]


def test_every_step_is_a_bar_and_the_critical_ones_are_marked() -> None:
    drawn = steps(40)

    figure = latency_by_layer(drawn, title="t")

    bars, strip = figure.axes
    heights = sorted(patch.get_height() for patch in bars.patches)
    assert heights == sorted(step.latency_ms for step in drawn if step.latency_ms is not None)
    crosses = [line for line in bars.lines if line.get_marker() == "x"]
    assert [len(line.get_xdata()) for line in crosses] == [sum(step.latency_ms is None for step in drawn)]
    everything, critical = strip.collections
    assert len(everything.get_paths()) == len(drawn)
    assert len(critical.get_paths()) == sum(step.critical for step in drawn)
    slowest = max(step.latency_ms for step in drawn if step.latency_ms is not None)
    assert bars.texts[0].get_text() == f"Conv+Relu\n{slowest:g} ms"


def test_each_model_has_its_estimates_beside_its_measured_latency() -> None:
    """A prediction that is not the sum is drawn beside it."""
    models = [
        ModelLatency("a", 10.0, 8.0, 9.0, (9.0, 10.0), 9.5),
        ModelLatency("b", None, None, 5.0),
        ModelLatency("c", 3.0, 2.0, None),
    ]

    left, right = estimate_beside_measured(models, title="t").axes

    points = {
        line.get_label(): sorted(line.get_xdata()) for line in left.lines if not str(line.get_label()).startswith("_")
    }
    assert points == {
        "measured": [5.0, 9.0], "sequential": [3.0, 10.0], "critical path": [2.0, 8.0], "estimate": [9.5],
    }  # fmt: skip
    assert {"1.06", "not measured"} <= {text.get_text() for text in right.texts}


def test_disturbed_models_and_those_that_are_not_paired_are_marked_and_explained() -> None:
    quiet, disturbed = (0.9, 1.1), (0.8, 1.3)
    models = [
        ModelLatency("a", 10.0, 8.0, 9.0, None, 9.5, quiet),
        ModelLatency("b", 4.0, 3.0, 2.0, None, 2.1, disturbed, undisturbed_ms=1.5, disturbance=0.42),
        ModelLatency("c", 4.0, 3.0, 2.0, None, 2.1, quiet, paired=False),
    ]

    left, right = estimate_beside_measured(models, title="t").axes

    squares = [line for line in right.lines if line.get_marker() == "s" and len(line.get_xdata()) == 1]
    assert [line.get_color() for line in squares] == [GREEN, RED, GREEN]
    assert [line.get_markerfacecolor() for line in squares] == [GREEN, RED, "white"]
    assert [text.get_text() for text in right.get_legend().get_texts()] == [
        "quiet", "disturbed, by how much", "not paired",
    ]  # fmt: skip
    assert "1.05  +42%" in {text.get_text() for text in right.texts}
    spans = [[tuple(end[0] for end in segment) for segment in lines.get_segments()] for lines in right.collections]
    assert [span for (span,) in spans] == [quiet, disturbed, quiet]
    points = {str(line.get_label()): list(line.get_xdata()) for line in left.lines}
    assert points["undisturbed"] == [1.5]


def test_a_cause_begins_where_the_one_before_ended() -> None:
    axes = waterfall(FALLS, title="t").axes[0]

    bars = sorted((bar.get_y(), bar.get_x(), bar.get_width()) for bar in axes.patches)
    assert [(x, width) for _, x, width in bars] == [
        (0.0, 12.0), (12.0, -4.0), (8.0, 2.0), (10.0, 0.0), (0.0, 10.0), (0.0, 9.0),
    ]  # fmt: skip
    assert [text.get_text() for text in axes.texts] == ["12 ms", "\N{MINUS SIGN}4 ms", "+2 ms", "0 ms", "10 ms", "9 ms"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "total", "takes off", "adds", "95 % interval",
    ]  # fmt: skip


def test_every_brick_is_a_dot_under_ceilings_that_are_named() -> None:
    drawn = [
        RooflineDot("Conv", 4e6, 1e6, 1.0, 0.5),
        RooflineDot("Gemm", 2e6, 1e6, 1.0, 0.25),
        RooflineDot("Relu", 0.0, 3e6, 1.0, 0.25),
    ]

    moving, computing = roofline_chart(drawn, ROOF, title="t").axes

    (points,), (others,) = computing.collections, moving.collections
    assert sorted(map(tuple, points.get_offsets().data)) == [(2.0, 2.0), (4.0, 4.0)]
    assert [y for _, y in others.get_offsets().data] == [3.0]
    assert points.get_sizes()[0] > points.get_sizes()[1]  # in the order of their shares
    written = {text.get_text() for text in computing.texts}
    assert written == {"179 GFLOP/s", "L1d 130 GB/s", "L2 101 GB/s", "L3 29.6 GB/s", "memory 23.2 GB/s"}
    assert computing.get_xscale() == computing.get_yscale() == "log"


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_same_figure_gives_the_same_file(tmp_path: Path, suffix: str) -> None:
    first = save(latency_by_layer(steps(5), title="t"), tmp_path / f"a{suffix}").read_bytes()

    second = save(latency_by_layer(steps(5), title="t"), tmp_path / f"b{suffix}").read_bytes()

    assert first == second
    assert len(first) > 2000


def _forest(*rivals: Rival) -> Figure:
    return forest(rivals, minimum_effect=0.03, base="base", title="Models", gain="gain")


def _legend(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_ratios_that_are_refused_or_unpaired_and_gains_that_may_be_chance_look_like_it() -> None:
    sure = Rival("sure", 0.8, (0.7, 0.9), "FASTER", 2.0)
    figure = _forest(sure, Rival("apart", 1.5, (1.4, 1.6), "SLOWER", 1.0, apart=True), Rival("none", None, None, None))
    doubtful = _forest(sure, Rival("a", 0.9, (0.5, 2), "UNCLEAR", 1.0, doubtful=True))

    ratios, gains = figure.axes
    faces = {line.get_color(): line.get_markerfacecolor() for line in ratios.lines if line.get_marker() == "o"}
    assert faces == {GREEN: GREEN, RED: "white"}
    assert [patch.get_hatch() for patch in ratios.patches if patch.get_hatch()] == ["/////"]
    assert _legend(figure) == ["FASTER", "SLOWER", "hollow: measured apart", "no ratio"]
    assert not [patch for patch in gains.patches if patch.get_hatch()]
    assert [patch.get_hatch() for patch in doubtful.axes[1].patches] == [None, "/////"]
    assert _legend(doubtful)[-1] == "may be chance"
    assert _legend(_forest(sure)) == ["FASTER"]


def test_runs_over_time_show_levels_versions_and_the_machine() -> None:
    past = Past(
        started=[f"09-{day:02} 02:00" for day in range(1, 31)],
        latencies_ms=[1.0] * 20 + [1.1] * 10,
        levels=[(0, 20, 1.0), (20, 30, 1.1)],
        marks=[Mark(20, "SLOWER", "SLOWER x 1.100 (versions)"), Mark(29, "FASTER", "once more", hollow=True)],
        versions=[(20, "onnxruntime 1.31.0")],
        machine=[("probe of arithmetic", [50.0] * 29 + [None])],
    )

    figure = over_time(past, title="squeezenet", ylabel="ms")

    above, below = figure.axes
    texts = [text.get_text().strip() for text in above.texts]
    assert texts == ["SLOWER x 1.100 (versions)", "once more", "onnxruntime 1.31.0"]
    assert above.lines[0].get_ydata().tolist() == past.latencies_ms
    assert len(below.lines[1].get_ydata()) == 29, "the run that did not probe is no zero"
    assert len(over_time(Past(["now"], [1.0]), title="", ylabel="ms").axes) == 1


def test_the_mean_over_a_zoo_is_geometric() -> None:
    accuracy, speedup = accuracy_against_granularity([GranularityPoint(1, (0.5, 2.0), 4.0)], title="t").axes

    mean = next(line for line in accuracy.lines if line.get_label() == "geometric mean")
    assert list(mean.get_ydata()) == pytest.approx([1.0])
    assert [text.get_text() for text in speedup.texts] == ["4.0"]


def test_a_cause_that_is_not_known_says_so_and_has_no_bar() -> None:
    axes = waterfall([Fall("bricks", 2.0, total=True), Fall("fusion", None)], title="t").axes[0]

    assert len(axes.patches) == 1
    assert [text.get_text() for text in axes.texts] == ["2 ms"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["bricks"]
    assert axes.get_xlabel() == "latency (ms); not known: fusion"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["total"]
