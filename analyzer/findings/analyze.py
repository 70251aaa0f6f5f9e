"""What models miss: every analysis on every model, and proofs where they are wanted."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from ...bricks.inference.shapes import ShapeOracle
from ...constructor.choice import Choice
from ...constructor.decomposition import Decomposition
from ...constructor.remedies import Task
from ...db import Conditions, Store
from ...errors import DlbricksError, MachineBusy, UsageError
from ...generator.decomposition.cutter import Cut
from ...generator.decomposition.model_bricks import unforeseen
from ...generator.decomposition.oracle import WorkerOracle
from ...generator.machine.system import probe_system
from ...generator.progress import ProgressCallback
from ...models import ModelSource
from ...tabular import Records, Tabular
from ..estimation.cutting import cut_of, readable_of
from ..estimation.estimate import estimates_under
from ..estimation.query import Query, QueryFields, asked, choose
from ..estimation.runtime import Place, chosen_stack, executes_as_written
from ..estimation.survey import decompose_all
from ..shell import spelled, with_command
from .analyses import slow_kernels
from .analysis import BRICKS, LATENCY, Idea
from .cold_start import ColdStart, cold_start_in
from .finding import Finding
from .joint import Joint, joint_of
from .proof.proof import Workbench
from .registry import ANALYSES
from .subject import Subject

__all__ = ["AnalyzeReport", "ModelFindings", "analyze", "shown_once"]

MINIMUM_SHARE = 0.01
"""Share of the model's latency that a finding saves at least."""


_LATE = "the time was up"

_OF_MODEL = ("latency_ms", "basis", "system", "stack", "threads", "dtype")
_OF_FINDING = (
    "kind", "title", "layers", "current_ms", "achievable_ms", "saving_ms", "ci95_ms", "share", "proven_ms",
    "proven_share", "unproven", "at_most",
)  # fmt: skip
"""Fields of a model, and of a finding, that stand in a flat row of it."""


@dataclass(frozen=True, slots=True)
class ModelFindings:
    """What one model misses.

    Attributes:
        name: The model.
        latency_ms: What it takes: the one latency that all savings are of.
        latency_ci95_ms: Its interval.
        basis: ``measured``, or ``estimate`` where the model itself is not measured.
        system: Key of the system; None where nothing is stored.
        stack: Key of the stack; likewise.
        backend: Its backend.
        device: Its device.
        threads: Threads.
        cache: Cache state.
        dtype: Precision.
        findings: What would save something, the largest saving first: by what was proven, else as predicted.
        tried: What was tried and saves nothing, or could not be tried.
        unasked: Analyses that could not be asked, each with the reason.
        cold_start: What loading and the first run cost; None where that is not stored.
        remedies: What would measure what is missing.
        error: Why the model could not be analysed.
    """

    name: str
    latency_ms: float | None = None
    latency_ci95_ms: tuple[float, float] | None = None
    basis: str | None = None
    system: str | None = None
    stack: str | None = None
    backend: str | None = None
    device: str | None = None
    threads: int | None = None
    cache: str | None = None
    dtype: str | None = None
    findings: tuple[Finding, ...] = ()
    tried: tuple[Finding, ...] = ()
    unasked: tuple[str, ...] = ()
    cold_start: ColdStart | None = None
    remedies: tuple[Task, ...] = ()
    error: str | None = None

    @property
    def complete(self) -> bool:
        """Whether every analysis could be asked."""
        return self.error is None and not self.unasked

    @property
    def largest_share(self) -> float:
        """The largest share that one finding saves; 0 where there is none."""
        return max((share_of(one) for one in self.findings if not one.at_most), default=0.0)

    @property
    def joint(self) -> Joint | None:
        """What all findings would give together; None where there are none."""
        return joint_of(self.findings, self.latency_ms)

    def cells(self, found: Finding) -> dict[str, Any]:
        """One of its findings as a flat row."""
        proof = found.proof
        return {
            "name": self.name,
            **{name: getattr(found, name) for name in _OF_FINDING},
            "remedy": found.remedy.text,
            "artefact": None if proof is None else proof.artefact,
        }

    def record(self) -> dict[str, Any]:
        """As a JSON object."""
        record = spelled({name: getattr(self, name) for name in self.__slots__}, remedies="commands")
        record |= {name: [one.record() for one in getattr(self, name)] for name in ("findings", "tried")}
        parts = {"joint": self.joint, "cold_start": self.cold_start}
        return record | {name: None if one is None else one.record() for name, one in parts.items()}


