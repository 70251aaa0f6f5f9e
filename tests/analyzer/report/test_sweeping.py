"""Estimates of one model at several sizes are a curve; others are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from dlbricks.analyzer.estimation.estimates import Estimates
from dlbricks.analyzer.report.drawing import plots, sweep_plots
from dlbricks.analyzer.report.sweeping import sweep, sweep_lines, sweeps, sweeps_of
from dlbricks.constructor import Estimate
from dlbricks.constructor.curve import Curve, Interpolation, Point
from dlbricks.constructor.sweep import swept
from dlbricks.errors import UsageError
from flat import changed, flat_estimate


def estimate(stem: str, ms: float | None, batch: int | None = None, **dims: int) -> Estimate:
    ends = "".join(f"@{name}={size}" for name, size in dims.items()) + (f"@b{batch}" if batch else "")
    return flat_estimate(f"{stem}{ends}", 1, estimate_ms=ms, ci95_ms=None, dims=dims, batch=batch)


def test_a_dimension_or_a_batch_that_varies_is_a_sweep() -> None:
    found = sweeps_of([
        *(estimate("a", 1.0 * n, seq=n, width=3) for n in (8, 16, 32)),
        *(estimate("b", 10.0 + n, batch=n) for n in (1, 4)),
        estimate("c", 1.0, seq=8),
    ])  # fmt: skip

    assert list(found) == ["a-seq", "b-batch"]
    lengths, batches = found.values()
    assert [(point.length, point.ms) for point in lengths.measured] == [(8, 8.0), (16, 16.0), (32, 32.0)]
    assert [lengths.items(8), batches.items(4)] == [1, 4]
    rates = [(point.length, batches.height(point, rate=True)) for point in batches.measured]
    assert rates == [(1, 1000 / 11), (4, 4000 / 14)]
    assert lengths.between == lengths.measured


def test_what_is_interpolated_is_a_ring_and_says_so() -> None:
    read = Interpolation("batch", (1, 4), (1, 4, 8), bricks=3, share=0.75, error=0.1, left_out=())
    known = [estimate("a", 10.0 * n, batch=n) for n in (1, 2, 4)]
    known[1] = changed(known[1], interpolated=read, ci95_ms=(18.0, 22.0))

    (drawn,) = sweeps_of(known).values()
    (row,) = (one.record() for one in swept(known))

    assert [one.length for one in drawn.measured] == [1, 4]
    assert [one.length for one in drawn.read] == [2]
    assert row["points"][1]["share"] == 0.75
    assert row["best_batch"] is None  # of what is measured, no batch is twice another
    assert any("75% interpolated" in line for line in sweep_lines(known))
    latency, _ = sweeps([drawn], title="model").axes
    assert [line.get_label() for line in latency.lines][1:] == ["from measured bricks", "interpolated"]
    assert list(latency.lines[2].get_ydata()) == [20.0]


def test_a_table_and_a_plot_show_no_bound_above_the_estimate_beside_it() -> None:
    bounds = {1: 9.0, 2: 21.0, 4: None}
    known = [changed(estimate("a", 10.0 * n, batch=n), lower_bound_sequential_ms=bounds[n]) for n in bounds]

    (row,) = Estimates(tuple(known)).to_json()["sweeps"]
    (drawn,) = sweeps_of(known).values()

    assert [point["lower_bound_ms"] for point in row["points"]] == [9.0, None, None]
    assert [(one.length, one.ms) for one in drawn.bounds] == [(1, 9.0)]
    assert [point["per_s"] for point in row["points"]] == [100.0, 100.0, 100.0]
    assert row["best_batch"] == 1  # twice as many gain nothing


def test_estimates_of_one_sweep_are_drawn_as_one(tmp_path: Path) -> None:
    known = [estimate("a", 1.0 * n, seq=n) for n in (8, 16)]

    drawn = plots(Estimates(tuple(known)))

    assert drawn.write(tmp_path / "one.png") == [tmp_path / "one.png"]
    assert drawn.main == "sweep-a-seq"
    assert "sweep-a-seq.png" in {path.name for path in drawn.write(tmp_path / "all")}
    assert len(drawn.figure("sweep-a-seq").axes) == len(drawn.figure().axes) == 2
    with pytest.raises(UsageError, match="there is no plot 'other'; plots: estimates"):
        drawn.figure("other")


def test_a_plot_shows_latency_and_throughput_with_their_intervals(tmp_path: Path) -> None:
    curve = Curve.through(Point(n, 10.0 * n, (9.0 * n, 11.0 * n)) for n in (8, 16, 32))
    made = sweep(curve, title="first token", label="tokens", unit="tokens", items=lambda length: length)

    figure = sweeps([made], title="model")

    latency, rate = figure.axes
    assert [line.get_label() for line in latency.lines] == ["interpolated", "from measured bricks"]
    assert list(latency.lines[1].get_ydata()) == [80.0, 160.0, 320.0]
    assert list(rate.lines[1].get_ydata()) == pytest.approx([100.0] * 3)
    assert latency.collections  # the band
    nothing = sweep(Curve(()), title="", label="", unit="", items=lambda _: 1)
    assert not sweep_plots([nothing], name="a", title="").names
    with pytest.raises(UsageError):
        sweep_plots([made], name="a", title="").write(tmp_path / "a.txt")
