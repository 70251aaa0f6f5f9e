"""An item: one brick, model or reference network on its way from 'to be measured' to measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ...db.values import Block, Failure, Measurement, Subject
from ..worker.messages.protocol import Prepare

__all__ = ["Item"]


@dataclass(slots=True, eq=False)
class Item:
    """What is measured, what was taken of it so far, and how it ended.

    Attributes:
        subject: What it is.
        key: Brick key, or model key.
        label: What a user calls it: the shortened key, or the model's name.
        path: ONNX file that the worker loads.
        synthetic: Whether its weights are filled with seeded values.
        overrides: ``dim_param`` to value.
        inputs: Name, dtype and static shape of its inputs; empty: as the file declares them.
        size_bytes: A guess at the memory that it takes in the worker; the worker's word replaces it.
        macs: Work of one execution, for the forecast; None where unknown.
        variant: What of it is measured, or how: empty for all of it in the runtime's own way, else as in ``Prepare``.
        unroll: Copies in one network; 0 until the worker has chosen.
        as_is: It is of a graph that the runtime executes, and runs without further optimisation.
        measurement: UUID in the store; None until it is opened there.
        blocks: Committed blocks, those of an interrupted run included.
        load_ns: Session creation in the first process of this run.
        first_run_ns: First execution there.
        run_ns: Latest guess at the time of one loop.
        party: Items of one number share workers; 0 until a worker was lost.
        cache: Cache state that it is measured in; None: that of the run.
        distance: Reuse distance in bytes at which it is rotated with others; 0: it is timed by itself.
        touched_bytes: What one pass of a rotation touches of it, once it is loaded.
        alone: It is suspected of having ended a shared worker, and is its party's only member.
        result: Set when it is measured.
        failure: Set when it cannot be measured.
    """

    subject: Subject
    key: str
    label: str
    path: Path
    synthetic: bool = True
    overrides: tuple[tuple[str, int], ...] = ()
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    size_bytes: int = 0
    macs: int | None = None
    variant: str = ""
    unroll: int = 0
    as_is: bool = False
    measurement: str | None = None
    blocks: list[Block] = field(default_factory=list)
    load_ns: int | None = None
    first_run_ns: int | None = None
    run_ns: int = 0
    party: int = 0
    cache: str | None = None
    distance: int = 0
    touched_bytes: int = 0
    alone: bool = False
    result: Measurement | None = None
    failure: Failure | None = None

    @property
    def id(self) -> str:
        """What the worker calls it; a brick and a model may have one key, a brick several cache states and variants."""
        return f"{self.subject}:{self.key}:{self.cache or ''}:{self.variant}"

    @property
    def open(self) -> bool:
        """Whether there is still something to do."""
        return self.result is None and self.failure is None

    @property
    def pass_ns(self) -> int:
        """A guess at the time of one visit in a rotation: all copies, and the head twice."""
        visits = self.unroll + 2
        return self.run_ns * visits // self.unroll if self.blocks and self.unroll else self.run_ns * visits

    def request(self, seed: int) -> Prepare:
        """What to send to a worker."""
        return Prepare(
            id=self.id,
            path=str(self.path),
            synthetic=self.synthetic,
            overrides=self.overrides,
            inputs=self.inputs,
            seed=seed,
            unroll=0 if self.distance else self.unroll,
            as_is=self.as_is,
            distance=self.distance,
            variant=self.variant,
        )

    def in_variant(self, variant: str) -> Item:
        """Another variant of the same, not yet measured."""
        return Item(
            subject=self.subject,
            key=self.key,
            label=self.label,
            path=self.path,
            synthetic=self.synthetic,
            overrides=self.overrides,
            inputs=self.inputs,
            size_bytes=self.size_bytes,
            macs=self.macs,
            variant=variant,
            unroll=0 if self.distance else self.unroll,
            as_is=self.as_is,
            cache=self.cache,
            distance=self.distance,
            party=self.party,
        )
