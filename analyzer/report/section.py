"""A model as reports show it: its estimate and its findings, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...bricks.decomposition import Decomposition
from ...bricks.graph.model_graph import ModelGraph
from ...bricks.layer import Layer, LayerSequence, TensorType
from ...constructor.choice import Choice
from ...constructor.composition import Quotient
from ...constructor.evidence import Evidence
from ...constructor.interventions import quotient_of, state_of
from ...constructor.result import Estimate, SequenceLatency
from ...constructor.roofline import LayerRoof
from ...db import Kernel, KernelView, Measurement, Run
from ...tabular import Row
from ..findings.analysed_model import latency_of
from ..findings.finding import Finding, Joint, joint_of

if TYPE_CHECKING:
    from ...generator.measurement.alone import Alone


@dataclass(frozen=True, slots=True)
class Section:
    """One model of a report, read from its estimate; the database is not read.

    Attributes:
        estimate: The estimate.
        findings: Missed optimisations, largest saving first; None if the model was not analysed.
        untried: What was not tried, in words; empty if every remedy was tried.
        alone: The model in a process of its own; None if that was not asked for, or failed.
    """

    estimate: Estimate
    findings: tuple[Finding, ...] | None = None
    untried: tuple[str, ...] = ()
    alone: Alone | None = None

    @property
    def name(self) -> str:
        """The model's name."""
        return self.estimate.name

    @property
    def searched(self) -> bool:
        """True if there are findings, or if everything was tried in vain: else no finding is no result."""
        return bool(self.findings) or (self.findings is not None and not self.untried)

    @property
    def model(self) -> Decomposition | None:
        """The decomposition; None if the model could not be decomposed."""
        return self.estimate.model.decomposition

    @property
    def quotient(self) -> Quotient | None:
        """The sequences as a DAG; None if the model could not be decomposed."""
        return None if self.model is None else quotient_of(self.model.graph, self.model.sequences)

    @property
    def evidence(self) -> Evidence | None:
        """The stored measurements; None without any."""
        evidence = self.estimate.evidence
        return None if evidence is None or evidence.choice is None else evidence

    @property
    def choice(self) -> Choice | None:
        """System, stack and conditions; None without measurements."""
        return None if self.evidence is None else self.evidence.choice

    @property
    def state(self) -> str:
        """Cache state of its bricks."""
        return "" if self.model is None else state_of(self.model, self.choice)

    @property
    def truth(self) -> Measurement | None:
        """The measurement of the whole model; None without one."""
        return self.estimate.truth.measurement

    @property
    def bricks(self) -> Mapping[str, Measurement]:
        """Measurement of each brick that is measured, by key."""
        if self.model is None or self.evidence is None:
            return {}
        measurements = self.evidence.bricks_in(self.model.own.key, self.state)
        keys = dict.fromkeys(part.key for part in self.model.sequences)
        return {
            key: measurements.latest[key] for key in keys if key in measurements.latest and key not in measurements.read
        }

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs that these come from, earliest first."""
        if self.evidence is None:
            return ()
        taken = [*self.bricks.values(), *([] if self.truth is None else [self.truth])]
        used = {measurement.run for measurement in taken} & self.evidence.runs.keys()
        return tuple(sorted((self.evidence.runs[run] for run in used), key=lambda run: run.started))

    @property
    def views(self) -> Mapping[str, KernelView]:
        """The kernels of the model and its bricks, by key; empty without a profile."""
        return {} if self.evidence is None else self.evidence.views

    @property
    def profile(self) -> tuple[Kernel, ...]:
        """The kernels of the whole model; empty without a profile."""
        view = None if self.model is None else self.views.get(self.model.own.key)
        return () if view is None else view.kernels

    @property
    def proven(self) -> list[tuple[int, Finding]]:
        """The findings that a trial proved, with their places in the order of ``groups``."""
        return [
            (number, finding)
            for number, finding in self._numbered()
            if finding.proof is not None and not finding.unproven
        ]

    @property
    def predicted(self) -> list[tuple[int, Finding]]:
        """The findings with a predicted saving that nobody tried, with their places."""
        return [
            (number, finding) for number, finding in self._numbered() if finding.proof is None and not finding.at_most
        ]

    @property
    def at_most(self) -> list[tuple[int, Finding]]:
        """The findings with only a limit of their saving, with their places."""
        return [(number, finding) for number, finding in self._numbered() if finding.proof is None and finding.at_most]

    @property
    def groups(self) -> tuple[tuple[str, list[tuple[int, Finding]]], ...]:
        """All findings with their places, grouped by the evidence of their saving."""
        tried = [
            (number, finding) for number, finding in self._numbered() if finding.proof is not None and finding.unproven
        ]
        return (
            ("Proven", self.proven),
            ("Predicted, not tried", self.predicted),
            ("A limit only: nobody knows how much of it can be saved", self.at_most),
            ("Tried, no saving proven", tried),
        )

    def _numbered(self) -> Iterator[tuple[int, Finding]]:
        """Yield the findings in the order in which they are shown, with their places."""
        return enumerate(sorted(self.findings or (), key=_group_of), 1)

    @property
    def joint(self) -> Joint | None:
        """The saving of all proven findings together; None without any."""
        return joint_of(self.findings or (), latency_of(self.estimate))

    def missed(self) -> Row:
        """Return the findings, what was not tried, the joint saving, and the memory, as a JSON object."""
        return {
            **({} if self.alone is None else self.alone.record()),
            "untried": list(self.untried),
            "findings": None if self.findings is None else [finding.record() for finding in self.findings],
            "joint": None if self.joint is None else self.joint.record(),
        }


def _group_of(finding: Finding) -> int:
    """Return the place of a finding's group: proven, predicted, a limit only, tried in vain."""
    if finding.proof is not None:
        return 3 if finding.unproven else 0
    return 2 if finding.at_most else 1


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One sequence of a model.

    Attributes:
        sequence: Latency and place.
        origins: Layers of the model that it computes; empty for a node that the runtime added.
        name: Names of these layers; the name of the node if it computes none.
        executed: Name in the executed graph; empty for the model's own graph.
        operator: Operators.
        fused: Operators of the model's own layers, if they differ.
        reads: Types of the activations that it reads, and of its largest weight.
        writes: Types of its outputs.
        count: Number of occurrences of its brick in the model.
        roof: Roofline of its brick; None if it is unknown.
        measurement: Measurement of its brick; None without one.
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


