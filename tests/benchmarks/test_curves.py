"""What the benchmark of curves leaves out, and how it judges what was read there."""

from __future__ import annotations

import argparse
from dataclasses import replace

import pytest
from curves import Sweep, forget, point, report, summary, sweep_of
from dlbricks.constructor import Estimate
from dlbricks.constructor.curve import LeftOut
from dlbricks.constructor.result import Interpolation
from dlbricks.db import Store
from lab import Lab


def test_every_second_size_but_the_last_is_left_out() -> None:
    made = sweep_of("folder:x/squeezenet:batch=16,1,2,4,8")

    assert made == Sweep("folder:x/squeezenet", "batch", (1, 2, 4, 8, 16))
    assert made.left_out == (2, 8)
    assert Sweep("m", "batch", (1, 2, 4, 8)).left_out == (2,)  # beyond 4 nothing would be above 8
    assert [one.batch for one in sweep_of("squeezenet:batch=1,2,4").sources()] == [1, 2, 4]
    assert [one.dims for one in sweep_of("bert_base:sequence_length=8,16,32").sources()][1] == (
        ("sequence_length", 16),
    )
    for wrong in ("squeezenet", "squeezenet:batch=1,two,3", "squeezenet:batch=1,2"):
        with pytest.raises(argparse.ArgumentTypeError):
            sweep_of(wrong)


def test_what_is_left_out_is_not_measured_any_more(lab: Lab) -> None:
    lab.put_in_turn({"a": 1.0, "b": 2.0}, [[1.0, 1.0]] * 4)

    forget(lab.folder / "lab.db", ["a"])

    with Store.open(lab.folder / "lab.db") as store:
        (left,) = store.measurements()
        assert left.key == "b"
        assert store.blocks_of([left.id])[left.id]


def test_a_size_is_judged_by_what_all_bricks_say_there_and_by_the_model() -> None:
    read = Interpolation("batch", (1, 4), (1, 4, 16), 3, 0.5, 0.1, (LeftOut(4, 9.0, 9.5),))
    known = Estimate("m@b2", 1, batch=2, estimate_ms=10.0, undisturbed_ms=9.0, measured_ms=11.0, ratio=10 / 11)
    found = replace(known, estimate_ms=10.4, ci95_ms=(9.8, 11.0), undisturbed_ms=9.9, interpolated=read)
    sweep = sweep_of("m:batch=1,2,4,8,16")

    near, far = (point(sweep, 2, known, replace(found, estimate_ms=ms)) for ms in (10.4, 11.0))
    refused = point(sweep, 8, known, replace(known, estimate_ms=None, interpolation_reason="it is not"))
    total = summary([point(sweep, 1, known, known), near, far, refused])

    assert near["error"] == pytest.approx(0.04)
    assert (near["inside"], far["inside"]) == (True, False)  # half of 10 %, of 10.4 and 11.0 ms
    assert near["undisturbed_error"] == pytest.approx(0.1)
    assert near["measured_error"] == pytest.approx(10.4 / 11 - 1)
    assert near["inside_measured"]
    assert (total["left_out"], total["read"], total["inside"]) == (3, 2, 0.5)
    assert total["against_estimate"]["median"] == pytest.approx(0.07)
    result = {
        "date": "2026-11-23", "system": {"cpu": "X"}, "stack": {"backend": "b", "versions": {}}, "graph": "runtime",
        "threads": 1, "visits": 1, "wall_s": 60.0, "summary": total,
        "sweeps": [{"model": "m", "dimension": "batch", "bricks": {"unique": 9, "hidden": 3},
                    "quiet": {"quiet_share": None}, "points": [near, refused]}],
    }  # fmt: skip
    text = report(result)
    assert "2 of 3 sizes that were left out could be read" in text
    assert "missed" in text
    assert "- 8: it is not" in text
