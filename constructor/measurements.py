"""What is known of bricks in one cache state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from ..bricks.layer import LayerSequence
from ..db import Failure, Measurement


@dataclass(frozen=True, slots=True)
class BrickMeasurements:
    """What is known of a model's bricks in one cache state; every mapping is by key.

    Attributes:
        latest: Latest measurement of each brick, in the nearest footprint class. A brick that the model holds only at
            its own inputs and outputs is taken as it was measured there.
        inner: The same without the layout changes at its edges, where there are any.
        host: What the processor takes to enqueue a brick, where a device does the work.
        failures: Why a brick could not be measured.
        rivals: Measurements over all variants and stacks that may compete, lowest latency first, all in one cache
            state. What runs branches at once competes only with its like, and what computes in TF32 likewise.
        fusion: Of each brick that is measured both ways: without fusion and with it, in the network's own layout.
        repeated: As ``latest``, of bricks whose weights an iteration before has read, by footprint class in bytes.
        read: Those of ``latest`` that were not measured, but read between other sizes of a model (``interpolation``).
    """

    latest: Mapping[str, Measurement] = field(default_factory=dict)
    inner: Mapping[str, Measurement] = field(default_factory=dict)
    host: Mapping[str, Measurement] = field(default_factory=dict)
    failures: Mapping[str, Failure] = field(default_factory=dict)
    rivals: Mapping[str, tuple[Measurement, ...]] = field(default_factory=dict)
    fusion: Mapping[str, tuple[Measurement, Measurement]] = field(default_factory=dict)
    repeated: Mapping[int, Mapping[str, Measurement]] = field(default_factory=dict)
    read: AbstractSet[str] = frozenset()

    def measured(self, key: str, reuse: int = 0) -> bool:
        """Whether a brick was measured, as warm as iterations find it or at all, and not only read between others."""
        return key in self.repeated.get(reuse, {}) or (key in self.latest and key not in self.read)

    def of(self, part: LayerSequence) -> Measurement | None:
        """The latest measurement of a sequence's brick, as warm as the sequence finds its weights; None without any."""
        return self.repeated.get(part.reuse, {}).get(part.key) or self.latest.get(part.key)

    def latency_ns(self, part: LayerSequence) -> float:
        """The latency of a sequence that is measured."""
        found = self.of(part)
        return (self.latest[part.key] if found is None else found).latency_ns

    def members(self) -> Iterator[Measurement]:
        """Every measurement here; some of them several times."""
        for table in (self.latest, self.inner, self.host, *self.repeated.values()):
            yield from table.values()
        for several in (*self.fusion.values(), *self.rivals.values()):
            yield from several
