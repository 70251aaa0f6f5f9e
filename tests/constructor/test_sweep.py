"""Sweeps: which estimates are one model against one of its sizes."""

from __future__ import annotations

from dlbricks.constructor.result import Estimate
from dlbricks.constructor.sweep import sizes_of, stem_of, swept


def estimate(ms: float | None, batch: int | None = None, **dims: int) -> Estimate:
    ends = "".join(f"@{name}={size}" for name, size in dims.items()) + (f"@b{batch}" if batch else "")
    return Estimate(f"m{ends}", 1, estimate_ms=ms, dims=dims, batch=batch)


def test_names_are_told_from_the_sizes_at_their_end():
    entry = estimate(1.0, seq=8, batch=4)

    assert (stem_of(entry), sizes_of(entry)) == ("m", {"seq": 8, "batch": 4})
    (sweep,) = swept([estimate(3.0, seq=16), estimate(2.0, seq=8), estimate(None, seq=32)])
    assert (sweep.stem, sweep.dimension, [*sweep.estimates]) == ("m", "seq", [8, 16])


def test_one_that_varies_in_two_sizes_is_none():
    assert not swept([estimate(1.0, seq=8, batch=1), estimate(2.0, seq=16, batch=2)])
