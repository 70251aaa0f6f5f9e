"""Whether the machine moved: the probes around every visit, and our own reference networks, as series of the same runs.

A probe is code of ours outside the runtime: no version of a runtime makes it slower, and what does makes everything so.
A reference network runs in the runtime: where a version changed as well, that it moved says nothing of the machine.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ...bricks.reference import CHAIN, OVERHEAD, built_in_key
from ...db import Measurement, Stack, Store, Subject
from ...db.samples.statistics import Baseline
from ...db.values import Visit
from ..comparison.difference import Difference
from .changes import moved
from .series import UNDISTURBED, Track, basis_of, value_ns

__all__ = ["PROBE", "REFERENCE", "Evidence", "Witness", "evidence", "witnesses"]

PROBE, REFERENCE = "probe", "reference"

_NAMES = {built_in_key(OVERHEAD): "a call of one addition", built_in_key(CHAIN): "a chain of small operators"}

_NS_PER_US = 1e3

_LEVEL = 0.01
"""Probability that a series moved by chance below which it did."""

_SHARE = 0.5
"""A witness explains a change where it moved by this share of it, in the same direction."""

_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Witness:
    """Something that the runs of a series measured beside the model.

    Attributes:
        name: What it is.
        kind: ``probe`` or ``reference``.
        latencies_us: Of each run of the series; None where a run did not measure it.
    """

    name: str
    kind: str
    latencies_us: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a witness did where the model changed.

    Attributes:
        name: The witness.
        kind: ``probe`` or ``reference``.
        ratio: After / before; None where too few runs measured it.
        ratio_ci95: Its interval.
        moved: Whether it moved with the model, by half as much at least, beyond chance.
    """

    name: str
    kind: str
    ratio: float | None
    ratio_ci95: tuple[float, float] | None
    moved: bool


def witnesses(
    store: Store, track: Track, measurements: Sequence[Measurement], stacks: Mapping[str, Stack], *, basis: str
) -> tuple[Witness, ...]:
    """What the runs of a series say of the machine.

    Args:
        store: The database.
        track: Where the runs were made.
        measurements: Of the model, of each run one.
        stacks: By key.
        basis: What the latencies of the series are.
    """
    order = [one.run for one in measurements]
    return (*_probes(store, measurements, basis), *_references(store, track, order, stacks))


def evidence(witness: Witness, seen: Difference, begin: int, at: int, end: int) -> Evidence:
    """What a witness did where the model changed.

    Args:
        witness: The witness.
        seen: How the model changed.
        begin: Index of the first run at the old level.
        at: Of the first at the new one.
        end: Behind the last.
    """
    before, after = ([value for value in part if value] for part in _parts(witness.latencies_us, begin, at, end))
    found = moved(before, after)
    if found is None:
        return Evidence(witness.name, witness.kind, None, None, moved=False)
    ours, theirs = math.log(seen.ratio), math.log(found.ratio)
    with_it = found.p < _LEVEL and ours * theirs > 0 and abs(theirs) >= _SHARE * abs(ours)
    return Evidence(witness.name, witness.kind, found.ratio, found.ci95, moved=with_it)


def _parts(
    values: Sequence[float | None], begin: int, at: int, end: int
) -> tuple[Sequence[float | None], Sequence[float | None]]:
    return values[begin:at], values[at:end]


def _probes(store: Store, measurements: Sequence[Measurement], basis: str) -> list[Witness]:
    """The probes as the latencies are: at their quietest, as a run's own baseline has them, or their means."""
    blocks = store.blocks_of([one.id for one in measurements])
    visits = [[visit for block in blocks.get(one.id, []) for visit in block.visits] for one in measurements]
    kinds = {"probe of arithmetic": "compute_ns", "probe of memory": "memory_ns"}
    made = [
        Witness(name, PROBE, tuple(_probe_us(one, field, basis) for one in visits)) for name, field in kinds.items()
    ]
    return [one for one in made if any(one.latencies_us)]


def _probe_us(visits: Sequence[Visit], field: str, basis: str) -> float | None:
    quietest = Baseline.of(visits)
    if quietest is None:
        return None
    level: float = getattr(quietest, field) if basis == UNDISTURBED else fmean(getattr(one, field) for one in visits)
    return level / _NS_PER_US


def _references(store: Store, track: Track, order: Sequence[str], stacks: Mapping[str, Stack]) -> list[Witness]:
    """Our own networks, where a run of the series measured them beside the model."""
    found: defaultdict[str, dict[str, Measurement]] = defaultdict(dict)
    for one in store.measurements(
        subject=Subject.REFERENCE, system=track.system, threads=track.threads, backend=track.backend,
        device=track.device, latest=False,
    ):  # fmt: skip
        if one.run in order and stacks[one.stack].options == track.options:
            found[one.key][one.run] = one
    made = []
    for key, by_run in sorted(found.items()):
        basis = basis_of(by_run.values())
        values = [value_ns(by_run[run], basis) / _NS_PER_US if run in by_run else None for run in order]
        made.append(Witness(_NAMES.get(key, f"reference {key[:_SHOWN]}"), REFERENCE, tuple(values)))
    return made
