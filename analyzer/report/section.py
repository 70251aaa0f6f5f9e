"""A model as reports show it: its estimate with what is stored around it, layer by layer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...bricks.graph.graph import ModelGraph
from ...bricks.layer import Layer
from ...bricks.sequence import LayerSequence
from ...bricks.tensor import TensorType
from ...constructor.choice import COLD, MODEL
from ...constructor.composition.composition import Quotient
from ...constructor.decomposition import Decomposition, quotient_of
from ...constructor.result import Estimate, SequenceLatency
from ...constructor.roofline.roofline import LayerRoof
from ...db import Kernel, KernelView, Measurement, Run, Stack, Store, Subject, System
from ...db.filter import Filter
from ..findings.finding import Finding
from ..findings.joint import Joint, joint_of

__all__ = ["LayerRow", "Section", "layer_rows", "sections"]


@dataclass(frozen=True, slots=True)
class Section:
    """One model of a report.

    Attributes:
        estimate: Its latency, composed.
        model: What it was decomposed into; None where it could not be.
        quotient: Its sequences as a DAG; None likewise.
        system: The machine; None where nothing is stored.
        stack: The runtime; likewise.
        state: Cache state of its bricks.
        truth: The whole model as measured; None where it is not.
        bricks: Measurement of each brick, by key.
        runs: The runs that these come from, earliest first.
        kernels: The kernels of the whole model, and of bricks by key; empty where none were profiled.
        findings: What it misses, most saving first; None where it was not analysed.
    """

    estimate: Estimate
    model: Decomposition | None = None
    quotient: Quotient | None = None
    system: System | None = None
    stack: Stack | None = None
    state: str = ""
    truth: Measurement | None = None
    bricks: Mapping[str, Measurement] | None = None
    runs: tuple[Run, ...] = ()
    kernels: Mapping[str, KernelView] | None = None
    findings: tuple[Finding, ...] | None = None

    @property
    def name(self) -> str:
        """The model's name."""
        return self.estimate.name

    @property
    def joint(self) -> Joint | None:
        """What all findings would give together; None where there are none."""
        measured_ms = self.estimate.measured_ms
        return joint_of(self.findings or (), self.estimate.estimate_ms if measured_ms is None else measured_ms)

    def missed(self) -> dict[str, Any]:
        """Its findings, and what they give together, as a JSON object."""
        return {
            "findings": None if self.findings is None else [one.record() for one in self.findings],
            "joint": None if self.joint is None else self.joint.record(),
        }

    @property
    def profile(self) -> tuple[Kernel, ...]:
        """The kernels of the whole model; empty where it was not profiled."""
        view = None if self.model is None else (self.kernels or {}).get(self.model.own.key)
        return () if view is None else view.kernels


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One sequence of a model.

    Attributes:
        sequence: Its latency and place.
        origins: The model's own layers that it computes; none for what a runtime put in.
        name: Names of the model's own layers that it computes; its own where it computes none.
        executed: Its name in the graph that is executed; empty where that is the model's own.
        operator: Its operators.
        fused: Operators of the model's own layers, where these are others.
        reads: Types of the activations that it reads, and of its largest weight.
        writes: Types of what it writes.
        count: How often its brick occurs in the model.
        roof: Its brick under the machine's ceilings; None where there is none.
        measurement: Of its brick; None where it is not measured.
    """

    sequence: SequenceLatency
    origins: tuple[Layer, ...]
    name: str
    executed: str
    operator: str
    fused: str
    reads: str
    writes: str
    count: int
    roof: LayerRoof | None
    measurement: Measurement | None


def sections(found: Sequence[tuple[Estimate, Decomposition | None]], *, store: Store) -> list[Section]:
    """What reports need of each model.

    Args:
        found: The estimates, and what the models were decomposed into.
        store: Where they come from.
    """
    systems, stacks = store.systems(), store.stacks()
    runs = {run.id: run for run in store.runs()}
    made = []
    for entry, model in found:
        if model is None or entry.system is None or entry.stack is None:
            quotient = None if model is None else quotient_of(model.graph, model.sequences)
            made.append(Section(entry, model, quotient))
            continue
        state = model.level if entry.cache == "model" else entry.cache or ""
        keys = [*dict.fromkeys(part.key for part in model.sequences)]
        bricks = {one.key: one for one in _stored(store, entry, Subject.BRICK, keys, {state})}
        # A model that is repeated is in its own state: hot and model are the same of it.
        states = {COLD} if state == COLD else {"hot", MODEL}
        whole = [one for one in _stored(store, entry, Subject.MODEL, [model.own.key], states) if one.run in runs]
        truth = max(whole, key=lambda one: runs[one.run].started, default=None)
        used = {one.run for one in (*bricks.values(), *whole) if one is truth or one.key in bricks} & runs.keys()
        views = store.kernels(_under(entry), keys=[*bricks, model.own.key])
        made.append(
            Section(
                entry,
                model,
                quotient_of(model.graph, model.sequences),
                systems[entry.system],
                stacks[entry.stack],
                state,
                truth,
                bricks,
                tuple(sorted((runs[run] for run in used), key=lambda run: run.started)),
                {identity.key: view for identity, view in views.items()},
            )
        )
    return made


def _stored(
    store: Store, entry: Estimate, subject: Subject, keys: Sequence[str], states: Collection[str]
) -> list[Measurement]:
    """The latest measurements under the combination of an estimate, in some cache states."""
    found = store.measurements(_under(entry), subject=subject, keys=keys)
    return [one for one in found if one.conditions.cache in states]


def _under(entry: Estimate) -> Filter:
    """What is stored under the combination of an estimate, in whatever cache state."""
    return Filter(system=entry.system, stack=entry.stack, threads=entry.threads, dtype=entry.dtype)


def layer_rows(section: Section) -> Iterator[LayerRow]:
    """The sequences of a model, in its order; none where it could not be decomposed."""
    model, entry = section.model, section.estimate
    if model is None:
        return
    counts: dict[str, int] = {}
    for part in model.sequences:
        counts[part.key] = counts.get(part.key, 0) + 1
    roofs = {} if entry.roofline is None else {row.key: row for row in entry.roofline.layers}
    shapes: dict[str, tuple[str, str]] = {}
    for sequence, part in zip(entry.sequences, model.sequences, strict=True):
        origins = _origins(model, part)
        own = " + ".join(layer.name for layer in origins)
        executed = " + ".join(sequence.names)
        operator, fused = "+".join(sequence.op_types), "+".join(layer.op_type for layer in origins)
        if part.key not in shapes:
            shapes[part.key] = _reads(model.graph, part), _types(model.graph, part.outputs)
        reads, writes = shapes[part.key]
        yield LayerRow(
            sequence=sequence,
            origins=tuple(origins),
            name=own or executed,
            executed="" if own in {"", executed} else executed,
            operator=operator,
            fused="" if fused == operator else fused,
            reads=reads,
            writes=writes,
            count=counts[part.key],
            roof=roofs.get(part.key),
            measurement=(section.bricks or {}).get(part.key),
        )


def _origins(model: Decomposition, part: LayerSequence) -> list[Layer]:
    """The model's own layers that a sequence computes."""
    if model.executed is None or model.graph is not model.executed.graph:
        return [model.graph.layers[index] for index in part.layers]
    indices = {origin for layer in part.layers for origin in model.executed.origins[layer]}
    return [model.own.layers[index] for index in sorted(indices)]


def _reads(graph: ModelGraph, part: LayerSequence) -> str:
    """Activations, and the largest weight in brackets."""
    weights = [kind for name in part.weights if (kind := graph.types.get(name)) is not None and kind.shape]
    largest = max(weights, key=lambda kind: kind.elements, default=None)
    activations = _types(graph, part.inputs)
    return activations if largest is None else f"{activations} [{_spelt(largest)}]".strip()


def _types(graph: ModelGraph, values: Sequence[str]) -> str:
    return ", ".join(_spelt(graph.types.get(name)) for name in values)


def _spelt(kind: TensorType | None) -> str:
    if kind is None:
        return "?"
    shape = "×".join(map(str, kind.shape)) or "scalar"  # noqa: RUF001  (as people write shapes)
    return shape if kind.dtype == "float" else f"{shape} {kind.dtype}"
