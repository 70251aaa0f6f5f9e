"""Models against a dimension: what the charts of the page show, and that all of it lies within them."""

from __future__ import annotations

from dataclasses import replace

from dlbricks.analyzer.report.page.page import render_page
from dlbricks.analyzer.report.page.sweeps import shown_sweeps
from dlbricks.constructor.curve import Interpolation
from flat import changed, flat_estimate
from hypothesis import given, settings
from hypothesis import strategies as st

from ..conftest import Reported
from .test_page import Page

READ = Interpolation("batch", (1, 4), (1, 4, 8), bricks=3, share=0.75, error=0.1, left_out=())
LATENCIES = st.floats(1e-4, 1e5)


@settings(deadline=None)  # the first example imports
@given(st.dictionaries(st.integers(1, 65536), st.tuples(LATENCIES, st.floats(0, 100)), min_size=2, max_size=9))
def test_every_chart_holds_all_of_its_points(latencies: dict[int, tuple[float, float]]) -> None:
    entries = [
        flat_estimate(f"m@b{size}", 1, batch=size, estimate_ms=ms, ci95_ms=(max(0.0, ms - half * ms), ms + half * ms))
        for size, (ms, half) in latencies.items()
    ]

    (shown,) = shown_sweeps(entries)

    for chart in shown["charts"]:
        corners = " ".join((chart["line"], chart["band"])).split()
        assert all(
            58 <= float(x) <= 438.01 and 12 <= float(y) <= 202.01 for x, y in (one.split(",") for one in corners)
        )
        assert len(chart["dots"]) == len(latencies)
        assert [one["x"] for one in chart["dots"]] == sorted(one["x"] for one in chart["dots"])
        assert 2 <= len(chart["rows"]) <= 6
        assert chart["columns"][-1][1] == str(max(latencies))
    latency, rate = shown["charts"]
    assert shown["unit"] == "inputs/s"
    assert max(one["y"] for one in latency["dots"]) <= 202.01
    assert len(rate["dots"]) == len(shown["points"])


def test_the_page_has_a_sweep_with_its_table_and_charts(reported: Reported) -> None:
    (section,) = [one for one in reported.sections if one.name == "branches"]
    entries = [
        changed(
            section.estimate,
            **{"model.source": replace(section.estimate.model.source, name=f"branches@b{size}", batch=size)},
            estimate_ms=ms,
            lower_bound_sequential_ms=low,
        )
        for size, ms, low in ((1, 10.0, 9.0), (2, 12.0, None), (4, 20.0, 21.0))
    ]
    entries[1] = changed(entries[1], interpolated=READ)

    page = render_page([replace(section, estimate=one) for one in entries])

    found = Page(page)
    assert "branches against batch" in found.text
    assert "75% interpolated" in found.text
    assert "3 of " in found.text
    assert "are not measured but interpolated between batch = 1 and 4" in found.text
    dots = [attrs for tag, attrs in found.elements if tag == "circle"]
    assert [one["class"] for one in dots] == ["point", "ring", "point"] * 2
    assert found.text.count("Fastest bricks, ms") == 1
    assert "Best batch" not in found.text  # of measured batches none is twice another
    assert "against" not in Page(reported.page()).text.partition("Bricks that matter most")[0]
