"""An item: one brick, model or network of our own on its way from 'to be measured' to measured."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from ...bricks.graph.boundary import BOUNDARY
from ...db.values import Block, Failure, Measurement, Subject
from ..worker.requests import Prepare

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
        weight_bytes: Of its weights.
        read_bytes: What one execution reads of its weights, and at a model's boundary of other memory of its own.
        live_bytes: Of its inputs and outputs.
        macs: Work of one execution, for the forecast; None where unknown.
        variant: What of it is measured, or how: empty for all of it in the runtime's own way, one of ``BOUNDARY``
            where it stands at a model's own inputs or outputs, else as in ``Prepare``.
        unroll: Copies in one network; 0 until the worker has chosen.
        as_is: It is of a graph that the runtime executes, and runs without further optimisation.
        cache: Cache state that it is measured in; None: that of the run.
        footprint: Footprint class, in bytes, that it is measured in, packed with others; 0: it is run by itself.
        alone: It cannot be packed, or ended a worker that held others: it is run by itself.
        measurement: UUID in the store; None until it is opened there.
        blocks: Committed blocks, those of an interrupted run included.
        footprint_bytes: What is touched between two visits of it.
        load_ns: Session creation in the first process of this run.
        first_run_ns: First execution there.
        run_ns: Latest guess at the time of one loop.
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
    weight_bytes: int = 0
    read_bytes: int = 0
    live_bytes: int = 0
    macs: int | None = None
    variant: str = ""
    unroll: int = 0
    as_is: bool = False
    cache: str | None = None
    footprint: int = 0
    alone: bool = False
    measurement: str | None = None
    blocks: list[Block] = field(default_factory=list)
    footprint_bytes: int | None = None
    load_ns: int | None = None
    first_run_ns: int | None = None
    run_ns: int = 0
    result: Measurement | None = None
    failure: Failure | None = None

    @property
    def id(self) -> str:
        """What the worker calls it; a brick and a model may have one key, a brick several cache states and variants."""
        return f"{self.subject}:{self.key}:{self.cache or ''}:{self.variant}"

    @property
    def algorithm(self) -> str:
        """The backend's algorithm that it is run with; empty: as the backend chooses."""
        return "" if self.variant in BOUNDARY else self.variant

    @property
    def open(self) -> bool:
        """Whether there is still something to do."""
        return self.result is None and self.failure is None

    @property
    def packed(self) -> bool:
        """Whether it is run together with others."""
        return bool(self.footprint) and not self.alone

    @property
    def visits(self) -> int:
        """How often it was visited so far."""
        return sum(len(block.samples) for block in self.blocks)

    def request(self, seed: int) -> Prepare:
        """What to send to a worker."""
        return Prepare(
            id=self.id,
            path=str(self.path),
            synthetic=self.synthetic,
            overrides=self.overrides,
            inputs=self.inputs,
            seed=seed,
            unroll=1 if self.footprint else self.unroll,
            as_is=self.as_is,
            variant=self.algorithm,
        )

    def in_variant(self, variant: str) -> Item:
        """Another variant of the same, not yet measured."""
        return replace(self, variant=variant, measurement=None, blocks=[], result=None, failure=None)
