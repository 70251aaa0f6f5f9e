"""One missed optimisation: its place, saving, evidence and remedy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from ...tabular import Row
from .analysed_model import AnalysedModel, Node, Spent

MINIMUM_SHARE = 0.01
"""Share of the model's latency that a finding saves at least."""

LATE = "the time was up"
"""Why a remedy was not tried, or not often enough."""

MANUAL = "nothing here applies this remedy by itself"
"""Why a remedy for people is not tried."""


IMPROVE = "improve"
"""Action of the remedy of a rewrite."""

ALL_REMEDIES = ("every remedy",)
"""What was not tried of a model of which nothing was."""

REWRITES = "rewrites"
"""Name of the search for rewrites of the file among what was not tried."""

LONGER = "rewrites that take longer to find"
"""Name of what a search for rewrites left that had all of its time: only ``improve`` searches longer."""

UNABLE = "it could not be tried: "
"""Begin of the reason why a trial failed: it may succeed at another time."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """The remedy of a finding.

    Attributes:
        action: Name of an action that ``proof`` can apply (``session_option``, ``threads``, ``precision``,
            ``backend``); ``manual`` for an action by a person.
        text: One sentence for people.
        settings: Arguments of the action: names and values of options, a number of threads, a backend, a precision.
        code: Lines to paste: a command, or Python; may be empty.
    """

    action: str
    text: str
    settings: Mapping[str, str] = field(default_factory=dict)
    code: str = ""


_LINES = {
    ("denormal_as_zero", "on"): 'options.add_session_config_entry("session.set_denormal_as_zero", "1")  '
    "# in the first session of a process",
    ("optimization", "extended"): "options.graph_optimization_level = "
    "onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED",
    ("optimization", "basic"): "options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC",
    ("arena", "off"): "options.enable_cpu_mem_arena = False",
    ("execution", "parallel"): "options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL",
}
_NUMBERS = {"inter_op": "inter_op_num_threads", "threads": "intra_op_num_threads"}
"""Python of settings of ONNX Runtime."""


def lines_of(settings: Mapping[str, str]) -> str:
    """Return the lines of Python that set options of ONNX Runtime, to paste; nothing for other options."""
    lines = [_LINES.get(setting, "") for setting in settings.items()]
    for place, (name, value) in enumerate(settings.items()):
        if name in _NUMBERS and value.isdecimal():
            lines[place] = f"options.{_NUMBERS[name]} = {value}"
    return "\n".join(filter(None, lines))


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of trying a remedy: original and changed model alternated in one run.

    Attributes:
        before_ms: Mean of the original in that run.
        after_ms: Mean of the changed model in that run.
        saving_ms: Their paired difference.
        ci95_ms: Its interval.
        largest_error: Largest difference of an output from the original's, relative to that output's largest value.
        artefact: The improved file, if one was written.
        together: Share of the model that all rewrites of this improved file save together, with its interval; None for
            other remedies.
    """

    before_ms: float
    after_ms: float
    saving_ms: float
    ci95_ms: tuple[float, float]
    largest_error: float
    artefact: str | None = None
    together: tuple[float, float, float] | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A missed optimisation of one model. Without a predicted saving it is an idea: only a trial shows what it saves.

    Attributes:
        kind: Kind of the finding: the name of its analysis, of a remedy, or of the engine of a rewrite.
        title: The missed optimisation, in one line.
        remedy: The remedy.
        evidence: Reasons, each a sentence with numbers.
        layers: Names of the affected source layers, in the model's order; empty for the whole model.
        keys: Keys of the bricks in the database behind the numbers.
        current_ms: Their present latency; NaN for an idea, as are the next two and ``share``.
        achievable_ms: Their achievable latency.
        saving_ms: The difference.
        ci95_ms: Its interval; None with a single value.
        share: ``saving_ms`` of the model's latency, 0 to 1.
        proof: Result of a trial; None if it was not tried.
        unproven: Why it was not tried, or why the trial failed; None after a trial.
        at_most: The saving is an upper limit; False after a successful trial.
    """

    kind: str
    title: str
    remedy: Remedy
    evidence: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    current_ms: float = math.nan
    achievable_ms: float = math.nan
    saving_ms: float = math.nan
    ci95_ms: tuple[float, float] | None = None
    share: float = math.nan
    proof: Proof | None = None
    unproven: str | None = None
    at_most: bool = False

    @property
    def proven_share(self) -> float | None:
        """The share of the model that the trial saved; None if it was not tried. Negative if it was slower."""
        return None if self.proof is None else self.proof.saving_ms / self.proof.before_ms

    @property
    def proven_ms(self) -> float | None:
        """The same of the latency that ``saving_ms`` is of: the machine may have been slower when it was tried."""
        if self.proof is None or self.proven_share is None:
            return None
        latency_ms = self.saving_ms / self.share if self.share else self.proof.before_ms
        return self.proven_share * latency_ms

    def record(self) -> Row:
        """As a JSON object."""
        return asdict(self) | {"proven_ms": self.proven_ms, "proven_share": self.proven_share}


# What an analysis is: a question about a model, what must be known to answer it, and how it is answered.


BRICKS = "bricks"
"""Requirement: latencies of the model's executed operators."""

