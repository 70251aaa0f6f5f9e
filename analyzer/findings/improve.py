"""Write a faster file of a model: prove rewrites for every input, time them and settings, keep the useful ones.

The search looks quickly, in one process. The proof of a saving is the gate's comparison (``measurement.trial``): old
and new alternate in fresh processes, and the process is the unit. A step without a proven saving is left out, and the
rest is timed again.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from ...bricks.decomposition import Failed
from ...bricks.graph.control import write_out
from ...db import Store
from ...db.values import Runtime
from ...errors import ModelError, WorkerError
from ...generator.backends.custom_ops import CUSTOM_OPS, asked, files_of
from ...generator.decomposition.cut import Cut
from ...generator.decomposition.decompose import decompose
from ...generator.decomposition.observation import run_as_given
from ...generator.machine.cores import physical_cores
from ...generator.machine.lock import machine_lock, work_clock
from ...generator.measurement.trial import Contender, Trial, TrialPair, place_of, try_out
from ...generator.network.export import as_file, refuse_itself, write_file
from ...generator.progress import ProgressCallback
from ...models import ModelSource, require_inputs
from ...models.source import file_bytes
from ...tabular import Records, Tabular, fields, record_of
from ..comparison.difference import FEWEST_PROCESSES, trial_levels
from ..rewriting.copies import CopiedOutput
from ..rewriting.process import Searching
from ..rewriting.search import Found, SearchRequest, Step, shorter_path, step_path
from ..setups import Setup, choice_here, settled
from ..shell import improve_command, model_words
from .finding import IMPROVE, LATE, MINIMUM_SHARE, REWRITES, Finding, Proof, Remedy, lines_of
from .stored_proofs import Tried, store_improvement, stored_proofs

_SEARCHED, _LEAST_SEARCHED, _LOOKED, _FIRST = 0.5, 0.2, 0.1, 0.6
"""Shares of the budget for the search, at most and at least, and for settings; share of the rest for the first
proof."""
_LEAST_SAVING = 0.01
"""Share that an improved model saves at least."""
_AS_GOOD = 0.8
"""Least share of a saving that remains if weak steps are left out, or if rewrites are added to a setting."""
_PROCESSES, _VISITS, _FEW_VISITS = 5, 12, 3
"""Fresh processes of a proof; visits of each side in one of them, at most and at least."""
_LEAST_LOOK_S = 2.0
"""Shortest time limit of a quick look, in seconds."""
_LOAD_S, _VISIT_S, _LEAST_VISIT_S, _PATIENCE, _NS_PER_S = 0.5, 0.05, 0.04, 1.3, 1e9
"""Seconds to load a model and of a visit, until they are known; least seconds of a visit, which repeats short models;
how much longer than planned a proof may take."""
_LOOKS = 1.25
"""Factor on the width of intervals, as in the gate, since the search has looked before."""
_QUICK_VISITS, _PROMISING = 6, 0.03
"""Visits of a quick look at a setting; share that it must save there to be proven."""
_LEAST_PROOF_S = 6.0
_LONGER = 4
"""The budget of the command that tries the rest, as a multiple."""

_DENORMALS = "denormal numbers as zero"
SETTINGS: Mapping[str, Mapping[str, str]] = {
    _DENORMALS: {"denormal_as_zero": "on"},
    "optimization level extended": {"optimization": "extended"},
    "optimization level basic": {"optimization": "basic"},
    "no memory arena": {"arena": "off"},
}
"""Settings of ONNX Runtime's sessions that are tried like rewrites, as options of the backend."""


@dataclass(frozen=True, slots=True)
class Proven:
    """The saving of a change.

    Attributes:
        before_ms: Latency before.
        after_ms: Latency after.
        saving: Share of the latency before.
        ci95: Its interval over processes.
    """

    before_ms: float
    after_ms: float
    saving: float
    ci95: tuple[float, float]

    @property
    def saves(self) -> bool:
        """True if all of the interval is a saving."""
        return self.ci95[0] > 0


