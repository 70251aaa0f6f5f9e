"""Cold start: what loading a model and its first run cost beside a run of the steady state.

The question of TrIMS (Dakkak et al., IEEE CLOUD 2019), for one model in one process: where a model is loaded for every
request, that is most of the latency. It is no finding, since it saves nothing of a latency. Both are stored with the
measurement of a whole model, one sample of each, of the first process that loaded it. The runtime is imported by then,
and the file may have been read before, so that the first start of all takes longer. What of the first run is memory
that is touched for the first time, and what kernels prepare, is not distinguished.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ...db import Measurement, Subject
from ..estimation.query import stored_under
from .subject import Subject as Model

__all__ = ["ColdStart", "cold_start_in", "cold_start_of"]

_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Loading a model and running it once.

    Attributes:
        load_ms: Until the runtime could run it.
        first_run_ms: The first run after that.
        latency_ms: A run of the steady state.
    """

    load_ms: float
    first_run_ms: float
    latency_ms: float

    @property
    def runs(self) -> float:
        """How many runs of the steady state take as long as loading and the first run."""
        return (self.load_ms + self.first_run_ms) / self.latency_ms

    def record(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self) | {"runs": self.runs}


def cold_start_of(measured: Measurement | None) -> ColdStart | None:
    """The cold start of a whole model; None where it was not timed."""
    if measured is None or measured.load_ns is None or measured.first_run_ns is None or measured.latency_ns <= 0:
        return None
    return ColdStart(*(ns / _NS_PER_MS for ns in (measured.load_ns, measured.first_run_ns, measured.latency_ns)))


def cold_start_in(model: Model) -> ColdStart | None:
    """The cold start as the latest measurement of a model has it; None where none was taken."""
    choice = model.choice
    if choice is None:
        return None
    stored = model.store.measurements(stored_under(choice), subject=Subject.MODEL, keys=[model.graph.key])
    found = [start for one in stored if one.conditions.cache != "cold" and (start := cold_start_of(one)) is not None]
    return found[-1] if found else None
