"""One model at several sizes of one dimension, or of its batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .result import Estimate

BATCH = "batch"
"""Name of the batch dimension."""

_GAIN = 1.05
"""Greatest throughput gain of doubling the batch that is not worth it (XSP: Li et al., IPDPS 2020, section IV)."""


@dataclass(frozen=True, slots=True)
class ModelSweep:
    """A model against one of its dimensions.

    Attributes:
        stem: The model's name, without the sizes at its end.
        dimension: The varying dimension.
        estimates: Known estimates by size, ascending.
    """

    stem: str
    dimension: str
    estimates: Mapping[int, Estimate]

    def record(self) -> dict[str, Any]:
        """Return latency, throughput and lower bound by size, and the best batch, as a JSON object."""
        batched = self.dimension == BATCH
        points = [
            {
                "size": size,
                "latency_ms": entry.latency.ms,
                "ci95_ms": entry.latency.ci95_ms,
                "per_s": 1000.0 * (size if batched else 1) / entry.latency.ms if entry.latency.ms else None,
                "lower_bound_ms": entry.lower_bound_ms,
                "measured_ms": entry.truth.ms,
                "interpolated": entry.parts.interpolated is not None,
                "share": None if entry.parts.interpolated is None else entry.parts.interpolated.share,
            }
            for size, entry in self.estimates.items()
        ]
        best, gain = self._best_batch() if batched else (None, None)
        return {
            "name": self.stem,
            "dimension": self.dimension,
            "points": points,
            "best_batch": best,
            "doubling_gains": gain,
        }

    def _best_batch(self) -> tuple[int | None, float | None]:
        """Return the optimal batch among successive doublings, and the gain of doubling it.

        Both are None if no batch is twice another, or if the doublings end before the largest. The gain is None for
        the largest batch.
        """
        measured_ms = {
            size: entry.latency.ms
            for size, entry in self.estimates.items()
            if entry.parts.interpolated is None and entry.parts.predicted is None
        }
        latencies = {size: ms for size, ms in measured_ms.items() if ms is not None}
        doubling = [min(latencies, default=1)]
        while 2 * doubling[-1] in latencies:
            doubling.append(2 * doubling[-1])
        if len(doubling) < 2:
            return None, None
        best = optimal_batch({batch: latencies[batch] for batch in doubling})
        if best == doubling[-1] < max(self.estimates):
            return None, None
        gain = 2 * latencies[best] / latencies[2 * best] - 1 if 2 * best in doubling else None
        return best, gain


def optimal_batch(latencies: Mapping[int, float]) -> int:
    """Return the first batch with a throughput gain of at most 5 % on doubling, else the largest.

    Args:
        latencies: Latency of one execution by batch; each batch is twice the previous one.

    Example:
        >>> optimal_batch({1: 10.0, 2: 12.0, 4: 23.5, 8: 30.0})
        2
    """
    batches = sorted(latencies)
    for batch in batches[:-1]:
        if 2 * latencies[batch] <= _GAIN * latencies[2 * batch]:
            return batch
    return batches[-1]


def swept(estimates: Sequence[Estimate]) -> list[ModelSweep]:
    """Return a sweep for each model with estimates at several sizes of one dimension or of its batch.

    Models that vary in several dimensions are left out, and so are unknown latencies.
    """
    groups: dict[str, list[Estimate]] = defaultdict(list)
    for entry in estimates:
        if entry.latency.ms is not None:
            groups[stem_of(entry)].append(entry)
    sweeps = []
    for stem, group in groups.items():
        names = dict.fromkeys(name for entry in group for name in sizes_of(entry))
        varied = [name for name in names if len({sizes_of(entry).get(name) for entry in group}) > 1]
        if len(varied) == 1:
            sized = {size: entry for entry in group if (size := sizes_of(entry).get(varied[0]))}
            sweeps.append(ModelSweep(stem, varied[0], dict(sorted(sized.items()))))
    return sweeps


def sizes_of(entry: Estimate) -> dict[str, int]:
    """Return the requested sizes by dimension."""
    return {**entry.model.dims, **({} if entry.model.source.batch is None else {BATCH: entry.model.source.batch})}


def stem_of(entry: Estimate) -> str:
    """Return the model's name without its trailing sizes."""
    name = entry.name
    for ending in (*(f"@{dim}={size}" for dim, size in entry.model.dims.items()), f"@b{entry.model.source.batch}"):
        name = name.replace(ending, "")
    return name