LATENCY = "latency"
"""Requirement: the model's latency."""


_TRIED = frozenset({"threads", "options", "framework"})
"""Kinds whose intervals contained the proven saving on models of many families (``benchmarks/proofs.py``)."""


def _nothing(_subject: AnalysedModel) -> Iterable[Finding]:
    return ()


@dataclass(frozen=True, slots=True)
class Analysis:
    """One analysis.

    Attributes:
        name: Name of the analysis; usually the kind of its findings.
        requires: Required data: ``BRICKS``, ``LATENCY``.
        run: Returns its findings.
        ideas: Returns remedies to try without a prediction.
    """

    name: str
    requires: frozenset[str] = frozenset({BRICKS, LATENCY})
    run: Callable[[AnalysedModel], Iterable[Finding]] = field(default=_nothing)
    ideas: Callable[[AnalysedModel], Iterable[Finding]] = field(default=_nothing)


def finding_of(subject: AnalysedModel, idea: Finding, current: Spent, saving: Spent) -> Finding:
    """Return the finding of an idea with a predicted saving.

    Args:
        subject: The model; its latency is known.
        idea: The idea.
        current: The latency of the affected layers.
        saving: The part of it that the remedy would save.
    """
    ends = saving.ms - saving.half_ms, saving.ms + saving.half_ms
    return replace(saving_of(subject, idea, saving.ms, ends, current.ms), keys=current.keys)


def saving_of(
    subject: AnalysedModel,
    idea: Finding,
    saving_ms: float,
    ci95_ms: tuple[float, float],
    current_ms: float | None = None,
) -> Finding:
    """Return the finding of an idea that saves a part of the latency of some layers; None: of the whole model."""
    assert subject.latency_ms is not None  # noqa: S101  # analyses require it
    current = subject.latency_ms if current_ms is None else current_ms
    share = saving_ms / subject.latency_ms
    return replace(
        idea, current_ms=current, achievable_ms=current - saving_ms, saving_ms=saving_ms, ci95_ms=ci95_ms, share=share
    )


def with_tried_interval(finding: Finding) -> Finding:
    """Return a prediction without its interval if the savings of its kind were never compared with proven ones.

    A bound (``at_most``) predicts nothing and keeps its interval.
    """
    return finding if finding.at_most or finding.kind in _TRIED else replace(finding, ci95_ms=None)


def spent_by(nodes: Iterable[Node]) -> str:
    """Describe executed operators with their latencies, for an evidence."""
    return ", ".join(f"{node.layer.op_type} {node.ms:.3g} ms" for node in nodes if node.ms is not None)


# What all proven findings of a model give together.


@dataclass(frozen=True, slots=True)
class Joint:
    """The joint saving of proven findings.

    Attributes:
        saving_ms: Measured saving of all rewrites in one model, or of the best setting if that saves more.
        ci95_ms: Its interval.
        share: ``saving_ms`` of the model's latency.
        findings: Indices of these findings in the given order.
    """

    saving_ms: float
    ci95_ms: tuple[float, float]
    share: float
    findings: tuple[int, ...]

    def record(self) -> Row:
        """As a JSON object."""
        return asdict(self)


def joint_of(findings: Sequence[Finding], latency_ms: float | None) -> Joint | None:
    """Return the joint saving of proven findings; None without any.

    Rewrites were measured together in one model. Their saving at another number of threads or precision is unknown, so
    that a setting counts alone. Predictions do not count.

    Args:
        findings: Findings of one model.
        latency_ms: The latency that their savings refer to.
    """
    if not latency_ms:
        return None
    options = list[Joint]()
    for number, finding in enumerate(findings):
        proof = finding.proof
        if proof is None or finding.unproven is not None:
            continue
        if proof.together is None:
            members: tuple[int, ...] = (number,)
            share, low, high = (saved / proof.before_ms for saved in (proof.saving_ms, *proof.ci95_ms))
        else:
            members = tuple(index for index, other in enumerate(findings) if _is_rewrite(other))
            share, low, high = proof.together
        options.append(Joint(share * latency_ms, (low * latency_ms, high * latency_ms), share, members))
    return max(options, key=lambda joint: joint.share, default=None)


def _is_rewrite(finding: Finding) -> bool:
    return finding.proof is not None and finding.unproven is None and finding.proof.together is not None