@dataclass(frozen=True, slots=True)
class ProvenChange:
    """Rewrites of one kind in an improved model.

    Attributes:
        kind: ``engine: recognised pattern``.
        places: Number of rewrites.
        layers: Names of the layers of the model that are not needed any more.
        note: Details; the line of code of a setting.
        reason: Why it holds for every input: ``algebra``, ``order``, ``all numbers``, ``all values``, ``the same
            nodes``; ``setting`` for a setting of the runtime, which the file does not contain.
        proof: Its saving, relative to the model with the changes before it; None if the time was up.
    """

    kind: str
    places: int
    layers: tuple[str, ...]
    note: str
    reason: str
    proof: Proven | None

    @property
    def saving(self) -> float:
        """The proven share; 0 without one."""
        return self.proof.saving if self.proof is not None else 0.0

    @property
    def is_proven(self) -> bool:
        """True if a saving is proven."""
        return self.proof is not None and self.proof.saves


@dataclass(frozen=True, slots=True)
class Improvement(Tabular):
    """A model and its improved file.

    Attributes:
        name: The model.
        path: The improved file; None if no saving is proven.
        proof: Joint saving of all changes; None if nothing was found or nothing could be timed.
        changes: The changes of the improved file, in order.
        unproven: Changes without a proven saving, which were left out.
        rejected: Unsuccessful trials, with the reason.
        untried: Rewrites and engines left when the budget was spent.
        command: The command that tries the rest; empty if nothing is left.
        largest_error: Largest difference of an output, relative to its largest value, over all inputs tried.
        noise: Difference of the model's outputs by rounding alone.
        tolerance: Allowed difference.
        dynamic: The file has dynamic dimensions.
        shapes: Number of shapes at which outputs were compared.
        hostile: Number of inputs of the kind that guards exist for at which outputs were compared.
        data: Number of the user's own inputs at which outputs were compared; the first is timed.
        threads: Threads of the runtime.
        wall_s: Seconds of the whole call, without waiting for another process.
        proving_s: Seconds of these for the proofs that rewrites hold for every input.
        copies: Outputs that are copies of inputs. The file keeps them, since callers read them.
        copies_proof: Saving of a file without them; None if they are small or the time was up.
        interrupted: The interrupt of the search or the proof; all changes are unproven then. None if both ended.
        others: Other findings of the model that are proven in the database: remedies that no file contains; if nothing
            is proven now, rewrites too.
    """

    ANSWER = "report.answers.findings.improve_answer"

    name: str
    path: Path | None
    proof: Proven | None
    changes: tuple[ProvenChange, ...]
    unproven: tuple[ProvenChange, ...]
    rejected: tuple[tuple[str, str], ...]
    untried: tuple[str, ...]
    command: str
    largest_error: float
    noise: float
    tolerance: float
    dynamic: bool
    shapes: int
    hostile: int
    data: int
    threads: int
    wall_s: float
    proving_s: float
    copies: tuple[CopiedOutput, ...] = ()
    copies_proof: Proven | None = None
    interrupted: KeyboardInterrupt | None = None
    others: tuple[Finding, ...] = ()

    @property
    def rows(self) -> tuple[Improvement, ...]:
        """The result itself, its only row."""
        return (self,)

    @property
    def complete(self) -> bool:
        """True if an improvement is proven, or everything was tried."""
        return bool(self.changes) or not self.untried

    def records(self) -> Records:
        """One row, with a flat row per change."""
        flat = [
            {"name": self.name, **_change(change), "proven": change in self.changes}
            for change in (*self.changes, *self.unproven)
        ]
        row = {
            "name": self.name,
            "path": None if self.path is None else str(self.path),
            **_proof(self.proof),
            "changes": [_change(change) for change in self.changes],
            "unproven": [_change(change) for change in self.unproven],
            "rejected": [{"kind": kind, "reason": reason} for kind, reason in self.rejected],
            "untried": self.untried,
            "command": self.command,
            "largest_error": self.largest_error,
            "noise": self.noise,
            "tolerance": self.tolerance,
            "dynamic": self.dynamic,
            "shapes": self.shapes,
            "hostile": self.hostile,
            "data": self.data,
            "threads": self.threads,
            "wall_s": self.wall_s,
            "proving_s": self.proving_s,
            "copies": [record_of(copy, fields("output source nbytes branch")) for copy in self.copies],
            "copies_proof": None if self.copies_proof is None else _proof(self.copies_proof),
            "others": [finding.record() for finding in self.others],
        }
        return Records([row], {}, flat)


