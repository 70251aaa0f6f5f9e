"""Plots show every value they are given, for one model and for many, and leave nothing global behind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from dlbricks.analyzer.comparison.compare import ModelComparison
from dlbricks.analyzer.comparison.difference import Difference, Relation
from dlbricks.analyzer.comparison.results import SidePair
from dlbricks.analyzer.estimation.estimates import Estimates
from dlbricks.analyzer.report.drawing import plots
from dlbricks.analyzer.report.plots.comparisons import forest
from dlbricks.analyzer.report.plots.estimate_plots import estimate_beside_measured, latency_by_layer
from dlbricks.analyzer.report.plots.figure import GREEN, RED, save
from dlbricks.constructor.result import Estimate, SequenceLatency
from dlbricks.errors import UsageError
from flat import flat_estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONG = "a/folder/inside/a/folder/with_a_model_whose_name_does_not_end_before_it_is_far_too_long_v"


def steps(count: int) -> list[SequenceLatency]:
    return [
        SequenceLatency(
            i, "key", (2 * i, 2 * i + 1), ("a", "b"), ("Conv", "Relu"),
            None if i % 7 == 3 else 0.1 + (i * 37 % 11) / 5, on_path=i % 3 != 0,
        )
        for i in range(count)
    ]  # fmt: skip


def latencies(count: int) -> list[Estimate]:
    return [
        flat_estimate(
            f"{LONG}{i}", sequential_ms=1.1 * 2**i, critical_path_ms=0.8 * 2**i, estimate_ms=1.05 * 2**i,
            measured_ms=2.0**i if i % 4 else None, ci95_ms=(2.0**i, 1.2 * 2**i),
        )
        for i in range(count)
    ]  # fmt: skip


FIGURES: dict[str, Any] = {
    "layers": lambda: latency_by_layer(steps(450), title=LONG),
    "zoo": lambda: estimate_beside_measured(latencies(40), title=LONG),
    "nothing": lambda: latency_by_layer([], title=LONG),
    "no model": lambda: estimate_beside_measured([], title=LONG),
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
    assert len(critical.get_paths()) == sum(step.on_path for step in drawn)
    slowest = max(step.latency_ms for step in drawn if step.latency_ms is not None)
    assert bars.texts[0].get_text() == f"Conv+Relu\n{slowest:g} ms"


def test_each_model_has_its_estimates_beside_its_measured_latency() -> None:
    """A prediction that is not the sum is drawn beside it."""
    models = [
        flat_estimate("a", sequential_ms=10.0, critical_path_ms=8.0, measured_ms=9.0, ci95_ms=(9, 10), estimate_ms=9.5),
        flat_estimate("b", measured_ms=5.0),
        flat_estimate("c", sequential_ms=3.0, critical_path_ms=2.0, estimate_ms=3.0),
    ]

    left, right = estimate_beside_measured(models, title="t").axes

    points = {
        line.get_label(): sorted(line.get_xdata()) for line in left.lines if not str(line.get_label()).startswith("_")
    }
    assert points == {
        "measured": [5.0, 9.0], "sequential": [3.0, 10.0], "critical path": [2.0, 8.0], "estimate": [3.0, 9.5],
    }  # fmt: skip
    assert {"1.06", "not measured", "not complete"} <= {text.get_text() for text in right.texts}


def test_disturbed_models_and_those_that_are_not_paired_are_marked_and_explained() -> None:
    quiet, disturbed = (0.9, 1.1), (0.8, 1.3)
    known = {"sequential_ms": 4.0, "critical_path_ms": 3.0, "measured_ms": 2.0, "estimate_ms": 2.1, "paired": True}
    models = [
        flat_estimate("a", **known, ratio_ci95=quiet, disturbance=0.05),
        flat_estimate("b", **known, ratio_ci95=disturbed, undisturbed_ms=1.5, disturbance=0.42),
        flat_estimate("c", **(known | {"paired": False}), ratio_ci95=quiet),
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


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_same_figure_gives_the_same_file(tmp_path: Path, suffix: str) -> None:
    first = save(latency_by_layer(steps(5), title="t"), tmp_path / f"a{suffix}").read_bytes()

    second = save(latency_by_layer(steps(5), title="t"), tmp_path / f"b{suffix}").read_bytes()

    assert first == second
    assert len(first) > 2000


def rival(label: str, seen: Difference | None, gain_ms: float | None, **more: Any) -> Any:
    return label, ModelComparison(label, SidePair(difference=seen, **more)), gain_ms


def _forest(*rivals: Any, hatched: bool = False) -> Figure:
    return forest(rivals, minimum_effect=0.03, base="base", title="Models", gain="gain", hatched=hatched)


def _legend(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_ratios_that_are_refused_or_unpaired_and_gains_that_may_be_chance_look_like_it() -> None:
    sure = rival("sure", Difference(0.8, (0.7, 0.9), 0.0), 2.0, verdict=Relation.FASTER)
    apart = rival("apart", Difference(1.5, (1.4, 1.6), 0.0), 1.0, verdict=Relation.SLOWER, apart=True)
    unclear = rival("a", Difference(0.9, (0.5, 2.0), 0.5), 1.0, verdict=Relation.UNCLEAR)
    figure, doubtful = _forest(sure, apart, rival("none", None, None)), _forest(sure, unclear, hatched=True)

    ratios, gains = figure.axes
    faces = {line.get_color(): line.get_markerfacecolor() for line in ratios.lines if line.get_marker() == "o"}
    assert faces == {GREEN: GREEN, RED: "white"}
    assert [patch.get_hatch() for patch in ratios.patches if patch.get_hatch()] == ["/////"]
    assert _legend(figure) == ["FASTER", "SLOWER", "hollow: measured apart", "no ratio"]
    assert not [patch for patch in gains.patches if patch.get_hatch()]
    assert [patch.get_hatch() for patch in doubtful.axes[1].patches] == [None, "/////"]
    assert _legend(doubtful)[-1] == "may be chance"
    assert _legend(_forest(sure)) == ["FASTER"]


def test_a_result_has_its_plots_by_name_as_figures_and_as_files(tmp_path: Path) -> None:
    drawn = plots(Estimates(tuple(latencies(2))))
    one = plots(Estimates((flat_estimate("a/b", sequences=tuple(steps(3))),)))

    assert one.names == ("estimates", "layers-a-b")
    assert len(drawn.figure().axes) == len(drawn.figure("estimates").axes) == 2
    assert one.main == "layers-a-b"
    assert drawn.write(tmp_path / "one.png") == [tmp_path / "one.png"]
    assert {path.name for path in one.write(tmp_path / "all")} == {"estimates.png", "layers-a-b.png"}
    with pytest.raises(UsageError, match="there is no plot 'other'; plots: estimates"):
        drawn.figure("other")
    with pytest.raises(UsageError, match="not an image file"):
        drawn.write(tmp_path / "a.txt")
    with pytest.raises(UsageError, match="nothing to draw"):
        plots(Estimates(())).write(tmp_path / "a.png")
    with pytest.raises(UsageError, match="str has no plots"):
        plots("a name")
