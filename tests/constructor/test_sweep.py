"""Sweeps: which estimates are one model against one of its sizes, and what is no family."""

from __future__ import annotations

from dlbricks.constructor.result import Estimate, SequenceLatency
from dlbricks.constructor.sweep import interpolated, sizes_of, stem_of, swept


def estimate(ms: float | None, *operators: str, batch: int | None = None, **dims: int) -> Estimate:
    parts = tuple(SequenceLatency(place, "", (place,), ("",), (name,)) for place, name in enumerate(operators))
    ends = "".join(f"@{name}={size}" for name, size in dims.items()) + (f"@b{batch}" if batch else "")
    return Estimate(f"m{ends}", 1, estimate_ms=ms, dims=dims, batch=batch, sequences=parts)


def test_names_are_told_from_the_sizes_at_their_end():
    entry = estimate(1.0, seq=8, batch=4)

    assert (stem_of(entry), sizes_of(entry)) == ("m", {"seq": 8, "batch": 4})
    (sweep,) = swept([estimate(3.0, seq=16), estimate(2.0, seq=8), estimate(None, seq=32)])
    assert (sweep.stem, sweep.dimension, [*sweep.estimates]) == ("m", "seq", [8, 16])
    assert [point.ms for point in sweep.curve.points] == [2.0, 3.0]


def test_only_models_of_the_same_operators_are_read_between():
    known = {8: estimate(8.0, "A", "B", seq=8), 16: estimate(16.0, "A", seq=16), 32: estimate(32.0, "A", "B", seq=32)}

    found = interpolated(estimate(None, "A", "B", seq=20), "seq", known)
    assert found.interpolated is not None
    assert found.interpolated.measured == (8, 32)  # at 16 the runtime executes something else

    alone = interpolated(estimate(None, "A", seq=20), "seq", known)
    assert alone.interpolated is None
    assert alone.interpolation_reason == "seq=20 does not lie between sizes that are measured (16)"
    none = interpolated(estimate(None, "C", seq=20), "seq", known)
    assert none.interpolation_reason == "no other size of seq is measured, of those that were looked at"


def test_what_was_interpolated_is_no_point_of_another():
    known = {8: estimate(8.0, "A", seq=8), 32: estimate(32.0, "A", seq=32)}
    known[16] = interpolated(estimate(None, "A", seq=16), "seq", known)

    found = interpolated(estimate(None, "A", seq=20), "seq", known)

    assert found.interpolated is not None
    assert found.interpolated.measured == (8, 32)
