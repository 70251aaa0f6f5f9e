"""Measurements of bricks in one cache state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from ..bricks.layer import LayerSequence
from ..db import Failure, Measurement


@dataclass(frozen=True, slots=True)
class BrickMeasurements:
    """Measurements of a model's bricks in one cache state; every mapping is by key.

    Attributes:
        latest: Latest measurement of each brick, in the nearest footprint class. A brick that occurs only at the
            model's inputs and outputs has the measurement made for this position.
        inner: Measurements without the layout changes at the brick's edges, if it has any.
        host: Times of the processor to enqueue a brick on a device.
        failures: Failed measurements.
        rivals: Competing measurements over all variants and stacks in one cache state, lowest latency first. Parallel
            branches compete only with parallel branches, TF32 only with TF32.
        fusion: Pairs of measurements without and with fusion, in the network's own layout.
        repeated: As ``latest``, with weights read by the previous iteration, by footprint class in bytes.
        placed: Measurements made for a position at the model's inputs and outputs, by key and layers of the sequence.
        variants: Which inputs and outputs are cold, by key and layers, for sequences with such, measured or not.
        read: Keys in ``latest`` with interpolated or predicted latencies.
    """

    latest: Mapping[str, Measurement] = field(default_factory=dict)
    inner: Mapping[str, Measurement] = field(default_factory=dict)
    host: Mapping[str, Measurement] = field(default_factory=dict)
    failures: Mapping[str, Failure] = field(default_factory=dict)
    rivals: Mapping[str, tuple[Measurement, ...]] = field(default_factory=dict)
    fusion: Mapping[str, tuple[Measurement, Measurement]] = field(default_factory=dict)
    repeated: Mapping[int, Mapping[str, Measurement]] = field(default_factory=dict)
    placed: Mapping[tuple[str, tuple[int, ...]], Measurement] = field(default_factory=dict)
    variants: Mapping[tuple[str, tuple[int, ...]], str] = field(default_factory=dict)
    read: AbstractSet[str] = frozenset()

    def measured(self, key: str, reuse: int = 0) -> bool:
        """Return True if a brick was measured, rather than interpolated or predicted."""
        return key in self.repeated.get(reuse, {}) or (key in self.latest and key not in self.read)

    def of(self, part: LayerSequence) -> Measurement | None:
        """Return the latest measurement of a sequence's brick at its position and reuse distance, if any."""
        if (placed := self.placed.get((part.key, part.layers))) is not None:
            return placed
        return self.repeated.get(part.reuse, {}).get(part.key) or self.latest.get(part.key)

    def variant(self, part: LayerSequence) -> str:
        """Return which inputs and outputs of a sequence are cold at its position."""
        return self.variants.get((part.key, part.layers), "")

    def latency_ns(self, part: LayerSequence) -> float:
        """Return the latency of a measured sequence."""
        measurement = self.of(part)
        return (self.latest[part.key] if measurement is None else measurement).latency_ns

    def members(self) -> Iterator[Measurement]:
        """Yield every measurement, some more than once."""
        for table in (self.latest, self.inner, self.host, *self.repeated.values()):
            yield from table.values()
        yield from self.placed.values()
        for several in (*self.fusion.values(), *self.rivals.values()):
            yield from several
