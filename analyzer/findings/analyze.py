"""Analyse models: run every analysis on every model, and prove the findings on request."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Unpack

from ...bricks.decomposition import Failed
from ...constructor.choice import Choice, Query
from ...constructor.construction import construct, failed
from ...constructor.remedies import Task
from ...constructor.result import Estimate
from ...db import Conditions, Store
from ...db.values import NATIVE
from ...errors import DlbricksError, MachineBusy, UsageError, unforeseen
from ...generator.decomposition.cut import Cut
from ...generator.decomposition.decompose import Model, decompose, source_of
from ...generator.machine.lock import work_clock
from ...generator.machine.system import probe_system
from ...generator.progress import Progress, ProgressCallback, Stage
from ...tabular import Records, Row, Tabular, fields, record_of
from ..estimation.query import ChosenStack, QueryFields, asked, chosen_stack, executes_as_written
from ..estimation.reading import read_evidence, request_of
from ..shell import shell_command, with_command
from .analysed_model import AnalysedModel, ColdStart, cold_start_in, latency_of
from .analyses import quantisation, runtime_settings, slow_kernels, trials
from .finding import (
    ALL_REMEDIES,
    BRICKS,
    LATE,
    LATENCY,
    LONGER,
    MANUAL,
    MINIMUM_SHARE,
    REWRITES,
    Analysis,
    Finding,
    Joint,
    joint_of,
    with_tried_interval,
)
from .improve import rewrite_findings
from .proof import Proving, Workbench
from .stored_proofs import (
    Tried,
    saves_more,
    store_proofs,
    stored_proofs,
    together,
    was_tried,
    was_unable,
)

# The analyses, in the order in which they are asked.


ANALYSES: tuple[Analysis, ...] = (
    quantisation.ANALYSIS,
    quantisation.DYNAMIC_CONVOLUTIONS,
    quantisation.ACCURACY_LEVEL,
    slow_kernels.SLOW_KERNELS,
    slow_kernels.ROOFLINE,
    runtime_settings.DENORMALS,
    trials.ALTERNATIVES,
    trials.BATCH,
    runtime_settings.THREADS,
    runtime_settings.BRANCHES,
    runtime_settings.INSERTED,
)


_REWRITES_S = 30.0
"""Seconds for the rewrites of one model."""


_OF_FINDING = (
    "kind", "title", "layers", "current_ms", "achievable_ms", "saving_ms", "ci95_ms", "share", "proven_ms",
    "proven_share", "unproven", "at_most",
)  # fmt: skip
"""Fields of a finding in its flat row."""


@dataclass(frozen=True, slots=True)
class ModelFindings:
    """The missed optimisations of one model.

    Attributes:
        estimate: Its latency, by layer.
        findings: Findings with a saving, the largest first: proven, else predicted.
        tried: Findings without a saving when tried, or that could not be tried.
        unasked: Analyses that could not run, and trials without time, each with the reason.
        untried: Analyses that could not run, and trials without time. Without proofs: all untried remedies.
        cold_start: Time to load and of the first run; None if it is not stored.
        error: Why the model could not be analysed.
    """

    estimate: Estimate
    findings: tuple[Finding, ...] = ()
    tried: tuple[Finding, ...] = ()
    unasked: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()
    cold_start: ColdStart | None = None
    error: str | None = None

    @property
    def name(self) -> str:
        """The model."""
        return self.estimate.name

    @property
    def latency_ms(self) -> float | None:
        """The latency that all savings refer to: measured, else estimated."""
        return latency_of(self.estimate)

    @property
    def latency_ci95_ms(self) -> tuple[float, float] | None:
        """Its interval."""
        truth, latency = self.estimate.truth, self.estimate.latency
        return latency.ci95_ms if truth.ci95_ms is None else truth.ci95_ms

    @property
    def basis(self) -> str | None:
        """``measured``, or ``estimate`` for an unmeasured model; None if the latency is unknown."""
        if self.latency_ms is None:
            return None
        return "estimate" if self.estimate.truth.ms is None else "measured"

    @property
    def remedies(self) -> tuple[Task, ...]:
        """Tasks that measure the missing data."""
        return tuple(dict.fromkeys(brick.remedy for brick in self.estimate.parts.missing if brick.remedy))

    @property
    def complete(self) -> bool:
        """True if every analysis could run."""
        return self.error is None and not self.unasked

    @property
    def largest_share(self) -> float:
        """The largest saving of one finding, as a share; 0 without findings."""
        return max((share_of(finding) for finding in self.findings if not finding.at_most), default=0.0)

    @property
    def joint(self) -> Joint | None:
        """The joint saving of all proven findings; None without one."""
        tried = (finding.proof.before_ms for finding in self.findings if finding.proof is not None)
        return joint_of(self.findings, self.latency_ms or next(tried, None))

    def cells(self, finding: Finding) -> Row:
        """One of its findings as a flat row."""
        proof, record = finding.proof, finding.record()
        return {
            "name": self.name,
            **{name: record[name] for name in _OF_FINDING},
            "remedy": finding.remedy.text,
            "artefact": None if proof is None else proof.artefact,
        }

    def record(self) -> Row:
        """As a JSON object."""
        combination = self.estimate.place if self.error is None else Query()
        return {
            **record_of(self, fields("name latency_ms latency_ci95_ms basis")),
            **asdict(combination),
            **record_of(self, fields("findings tried unasked untried cold_start")),
            "commands": [shell_command(task) for task in self.remedies],
            **record_of(self, fields("error joint")),
        }


@dataclass(frozen=True, slots=True)
class AnalyzeReport(Tabular):
    """The missed optimisations of several models.

    Attributes:
        rows: One per model, in the given order.
        minimum_share: Smallest share of a finding.
    """

    ANSWER = "report.answers.findings.analyze_answer"

    rows: tuple[ModelFindings, ...]
    minimum_share: float = MINIMUM_SHARE

    @property
    def complete(self) -> bool:
        """True if every analysis could run on every model."""
        return all(row.complete for row in self.rows)

    def records(self) -> Records:
        """Return one row per model; flat rows are one per finding, unsuccessful trials included."""
        of_model = ("latency_ms", "basis", "system", "stack", "threads", "dtype")
        records = [row.record() for row in self.rows]
        flat = [
            {**{name: record[name] for name in of_model}, **row.cells(finding), "evidence": finding.evidence}
            for row, record in zip(self.rows, records, strict=True)
            for finding in (*row.findings, *row.tried)
        ]
        return Records(records, {"minimum_share": self.minimum_share}, flat)


def share_of(finding: Finding) -> float:
    """Return the share of the model that a finding saves: proven, else predicted."""
    return finding.share if finding.proven_share is None else finding.proven_share


def analyze(
    models: Sequence[Model | Estimate],
    *,
    store: Store,
    query: Query | None = None,
    minimum_share: float = MINIMUM_SHARE,
    prove: bool = False,
    again: bool = True,
    write: Path | None = None,
    visits: int = 36,
    processes: int = 4,
    until: float = math.inf,
    progress: ProgressCallback | None = None,
    **fields: Unpack[QueryFields],
) -> AnalyzeReport:
    """Find missed optimisations of models on one system and stack, from stored measurements; prove them on request.

    Args:
        models: The models, from ``find_models``: a worker loads each for its executed graph. Or estimates of models
            that were decomposed along that graph, so that no measurement is read again.
        store: Database of latencies and proofs. Bricks of the executed graph give the latency of every operator
            (``generate`` with ``graph="runtime"``, then ``run``). Stored proofs are shown again. Open for writing with
            ``prove``.
        query: Selects stored measurements.
        minimum_share: Findings with a smaller share of the model are left out.
        prove: Try every remedy that can be applied: original and changed model alternate. The database keeps the
            results.
        again: Also try remedies with stored results; False: only remedies that were not tried.
        write: Folder for improved model files with a proven saving; needs ``prove``.
        visits: Visits of each side in one proof.
        processes: Fresh workers of one proof.
        until: End of analyses and proofs on the ``work_clock``; the answer contains the findings so far.
        progress: Called between visits.
        **fields: Fields of a ``Query``; they replace fields of ``query``.

    Raises:
        AmbiguousQuery: Several stored combinations match; the message lists them.
        UsageError: The system or stack is unknown, or ``write`` without ``prove``.
        BackendUnavailable: Nothing is stored, and the runtime is not installed.
        MachineBusy: A proof is requested, and another process is measuring.
        StoreError: The database cannot be read.

    Example:
        >>> from dlbricks.db import Store
        >>> from dlbricks.models import find_models
        >>> with Store.open("sqlite://") as store:
        ...     (row,) = analyze(find_models(["squeezenet"]), store=store).rows
        >>> row.findings, row.latency_ms, row.complete
        ((), None, False)
    """
    if write is not None and not prove:
        raise UsageError("improved models are written only where they are proven", remedy="add --prove")
    estimates = [model for model in models if isinstance(model, Estimate)]
    rest = [model for model in models if not isinstance(model, Estimate)]
    chosen: ChosenStack | None = None
    if rest:
        constructed, chosen = _estimates(rest, store, asked(query, fields), prove=prove)
        estimates += constructed
    how = Proving(write, visits, processes, until, progress, minimum_share, again)
    rows = [_row(estimate, store, how, chosen, prove=prove) for estimate in estimates]
    return AnalyzeReport(tuple(rows), minimum_share)


def _estimates(
    models: Sequence[Model], store: Store, query: Query, *, prove: bool
) -> tuple[list[Estimate], ChosenStack]:
    """Return the estimates of models along the executed graph, and the stack of a run here."""
    chosen = chosen_stack(store, query)
    written = executes_as_written(chosen.stack)
    cut = Cut(1) if written else Cut(1).of("runtime", chosen.stack, chosen.threads)
    if chosen.why_not is not None and (prove or not written):  # else the model is cut as written
        request = request_of(None, store, query, cut)
        return [failed(Failed(source_of(model), chosen.why_not), request) for model in models], chosen
    if chosen.why_not is None and chosen.stack.key in store.stacks():
        query = replace(query, stack=chosen.stack.key)
    decompositions = decompose(models, cut)
    evidence = read_evidence(store, decompositions, query, cut)
    return [construct(model, evidence) for model in decompositions], chosen


def _unstored(chosen: ChosenStack) -> Choice:
    """Return the stack that a run here would measure with."""
    system = probe_system()
    return Choice(system.key, chosen.stack.key, system, chosen.stack, Conditions(threads=chosen.threads), 0)


def _row(estimate: Estimate, store: Store, how: Proving, chosen: ChosenStack | None, *, prove: bool) -> ModelFindings:
    """Analyse one model.

    Args:
        estimate: Its latency.
        store: Database with other ways to run it.
        how: The smallest saving, and how remedies are tried.
        chosen: The stack of a run here; None if the estimate has it.
        prove: Try remedies.
    """
    row = ModelFindings(estimate, error=estimate.error)
    if estimate.error is not None:
        return row
    subject = AnalysedModel(estimate, store)
    choice = subject.choice or (_unstored(chosen) if chosen is not None and chosen.why_not is None else None)
    row = replace(row, cold_start=cold_start_in(subject))
    lacking = _lacking(subject)
    findings: list[Finding] = []
    ideas: list[Finding] = []
    unasked, late = _Unasked(), list[str]()
    known = None if choice is None else stored_proofs(store, subject.source, subject.graph.key, choice)
    known = None if known is None else known.of(subject.latency_ms)
    if known is not None and not how.again and not set(known.untried) - {LONGER}:
        prove = False
    begun, progress = time.monotonic(), how.progress
    for done, analysis in enumerate(ANALYSES):
        if progress is not None:
            elapsed_s = time.monotonic() - begun
            label = f"{estimate.name}: {analysis.name.replace('_', ' ')}"
            progress(Progress(Stage.ANALYSE, done, len(ANALYSES), label, elapsed_s))
        if work_clock() >= how.until:
            late.append(analysis.name)
            continue
        try:
            if not analysis.requires & lacking.keys():
                shown = (finding for finding in analysis.run(subject) if _shown(finding, how.minimum_share))
                findings += map(with_tried_interval, shown)
            if prove:
                ideas += analysis.ideas(subject)
        except DlbricksError as error:
            unasked.add(analysis.name, f"{analysis.name}: {' '.join(str(error).split())}")
        except Exception as error:  # noqa: BLE001
            # A boundary: an analysis may break on an unforeseen model; the findings of the others stay.
            unasked.add(analysis.name, unforeseen(analysis.name, error, "asked"))
    unasked.late(late)
    for reason in lacking.values():
        unasked.add(None if reason.final else "analyses of single layers", reason.text)
    findings = [
        replace(finding, unproven=MANUAL) if finding.remedy.action == "manual" else finding
        for finding in shown_once(findings)
    ]
    if not prove or choice is None:
        if known is not None:
            findings = together(known.findings, findings)
        untried = tuple(late) or (ALL_REMEDIES if known is None else known.untried)
        return replace(_split(row, findings, how), unasked=tuple(unasked.reasons), untried=untried)
    subject.choice = choice
    return _proven(row, subject, (findings, ideas, unasked), how, known)


def _split(row: ModelFindings, findings: Sequence[Finding], how: Proving) -> ModelFindings:
    """Return a row with the findings that save something, and the findings that were tried in vain."""

    def helps(finding: Finding) -> bool:
        if finding.proof is None:
            return not math.isnan(finding.share)  # a prediction, and no idea that could not be tried
        return finding.unproven is None and share_of(finding) >= how.minimum_share

    vain = tuple(finding for finding in findings if not helps(finding))
    return replace(row, findings=_sorted([finding for finding in findings if helps(finding)]), tried=vain)


def _proven(
    row: ModelFindings,
    subject: AnalysedModel,
    begun: tuple[list[Finding], list[Finding], _Unasked],
    how: Proving,
    known: Tried | None,
) -> ModelFindings:
    """Search rewrites and try remedies of one model, and store the results.

    Args:
        row: The model so far.
        subject: The model, with the conditions of its proofs.
        begun: Findings, ideas without a finding, and analyses that could not run.
        how: How remedies are tried.
        known: Stored results.
    """
    findings, ideas, unasked = begun
    kinds = {finding.kind for finding in findings}
    rewrites, new = [] if known is None else known.improved, list[Finding]()
    # If bricks do not explain the model, or its file gives a reason, the likeliest cause is tried before all else.
    ideas = [idea for idea in ideas if idea.kind not in kinds]
    trials = [idea for idea in ideas if idea.kind == runtime_settings.DENORMALS.name]
    first = trials if trials and (subject.estimate.far or subject.denormal_layers) else []
    rest = [idea for idea in ideas if idea not in first]
    late, left = list[str](), ""

    def open_ones(some: Sequence[Finding]) -> list[Finding]:
        return [finding for finding in some if how.again or known is None or not known.has(finding)]

    try:
        with ExitStack() as resources:
            folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="dlbricks-proof-")))
            assert subject.choice is not None  # noqa: S101  # the caller set it
            workbench = Workbench(subject.source, subject.choice, folder, how, latency_ms=subject.latency_ms)
            new = workbench.attempt(open_ones(first), least=how.minimum_share)
            rewrites, left = _rewrites(subject, how, known)
            late += [REWRITES] if left == REWRITES else []
            findings = workbench.prove(open_ones(_sorted(findings)))
            kinds = {finding.kind for finding in rewrites if finding.unproven is None}
            new = [finding for finding in new if finding.kind not in kinds]
            rest = [idea for idea in open_ones(rest) if idea.kind not in kinds]
            new += workbench.attempt(rest, least=how.minimum_share)
            late += [finding.kind for finding in (*findings, *new) if finding.unproven == LATE]
            new = [finding for finding in new if finding.unproven != LATE]
    except MachineBusy:
        raise
    except (DlbricksError, OSError) as error:
        unasked.add("some remedies", f"not everything could be tried: {' '.join(str(error).split())}")
    unasked.late(late)
    seen = [*findings, *rewrites, *new]
    earlier = [] if known is None else known.others  # remedies that were not tried again
    row = _split(row, together([*filter(was_tried, seen)], earlier, seen), how)
    unable = [finding.kind for finding in seen if was_unable(finding)]
    untried = (*unasked.names, *unable, *([LONGER] if left == LONGER else []))
    row = replace(row, unasked=tuple(unasked.reasons), untried=untried)
    assert subject.choice is not None  # noqa: S101  # the caller set it
    tried = Tried(tuple(filter(was_tried, (*row.findings, *row.tried))), row.untried)
    store_proofs(subject.store, subject.source, subject.graph.key, subject.choice, tried)
    return row


def _rewrites(subject: AnalysedModel, proving: Proving, known: Tried | None) -> tuple[list[Finding], str]:
    """Search and prove rewrites, in ONNX Runtime on the CPU and the model's own precision only.

    Stored rewrites stay if a new search is not requested, or saves less: it may have had less time.

    Returns:
        The rewrites, and the name of the remaining work: ``REWRITES`` if the search had less than its full time,
        ``LONGER`` if its full time was not enough; else an empty text.
    """
    stored = [] if known is None else known.improved
    if known is not None and not proving.again and REWRITES not in known.untried:
        return stored, LONGER if LONGER in known.untried else ""
    assert subject.choice is not None  # noqa: S101  # the caller set it
    stack, conditions = subject.choice.stack, subject.choice.conditions
    left_s = min(_REWRITES_S, proving.until - work_clock())
    plain = (stack.backend, stack.device) == ("onnxruntime", "cpu") and conditions.dtype in {NATIVE, "float32"}
    if not plain or left_s <= 0:
        return stored, REWRITES if plain else ""
    proven, vain, complete = rewrite_findings(
        subject.source, subject.latency_ms, threads=conditions.threads, budget_s=left_s,
        write=proving.write, database=str(subject.store.place), progress=proving.progress,
    )  # fmt: skip
    best = stored if proving.write is None and saves_more(stored, proven) else [*proven, *vain]
    return best, "" if complete else LONGER if left_s >= _REWRITES_S else REWRITES


class _Unasked:
    """Analyses and trials of a model that did not run.

    Attributes:
        reasons: One text for each, for the answer.
        names: Names of the analyses and trials that another call may run.
    """

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.names: list[str] = []

    def add(self, name: str | None, reason: str) -> None:
        """Add one; without a name, no other call can run it."""
        self.reasons.append(reason)
        self.names += [] if name is None else [name]

    def late(self, names: Iterable[str]) -> None:
        """Add analyses and trials for which no time was left."""
        for name in names:
            self.add(name, f"{name}: {LATE}")


@dataclass(frozen=True, slots=True)
class _Reason:
    """Why analyses lack data; final if no measurement would give it."""

    text: str
    final: bool = False


def _lacking(subject: AnalysedModel) -> dict[str, _Reason]:
    """Return the missing requirements of analyses, each with the reason."""
    lacking = {}
    if subject.latency_ms is None:
        why = with_command(subject.estimate.truth.reason, subject.estimate)
        lacking[LATENCY] = _Reason(why or "neither the model nor its bricks are measured")
    missing = subject.estimate.parts.missing
    vain = [brick for brick in missing if brick.failed]
    if not subject.estimate.parts.sequences:
        lacking[BRICKS] = _Reason("none of its layers can be measured alone", final=True)
    elif len(vain) < len(missing):
        lacking[BRICKS] = _Reason(f"of what is executed, bricks are not measured: {len(missing) - len(vain)}")
    elif vain:
        parts = "1 part" if len(vain) == 1 else f"{len(vain)} parts"
        reason = f"{parts} of what is executed cannot be measured alone ({vain[0].layers[0]}: {vain[0].reason})"
        lacking[BRICKS] = _Reason(reason, final=True)
    return lacking


def _shown(finding: Finding, minimum_share: float) -> bool:
    """Return True if a finding saves enough, and more than by chance."""
    return finding.share >= minimum_share and (finding.ci95_ms is None or finding.ci95_ms[0] > 0)


def shown_once(findings: Sequence[Finding]) -> list[Finding]:
    """Drop slow kernels if other findings explain all of their layers."""
    explained = {
        name for finding in findings if finding.kind != slow_kernels.SLOW_KERNELS.name for name in finding.layers
    }
    return [
        finding
        for finding in findings
        if finding.kind != slow_kernels.SLOW_KERNELS.name or not explained.issuperset(finding.layers)
    ]


def _sorted(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Sort findings: the largest saving first, upper limits last."""
    return tuple(sorted(findings, key=lambda finding: (finding.at_most, -share_of(finding))))