def _proof(proof: Proven | None) -> dict[str, object]:
    if proof is None:
        return dict.fromkeys(("before_ms", "after_ms", "saving", "saving_ci95"))
    return {
        "before_ms": proof.before_ms,
        "after_ms": proof.after_ms,
        "saving": proof.saving,
        "saving_ci95": proof.ci95,
    }


def _change(change: ProvenChange) -> dict[str, object]:
    record = {"kind": change.kind, "places": change.places, "layers": change.layers, "note": change.note,
              "reason": change.reason}  # fmt: skip
    return record | _proof(change.proof)


def improve(
    source: ModelSource,
    output: Path | None = None,
    *,
    budget_s: float = 30.0,
    threads: int = 1,
    noise_ok: bool = False,
    settings: bool = True,
    store: Store | None = None,
    progress: ProgressCallback | None = None,
) -> Improvement:
    """Write a faster file of a model that computes the same for every input, if its saving is proven too.

    Args:
        source: A model file. Its batch and dimensions are the sizes to measure at. Dynamic dimensions stay dynamic.
            Outputs are compared on its own inputs too, and the first set of them is timed.
        output: The file to write; None writes nothing.
        budget_s: Seconds for search and proof.
        threads: Threads of ONNX Runtime; 0 means one per physical core.
        noise_ok: Accept rewrites that change the last digits more than the model's own noise, up to 0.001 of an
            output's largest value.
        settings: Also try settings of the runtime, for example denormal numbers as zero.
        store: Database that keeps the result for ``analyze`` and ``report``; not with ``noise_ok`` or the user's own
            input files.
        progress: Called between visits of the proof.

    Raises:
        BackendError: The runtime cannot run the model.
        MachineBusy: Another process is measuring.
        ModelError: The file is not a model, or cannot be written.
        StoreError: The database cannot be written.
        UsageError: A given value does not fit its input, or ``output`` is the model.

    Example:
        >>> (source,) = find_models(["model.onnx"])  # doctest: +SKIP
        >>> improve(source, Path("faster.onnx")).proof.saving  # doctest: +SKIP
        0.21
    """
    begun = work_clock()
    if output is not None:
        refuse_itself(source, output)
    require_inputs([source])
    number = threads or len(physical_cores())
    with tempfile.TemporaryDirectory(prefix="dlbricks-improve-") as name:
        file = as_file(source, Path(name))
        assert file.path is not None  # noqa: S101  # it is a file now
        data = source.given.files
        libraries = tuple(files_of(asked()).values())
        request = SearchRequest(
            str(file.path.absolute()), name, file.batch, file.dims, number, _SEARCHED * budget_s, noise_ok,
            tuple(str(path.absolute()) for path in data), source.given.values, libraries,
        )  # fmt: skip
        bench = _Bench(file, request, begun + budget_s, progress)
        interrupted: KeyboardInterrupt | None = None
        result, outcome, copies_proof = Found(untried=(REWRITES,)), _Outcome(), None
        try:
            chosen = bench.promising(SETTINGS if settings else {}, _LOOKED)
            least_s = bench.proof_s(1 + bool(chosen))
            search_s = max(min(request.budget_s, bench.left_s - least_s), _LEAST_SEARCHED * budget_s)
            request = replace(request, denormal_as_zero=_DENORMALS in chosen, budget_s=search_s)
            with Searching(request, file_bytes(file) or 0) as search:
                with machine_lock():
                    result, interrupted = search.find()
                outcome = _Outcome(unproven=tuple(_changed(step, None) for step in result.steps))
                if interrupted is None:
                    outcome, copies_proof = _proven(result, bench, search, chosen), bench.shorter()
        except KeyboardInterrupt as error:
            interrupted = error
        if interrupted is not None and REWRITES not in result.untried:
            result = replace(result, untried=(*result.untried, "what the interrupt left"))
        path = None
        if outcome.model is not None and output is not None:
            path = _written(outcome.model, output)
    improvement = Improvement(
        source.name, path, outcome.proof, outcome.changes, outcome.unproven, result.rejected, result.untried,
        _rest(source, output, budget_s, threads, store) if result.untried else "",
        max((step.error for step in result.steps), default=0.0), result.noise, result.tolerance, result.dynamic,
        result.shapes, result.hostile, len(data), number, work_clock() - begun, result.proving_s,
        result.copies, copies_proof, interrupted,
    )  # fmt: skip
    if store is not None and not (noise_ok or data):
        return replace(improvement, others=_stored(improvement, source, store))
    return improvement