@dataclass(frozen=True, slots=True)
class AnalyzeReport(Tabular):
    """What some models miss.

    Attributes:
        rows: One per model, in the order given.
        minimum_share: Findings below it are not among them.
    """

    rows: tuple[ModelFindings, ...]
    minimum_share: float = MINIMUM_SHARE

    @property
    def complete(self) -> bool:
        """Whether every analysis could be asked of every model."""
        return all(row.complete for row in self.rows)

    def records(self) -> Records:
        """One row per model; flat, one per finding, those that were tried in vain included."""
        flat = [
            {name: getattr(row, name) for name in _OF_MODEL} | row.cells(found) | {"evidence": found.evidence}
            for row in self.rows
            for found in (*row.findings, *row.tried)
        ]
        return Records([row.record() for row in self.rows], {"minimum_share": self.minimum_share}, flat)


def share_of(found: Finding) -> float:
    """The share of the model that a finding saves: as proven, else as predicted."""
    return found.share if found.proven_share is None else found.proven_share


def analyze(
    models: Sequence[ModelSource],
    *,
    store: Store,
    query: Query | None = None,
    minimum_share: float = MINIMUM_SHARE,
    prove: bool = False,
    write: Path | None = None,
    visits: int = 36,
    processes: int = 2,
    until: float = math.inf,
    oracle: ShapeOracle | None = None,
    progress: ProgressCallback | None = None,
    **fields: Unpack[QueryFields],
) -> AnalyzeReport:
    """Find what models miss on one system and stack, from what is stored; and prove it where that is asked for.

    Args:
        models: The models, from ``find_models``. A worker loads each for the graph that the runtime executes.
        store: Where latencies are. The bricks of the executed graph show what every operator takes (``generate`` with
            ``graph="runtime"``, then ``run``).
        query: Which of the stored measurements.
        minimum_share: Findings that save less of the model are left out.
        prove: Try every remedy that can be applied, the model as it is and as it would be visited in turn.
        write: Folder for improved model files that were proven to save something; needs ``prove``.
        visits: Of each side in one proof.
        processes: Fresh workers of one proof.
        until: When no further proof begins, on the monotonic clock.
        oracle: Finds shapes that inference does not.
        progress: Called between visits.
        **fields: Fields of a ``Query``, in place of those of ``query``.

    Raises:
        AmbiguousQuery: Several stored combinations match; the message lists them.
        UsageError: There is no such system or stack, or ``write`` without ``prove``.
        BackendUnavailable: Nothing is stored, and the runtime is not installed.
        MachineBusy: A proof is wanted, and another process is measuring.
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
    query = asked(query, fields)
    place = chosen_stack(store, query)
    written = executes_as_written(place.stack)
    if place.why_not is not None and (prove or not written):  # what runs as it is written need not be here to be cut
        rows = [ModelFindings(source.name, error=place.why_not) for source in models]
        return AnalyzeReport(tuple(rows), minimum_share)
    cut = cut_of(Cut(1), "source") if written else cut_of(Cut(1), "runtime", place.stack, place.threads)
    if place.why_not is None and place.stack.key in store.stacks():
        query = replace(query, stack=place.stack.key)
    with WorkerOracle() as worker:
        shapes = oracle or worker
        found = decompose_all(models, cut, shapes)  # what a database kept of them has no constants
        readable = readable_of(models, found)
        keys = {part.key for model in readable for part in model.sequences}
        choice = choose(store, keys, query)
        estimates = iter(estimates_under(choice, readable, store=store, query=query, cut=cut, oracle=shapes))
    bench = _Bench(prove, write, visits, processes, minimum_share, until, progress)
    stacked = choice or (_unstored(place) if prove else None)
    rows = [
        _row(Subject(model, next(estimates), choice, store), stacked, bench)
        if isinstance(model, Decomposition)
        else ModelFindings(model.source.name, error=model.reason)
        for model in found
    ]
    return AnalyzeReport(tuple(rows), minimum_share)


@dataclass(frozen=True, slots=True)
class _Bench:
    """What is to be proven, and how."""

    prove: bool
    write: Path | None
    visits: int
    processes: int
    minimum_share: float
    until: float
    progress: ProgressCallback | None


def _unstored(place: Place) -> Choice:
    """What a run here would measure with."""
    system = probe_system()
    return Choice(system.key, place.stack.key, system, place.stack, Conditions(threads=place.threads), 0)


def _row(subject: Subject, choice: Choice | None, bench: _Bench) -> ModelFindings:
    estimate = subject.estimate
    row = ModelFindings(
        estimate.name,
        latency_ms=subject.latency_ms,
        latency_ci95_ms=estimate.ci95_ms if estimate.measured_ci95_ms is None else estimate.measured_ci95_ms,
        basis=subject.basis,
        system=estimate.system,
        stack=estimate.stack,
        backend=estimate.backend,
        device=estimate.device,
        threads=estimate.threads,
        cache=estimate.cache,
        dtype=estimate.dtype,
        cold_start=cold_start_in(subject),
        remedies=tuple(dict.fromkeys(one.remedy for one in estimate.missing if one.remedy)),
    )
    lacking = _lacking(subject)
    found: list[Finding] = []
    ideas: list[Idea] = []
    unasked = []
    for analysis in ANALYSES:
        try:
            if not analysis.requires & lacking.keys():
                found += [one for one in analysis.run(subject) if _shown(one, bench.minimum_share)]
            if bench.prove:
                ideas += analysis.ideas(subject)
        except DlbricksError as error:
            unasked.append(f"{analysis.name}: {' '.join(str(error).split())}")
        except Exception as error:  # noqa: BLE001
            # A boundary: an analysis may break on a model that nobody thought of; what the others found stays.
            unasked.append(unforeseen(analysis.name, error, "asked"))
    unasked += lacking.values()
    found = shown_once(found)
    if not bench.prove or choice is None:
        return replace(row, findings=_sorted(found), unasked=tuple(unasked))
    known = {one.kind for one in found}
    ideas = [one for one in ideas if one.kind not in known]
    subject.choice = subject.choice or choice
    try:
        with ExitStack() as resources:
            folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="dlbricks-proof-")))
            workbench = Workbench(
                subject.source, choice, folder, latency_ms=subject.latency_ms,
                write=bench.write, visits=bench.visits, processes=bench.processes, progress=bench.progress,
            )  # fmt: skip
            found = [
                workbench.prove(one) if time.monotonic() < bench.until else replace(one, unproven=_LATE)
                for one in _sorted(found)
            ]
            new = [workbench.attempt(one, least=bench.minimum_share) for one in ideas if time.monotonic() < bench.until]
    except MachineBusy:
        raise
    except (DlbricksError, OSError) as error:
        unasked.append(f"nothing could be tried: {' '.join(str(error).split())}")
        return replace(row, findings=_sorted(found), unasked=tuple(unasked))
    helps = [one for one in found if one.proof is None or one.unproven is None]
    helps += [one for one in new if one.proof and one.unproven is None]
    tried = [one for one in (*found, *new) if one not in helps]
    return replace(row, findings=_sorted(helps), tried=tuple(tried), unasked=tuple(unasked))


def _lacking(subject: Subject) -> dict[str, str]:
    """What analyses may require and is not stored, each with the reason."""
    lacking = {}
    if subject.latency_ms is None:
        why = with_command(subject.estimate.ratio_reason, subject.estimate)
        lacking[LATENCY] = why or "neither the model nor its bricks are measured"
    missing = len(subject.estimate.missing)
    if missing or not subject.estimate.sequences:
        lacking[BRICKS] = f"{missing} bricks of what is executed are not measured"
    return lacking


def _shown(found: Finding, minimum_share: float) -> bool:
    """Whether it is worth showing: it saves enough, and by more than chance."""
    return found.share >= minimum_share and (found.ci95_ms is None or found.ci95_ms[0] > 0)


def shown_once(found: Sequence[Finding]) -> list[Finding]:
    """Without slow kernels whose layers are all in findings that say what is wrong with them."""
    known = {name for one in found if one.kind != slow_kernels.ANALYSIS.name for name in one.layers}
    return [one for one in found if one.kind != slow_kernels.ANALYSIS.name or not known.issuperset(one.layers)]


def _sorted(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """The largest saving first; after them what could be saved at most."""
    return tuple(sorted(found, key=lambda one: (one.at_most, -share_of(one))))
