"""One model at several sizes of one dimension, or of its batch: a curve, and what it says of a size between.

What is estimated from bricks at some sizes may be read between them (``constructor.curve``) where the model is the same
but for that one extent: the same operators in the same order. It is marked, its interval comes from leaving sizes out,
and beyond the sizes that are measured nothing is said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .curve import Curve, Point
from .result import Estimate, Interpolation

__all__ = ["BATCH", "ModelSweep", "interpolated", "sizes_of", "stem_of", "swept"]

BATCH = "batch"
"""What the dimension is called that counts the samples of a batch."""


@dataclass(frozen=True, slots=True)
class ModelSweep:
    """A model against one of its dimensions.

    Attributes:
        stem: The model's name, without the sizes at its end.
        dimension: What varies.
        estimates: By size, in order; each of them is known.
    """

    stem: str
    dimension: str
    estimates: Mapping[int, Estimate]

    @property
    def curve(self) -> Curve:
        """Through those that are composed of measured bricks."""
        return Curve.through(_points(self.estimates))


def swept(estimates: Sequence[Estimate]) -> list[ModelSweep]:
    """A sweep for each model that is estimated at several sizes of one dimension, or of its batch.

    Estimates that differ in more than one of them are no sweep, and one that is not known is left out.
    """
    groups: dict[str, list[Estimate]] = defaultdict(list)
    for entry in estimates:
        if entry.estimate_ms is not None:
            groups[stem_of(entry)].append(entry)
    found = []
    for stem, group in groups.items():
        names = dict.fromkeys(name for entry in group for name in sizes_of(entry))
        varied = [name for name in names if len({sizes_of(entry).get(name) for entry in group}) > 1]
        if len(varied) == 1:
            sized = {size: entry for entry in group if (size := sizes_of(entry).get(varied[0]))}
            found.append(ModelSweep(stem, varied[0], dict(sorted(sized.items()))))
    return found


def interpolated(entry: Estimate, dimension: str, others: Mapping[int, Estimate]) -> Estimate:
    """An estimate that bricks are missing for, read between others of the same model; else it says why it is not.

    Args:
        entry: The estimate.
        dimension: What the others differ in.
        others: By size.
    """
    size = sizes_of(entry)[dimension]
    family = _operators(entry)
    alike = {other: one for other, one in others.items() if _operators(one) == family}
    curve = Curve.through(_points(alike))
    read = curve.at(size)
    if read is None:
        known = ", ".join(str(point.length) for point in curve.points)
        reason = (
            f"{dimension}={size} does not lie between sizes that are measured ({known})"
            if known
            else f"no other size of {dimension} is measured, of those that were looked at"
        )
        return replace(entry, interpolation_reason=reason)
    whole = [alike[point.length] for point in curve.points]
    below = max(point.length for point in curve.points if point.length < size)
    above = min(point.length for point in curve.points if point.length > size)
    return replace(
        entry,
        estimate_ms=read.ms,
        ci95_ms=read.ci95_ms,
        calibrated=all(one.calibrated for one in whole),
        scatter_calibrated=all(one.scatter_calibrated for one in whole),
        sequential_ms=_read(size, {other: one.sequential_ms for other, one in alike.items()}),
        undisturbed_ms=_read(size, {other: one.undisturbed_ms for other, one in alike.items()}),
        interpolated=Interpolation(
            dimension=dimension,
            between=(below, above),
            measured=tuple(point.length for point in curve.points),
            error=curve.error,
            left_out=curve.left_out,
        ),
    )


def sizes_of(entry: Estimate) -> dict[str, int]:
    """The sizes that were asked for, by dimension."""
    return {**entry.dims, **({} if entry.batch is None else {BATCH: entry.batch})}


def stem_of(entry: Estimate) -> str:
    """The model's name without the sizes at its end."""
    name = entry.name
    for ending in (*(f"@{dim}={size}" for dim, size in entry.dims.items()), f"@b{entry.batch}"):
        name = name.replace(ending, "")
    return name


def _points(estimates: Mapping[int, Estimate]) -> Iterable[Point]:
    return [
        Point(size, entry.estimate_ms, entry.ci95_ms)
        for size, entry in estimates.items()
        if entry.estimate_ms is not None and entry.interpolated is None
    ]


def _read(size: int, known: Mapping[int, float | None]) -> float | None:
    """A latency without an interval, between sizes at which it is known."""
    found = Curve.through(Point(other, ms) for other, ms in known.items() if ms is not None).at(size)
    return None if found is None else found.ms


def _operators(entry: Estimate) -> list[tuple[str, ...]]:
    return [part.op_types for part in entry.sequences]