def _stored(improvement: Improvement, source: ModelSource, store: Store) -> tuple[Finding, ...]:
    """Store the result, and return other findings of the model that are proven in the database.

    They are remedies that no file contains, and rewrites if none is proven now. An interrupted result is not stored.
    """
    (model,) = decompose([source], Cut(1))
    if isinstance(model, Failed):
        return ()  # its graph has no key, and no other command can analyse it
    choice = choice_here(settled(Setup(backend="onnxruntime", threads=improvement.threads, options=asked())))
    if improvement.interrupted is None:
        proven, vain = _findings_of(improvement, source, None, str(store.place))
        store_improvement(store, source, model.own.key, choice, proven, vain=vain, complete=not improvement.untried)
    known = stored_proofs(store, source, model.own.key, choice) or Tried(())
    findings = known.others if improvement.changes else known.findings
    return tuple(finding for finding in findings if _is_proven(finding))


def _is_proven(finding: Finding) -> bool:
    return finding.unproven is None and finding.proof is not None and (finding.proven_share or 0.0) >= MINIMUM_SHARE


def _written(model: Path, output: Path) -> Path:
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_file(output, model.read_bytes())
    except OSError as error:
        raise ModelError(f"{output} cannot be written: {error.strerror}") from error
    return output


def _rest(source: ModelSource, output: Path | None, budget_s: float, threads: int, store: Store | None) -> str:
    """Return the command that tries the rest."""
    words = ["dlbricks", "improve", *model_words(source), *(["-o", str(output)] if output else [])]
    words += ["--budget", f"{_LONGER * budget_s:.0f}s", "--threads", str(threads)]
    words += [] if store is None else ["--db", str(store.place)]
    return shlex.join(words)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of the proof: the improved model, its saving, its changes, and the rejected changes."""

    model: Path | None = None
    proof: Proven | None = None
    changes: tuple[ProvenChange, ...] = ()
    unproven: tuple[ProvenChange, ...] = ()


@dataclass(frozen=True, slots=True)
class _Side:
    """A model file with options of the runtime."""

    path: Path
    options: Mapping[str, str]


class _Bench:
    """Times pairs of models in fresh processes.

    Args:
        source: The model as a file.
        request: The search: its folder and its threads.
        until: When to stop, on the ``work_clock``.
        progress: Called between visits.
    """

    def __init__(
        self, source: ModelSource, request: SearchRequest, until: float, progress: ProgressCallback | None
    ) -> None:
        self._source, self._threads = source, request.threads
        self._until, self._progress, folder = until, progress, Path(request.folder)
        self._load_s, self._visit_s = _LOAD_S, _VISIT_S
        self._control = write_out(source.skeleton()).control
        self._options = {name: value for name, value in asked().items() if name == CUSTOM_OPS}
        assert source.path is not None  # noqa: S101
        self.folder, self.original = folder, _Side(source.path, {})

    @property
    def left_s(self) -> float:
        """Seconds until the end."""
        return self._until - work_clock()

    def step(self, number: int, options: Mapping[str, str], *, without: Sequence[int] = ()) -> _Side:
        """Return the model after so many steps."""
        path = step_path(self.folder, number, without=without) if number else self.original.path
        return _Side(path, options)

    def proof_s(self, pairs: int) -> float:
        """Return the seconds of the shortest proof of some pairs."""
        return FEWEST_PROCESSES * pairs * 2 * (self._load_s + _FEW_VISITS * self._visit_s)

    def prove(self, pairs: Sequence[tuple[_Side, _Side]], share: float = 1.0) -> list[Proven | None]:
        """Time each pair; None for a pair that could not be timed.

        Args:
            pairs: Before and after.
            share: Share of the time left.
        """
        time_s = max(share * self.left_s, _LEAST_PROOF_S)
        for processes in (_PROCESSES, FEWEST_PROCESSES):
            each_s = time_s / processes / len(pairs) - 2 * self._load_s
            visits = min(int(each_s / (2 * self._visit_s)), _VISITS)
            if visits >= _FEW_VISITS:
                break
        total_visits = max(visits, _FEW_VISITS) * processes
        until = work_clock() + _PATIENCE * max(time_s, self.proof_s(len(pairs)))
        return [_judged(trial, FEWEST_PROCESSES) for trial in self._trials(pairs, total_visits, processes, until)]

    def promising(self, settings: Mapping[str, Mapping[str, str]], share: float) -> list[str]:
        """Return the settings that are faster at a quick look, which also shows how long models load and run.

        The first is always tried, the others while there is time.
        """
        until, faster = work_clock() + share * self.left_s, list[str]()
        for name, options in settings.items():
            begun = work_clock()
            pair = self.original, _Side(self.original.path, options)
            (trial,) = self._trials([pair], _QUICK_VISITS, 1, max(until, begun + _LEAST_LOOK_S))
            if trial is not None and trial.visits:
                taken = np.concatenate([*trial.before_ns, *trial.after_ns]) / _NS_PER_S
                self._visit_s = max(float(np.median(taken)), _LEAST_VISIT_S)
                self._load_s = max(work_clock() - begun - float(taken.sum()), 0.0) / 2
                proof = _judged(trial, 1)
                faster += [name] if proof is not None and proof.saving > _PROMISING else []
            if 2 * work_clock() - begun > until:
                break
        return faster

    def shorter(self) -> Proven | None:
        """Return the saving of the model without outputs that are copies; None if the file or time is missing."""
        path = shorter_path(self.folder)
        if not path.exists() or self.left_s < self.proof_s(1):
            return None
        (proof,) = self.prove([(self.original, _Side(path, {}))])
        return proof

    def _trials(
        self, pairs: Sequence[tuple[_Side, _Side]], visits: int, processes: int, until: float
    ) -> list[Trial | None]:
        trial_pairs = [
            TrialPair(self._contender(before), self._contender(after), label=self._source.name)
            for before, after in pairs
        ]
        trials = try_out(trial_pairs, visits=visits, processes=processes, until=until, progress=self._progress)
        return [trial if isinstance(trial, Trial) else None for trial in trials]

    def _contender(self, side: _Side) -> Contender:
        source = replace(self._source, path=side.path, name=side.path.stem)
        runnable = run_as_given(source, self.folder / side.path.stem, self._control)
        runnable = replace(runnable, feeds=runnable.feeds[:1])  # the search compared outputs on all of them
        options = {**self._options, **side.options}
        return Contender(runnable, place_of(Runtime.of("onnxruntime", "cpu", options), self._threads))


def _judged(trial: Trial | None, fewest: int) -> Proven | None:
    if trial is None or len(trial.before_ns) < fewest or not trial.measurable:
        return None
    levels = trial_levels(trial, looks=_LOOKS)
    low, high = levels.difference.ci95
    return Proven(levels.before_ms, levels.after_ms, 1 - levels.difference.ratio, (1 - high, 1 - low))


def _proven(result: Found, bench: _Bench, search: Searching, settings: Sequence[str]) -> _Outcome:
    """Time the improved model, its steps and settings; leave out useless changes, and time the rest again."""
    original, number = bench.original, len(result.steps)
    base = SETTINGS[_DENORMALS] if _DENORMALS in settings else {}  # layers slowed by denormals alone hide the rest
    sides = [bench.step(index, base) for index in range(number + 1)]
    pairs = [*([(sides[0], sides[-1])] if number else ()), *(pairwise(sides) if number > 1 else ())]
    pairs += [(original, _Side(original.path, SETTINGS[name])) for name in settings]
    if not pairs:
        return _Outcome()
    proofs = bench.prove(pairs, _FIRST if len(pairs) > 1 else 1.0)
    rewrites, others = proofs[: len(proofs) - len(settings)], proofs[len(proofs) - len(settings) :]
    each = rewrites[1:] if number > 1 else rewrites
    changes = [_changed(step, proof) for step, proof in zip(result.steps, each, strict=True)]
    outcome = _rewritten(bench, search, changes, rewrites[0] if rewrites else None, base)
    tried = [
        ProvenChange(f"setting: {name}", 1, (), lines_of(SETTINGS[name]), "setting", proof)
        for name, proof in zip(settings, others, strict=True)
    ]
    return _with_setting(outcome, tried, bench, base)


def _with_setting(outcome: _Outcome, tried: Sequence[ProvenChange], bench: _Bench, base: Mapping[str, str]) -> _Outcome:
    """Add the setting that saves most, if it saves together with the rewrites too.

    Rewrites that were timed under a setting (``base``) are timed again without it if it is not added.
    """
    original, path = bench.original, outcome.model
    best = max((change for change in tried if change.is_proven), key=lambda change: change.saving, default=None)
    others = tuple(change for change in tried if change is not best)
    rest = replace(outcome, unproven=(*outcome.unproven, *tried))
    alone = _Outcome() if best is None else _Outcome(None, best.proof, (best,), (*outcome.unproven, *others))
    if path is None:
        return rest if best is None else alone
    if best is not None:
        (joint,) = bench.prove([(original, _Side(path, SETTINGS[best.kind.partition(": ")[2]]))])
        least = max(_AS_GOOD * best.saving, outcome.proof.saving if outcome.proof is not None and not base else 0.0)
        if joint is not None and joint.saves and joint.saving >= least:
            return _Outcome(path, joint, (best, *outcome.changes), (*outcome.unproven, *others))
    if not base:
        return rest
    (plain,) = bench.prove([(original, _Side(path, {}))])
    if (
        plain is not None
        and plain.saves
        and plain.saving >= max(_LEAST_SAVING, alone.proof.saving if alone.proof else 0)
    ):
        return replace(rest, proof=plain)
    return replace(alone, unproven=(*outcome.changes, *outcome.unproven, *others))


def _rewritten(
    bench: _Bench, search: Searching, changes: Sequence[ProvenChange], whole: Proven | None, base: Mapping[str, str]
) -> _Outcome:
    """Return the improved file without the steps that save nothing."""
    if not changes:
        return _Outcome()
    number, final = len(changes), bench.step(len(changes), base)
    weak = [index for index, change in enumerate(changes) if not change.is_proven]
    if weak and len(weak) < number:
        with contextlib.suppress(WorkerError):
            if not search.without(tuple(weak)):
                fewer = bench.step(number, base, without=weak)
                (again,) = bench.prove([(bench.step(0, base), fewer)])
                if again is not None and (whole is None or again.saving > _AS_GOOD * whole.saving):
                    final, whole = fewer, again  # otherwise other steps build on a weak step
    if whole is None or not whole.saves or whole.saving < _LEAST_SAVING:
        return _Outcome(proof=whole, unproven=tuple(changes))
    gone = weak if final != bench.step(number, base) else []
    remaining = tuple(change for index, change in enumerate(changes) if index not in gone)
    left_out = tuple(change for change in changes if change not in remaining)
    return _Outcome(final.path, whole, remaining, left_out)


def _changed(step: Step, proof: Proven | None) -> ProvenChange:
    return ProvenChange(step.kind, step.places, step.layers, step.note, step.reason, proof)


_WORDS = re.compile(r"[^\w.@+-]")


def rewrite_findings(
    source: ModelSource, latency_ms: float | None, *, threads: int, budget_s: float, write: Path | None,
    database: str, progress: ProgressCallback | None = None,
) -> tuple[list[Finding], list[Finding], bool]:  # fmt: skip
    """Improve a model as ``improve``; return its changes as findings.

    Args:
        source: The model.
        latency_ms: The latency that savings refer to; None for the proof's latency.
        threads: Threads of ONNX Runtime.
        budget_s: Seconds for search and proof.
        write: Folder for the improved file; None to keep none.
        database: The database that the findings' commands name.
        progress: Called between visits of the proof.

    Returns:
        The changes with a proven saving, the changes without one, and True if an improvement is proven or everything
        was tried (``Improvement.complete``).

    Raises:
        DlbricksError: As ``improve``.
        KeyboardInterrupt: The search or the proof was interrupted.
    """
    target = None if write is None else write / f"{_WORDS.sub('_', source.name)}-improved.onnx"
    improvement = improve(source, target, budget_s=budget_s, threads=threads, progress=progress)
    if improvement.interrupted is not None:
        raise improvement.interrupted
    return *_findings_of(improvement, source, latency_ms, database), improvement.complete


def _findings_of(
    improvement: Improvement, source: ModelSource, latency_ms: float | None, database: str
) -> tuple[list[Finding], list[Finding]]:
    """Return the changes with a proven saving, and the changes without one, as findings."""
    whole = None if improvement.proof is None else (improvement.proof.saving, *improvement.proof.ci95)
    code = improve_command(source, improvement.threads, "improved.onnx", database)

    def finding(change: ProvenChange, *, proven: bool) -> Finding:
        engine, _, what = change.kind.partition(": ")
        title, remedy = f"{what}, {change.places} x", Remedy(IMPROVE, "Use the improved file.", {}, code)
        if change.reason == "setting":
            engine, title = "denormals" if what == _DENORMALS else "options", what
            remedy = Remedy("session_option", f"Set {what} in your program.", SETTINGS[what], lines_of(SETTINGS[what]))
        evidence, seen = (change.note,) if change.note else (), change.proof
        if seen is None:
            return Finding(engine, title, remedy, evidence, change.layers, unproven=LATE)
        latency = latency_ms or seen.before_ms
        low, high = seen.ci95
        proof = Proof(
            seen.before_ms, seen.after_ms, seen.saving * seen.before_ms,
            (low * seen.before_ms, high * seen.before_ms), improvement.largest_error,
            None if improvement.path is None else str(improvement.path), whole if proven else None,
        )  # fmt: skip
        return Finding(
            engine,
            title,
            remedy,
            evidence,
            change.layers,
            current_ms=latency,
            achievable_ms=latency * (1 - seen.saving),
            saving_ms=latency * seen.saving,
            ci95_ms=(latency * low, latency * high),
            share=seen.saving,
            proof=proof,
            unproven=None if proven else "tried: no saving is proven",
        )

    proven = [finding(change, proven=True) for change in improvement.changes if change.is_proven]
    rest = [
        change
        for change in (*improvement.changes, *improvement.unproven)
        if not change.is_proven or change in improvement.unproven
    ]
    return proven, [finding(change, proven=False) for change in rest]