def layer_rows(section: Section) -> Iterator[LayerRow]:
    """Yield the sequences of a model in order; nothing if it could not be decomposed."""
    model, entry = section.model, section.estimate
    if model is None:
        return
    counts: dict[str, int] = {}
    for part in model.sequences:
        counts[part.key] = counts.get(part.key, 0) + 1
    roofs = {} if entry.roofline.bricks is None else {row.key: row for row in entry.roofline.bricks.layers}
    shapes: dict[str, tuple[str, str]] = {}
    bricks = section.bricks
    for sequence, part in zip(entry.parts.sequences, model.sequences, strict=True):
        origins = _origins(model, part)
        original = " + ".join(layer.name for layer in origins)
        executed = " + ".join(sequence.names)
        operator, fused = "+".join(sequence.op_types), "+".join(layer.op_type for layer in origins)
        if part.key not in shapes:
            shapes[part.key] = _reads(model.graph, part), _types(model.graph, part.outputs)
        reads, writes = shapes[part.key]
        yield LayerRow(
            sequence=sequence,
            origins=tuple(origins),
            name=original or executed,
            executed="" if original in {"", executed} else executed,
            operator=operator,
            fused="" if fused == operator else fused,
            reads=reads,
            writes=writes,
            count=counts[part.key],
            roof=roofs.get(part.key),
            measurement=bricks.get(part.key),
        )


def _origins(model: Decomposition, part: LayerSequence) -> list[Layer]:
    """Return the model's own layers that a sequence computes."""
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
