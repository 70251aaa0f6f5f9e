"""Write a faster file of a model: search rewrites, prove the improved model as a whole and each of its steps.

The search looks quickly, in one process. The proof is the gate's: old and new alternate in fresh processes, and the
process is the unit. A step whose proof includes no saving is left out, and the rest is proven again.
"""

from __future__ import annotations

import contextlib
import math
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from ...errors import BackendError, ModelError, WorkerError
from ...generator.machine.cores import physical_cores
from ...generator.machine.lock import machine_lock
from ...generator.progress import Progress, ProgressCallback, Stage
from ...generator.rewriting.checking import Race, Samples
from ...generator.rewriting.process import Searching, as_file, raced
from ...generator.rewriting.search import Found, SearchRequest, Step, step_path
from ...models import ModelSource
from ...tabular import Records, Tabular
from ..comparison.difference import FEWEST_PROCESSES, Levels, paired
from .finding import Finding, Proof, Remedy

_SEARCHED, _FIRST = 0.5, 0.6
"""Share of the budget for the search; share of the rest for the first proof, if a second may follow."""
_LEAST_SAVING = 0.01
"""Share that an improved model saves at least."""
_AS_GOOD = 0.8
"""Share of a saving that is left without the weak steps, if they are left out."""
_PROCESSES = 5
"""Fresh processes of a proof."""
_START_S, _LEAST_RACE_S = 1.0, 0.6
"""Seconds to start a timing process, and minimum seconds for its samples."""
_NS_PER_S = 1e9
_LOOKS = 1.25
"""Intervals are wider by this factor, as in the gate, since the search has looked before."""
_LEAST_PROOF_S = 6.0
_LONGER = 4
"""The budget of the command that tries the rest, as a multiple."""


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
        layers: Names of the layers of the model that are no longer needed.
        note: Details.
        proof: Its saving, relative to the model with the changes before it; None if the time was up.
    """

    kind: str
    places: int
    layers: tuple[str, ...]
    note: str
    proof: Proven | None

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
        shapes: Shapes at which outputs were compared: ``fixed``, ``two``, or ``one`` for a dynamic model that only
            ran at one.
        threads: Threads of the runtime.
        wall_s: Seconds it took.
    """

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
    shapes: str
    threads: int
    wall_s: float

    @property
    def rows(self) -> tuple[Improvement, ...]:
        """The result itself, its only row."""
        return (self,)

    @property
    def complete(self) -> bool:
        """True if everything was tried."""
        return not self.untried

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
            "shapes": self.shapes,
            "threads": self.threads,
            "wall_s": self.wall_s,
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
    own = {"kind": change.kind, "places": change.places, "layers": change.layers, "note": change.note}
    return own | _proof(change.proof)


def improve(
    source: ModelSource,
    output: Path | None = None,
    *,
    budget_s: float = 30.0,
    threads: int = 1,
    noise_ok: bool = False,
    progress: ProgressCallback | None = None,
) -> Improvement:
    """Write a faster file of a model that computes the same, if one is found and its saving is proven.

    Args:
        source: A model file. Its batch and dimensions are the sizes to measure at. Dynamic dimensions stay dynamic, and
            rewrites are compared at further sizes at which the model runs.
        output: The file to write; None writes nothing.
        budget_s: Seconds for search and proof.
        threads: Threads of ONNX Runtime; 0 means one per physical core.
        noise_ok: Accept rewrites that change the last digits more than the model's own noise, up to 0.001 of an
            output's largest value.
        progress: Called between visits of the proof.

    Raises:
        BackendError: The runtime cannot run the model.
        MachineBusy: Another process is measuring.
        ModelError: The file is not a model, or cannot be written.

    Example:
        >>> (source,) = find_models(["model.onnx"])  # doctest: +SKIP
        >>> improve(source, Path("faster.onnx")).proof.saving  # doctest: +SKIP
        0.21
    """
    begun = time.monotonic()
    number = threads or len(physical_cores())
    with tempfile.TemporaryDirectory(prefix="dlbricks-improve-") as name:
        file = as_file(source, Path(name))
        assert file.path is not None  # noqa: S101  # it is a file now
        request = SearchRequest(
            str(file.path.resolve()), name, file.batch, file.dims, number, _SEARCHED * budget_s, noise_ok
        )
        with Searching(request) as search:
            with machine_lock():
                found = search.find()
            bench = _Bench(request, begun + budget_s, progress)
            outcome = _proven(found, bench, search)
        path = None
        if outcome.model is not None and output is not None:
            path = _written(outcome.model, output)
    return Improvement(
        source.name,
        path,
        outcome.proof,
        outcome.changes,
        outcome.unproven,
        found.rejected,
        found.untried,
        _rest(source, output, budget_s, threads) if found.untried else "",
        max((step.error for step in found.steps), default=0.0),
        found.noise,
        found.tolerance,
        ("two" if found.second_shape else "one") if found.dynamic else "fixed",
        number,
        time.monotonic() - begun,
    )


def _written(model: Path, output: Path) -> Path:
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(model, output)
    except OSError as error:
        raise ModelError(f"{output} cannot be written: {error.strerror}") from error
    return output


def _rest(source: ModelSource, output: Path | None, budget_s: float, threads: int) -> str:
    """Return the command that tries the rest."""
    words = ["dlbricks", "improve", str(source.path or source.name), *(["-o", str(output)] if output else [])]
    words += ["--budget", f"{_LONGER * budget_s:.0f}s", "--threads", str(threads)]
    return shlex.join(words)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of the proof: the improved model, its saving, its changes, and the rejected changes."""

    model: Path | None = None
    proof: Proven | None = None
    changes: tuple[ProvenChange, ...] = ()
    unproven: tuple[ProvenChange, ...] = ()


class _Bench:
    """Times pairs of models in fresh processes.

    Args:
        request: The search.
        until: When to stop, on the monotonic clock.
        progress: Called between processes.
    """

    def __init__(self, request: SearchRequest, until: float, progress: ProgressCallback | None) -> None:
        self._request, self._until, self._progress = request, until, progress
        self._begun = time.monotonic()
        self.folder = Path(request.folder)

    @property
    def left_s(self) -> float:
        """Seconds until the end."""
        return self._until - time.monotonic()

    def prove(self, pairs: Sequence[tuple[Path, Path]], share: float = 1.0) -> list[Proven | None]:
        """Time each pair of models; None for a pair that could not be timed.

        Args:
            pairs: The files.
            share: Share of the time left.
        """
        request, base = self._request, step_path(self.folder, 0)
        files = tuple((request.path if before == base else str(before), str(after)) for before, after in pairs)
        share_s = max(max(share * self.left_s, _LEAST_PROOF_S) / _PROCESSES - _START_S, _LEAST_RACE_S)
        asked = Race(request.path, files, request.batch, request.dims, request.threads, share_s)
        taken = list[Samples]()
        with machine_lock(), contextlib.suppress(BackendError, WorkerError):
            for number in range(_PROCESSES):
                if self._progress is not None:
                    self._progress(
                        Progress(
                            Stage.SAMPLE, number, _PROCESSES, Path(request.path).name, time.monotonic() - self._begun
                        )
                    )
                taken.append(raced(replace(asked, seed=number)))
        if len(taken) < FEWEST_PROCESSES:
            return [None] * len(pairs)
        return [_judged([samples[number] for samples in taken]) for number in range(len(pairs))]


def proven_pairs(original: Path, pairs: Sequence[tuple[Path, Path]], *, seed: int = 0) -> list[Proven]:
    """Time pairs of static model files in fresh processes on one thread.

    Args:
        original: The file that inputs are made for.
        pairs: The files, before and after.
        seed: Number of the first process.

    Raises:
        BackendError: A file does not run.
        MachineBusy: Another process is measuring.
        WorkerError: A process died.
    """
    files = tuple((str(before), str(after)) for before, after in pairs)
    asked = Race(str(original), files, None, (), 1, len(pairs) * _LEAST_RACE_S)
    with machine_lock():
        taken = [raced(replace(asked, seed=seed + number)) for number in range(_PROCESSES)]
    return [_judged([samples[number] for samples in taken]) for number in range(len(pairs))]


def _judged(processes: Sequence[Sequence[tuple[float, float]]]) -> Proven:
    taken = [np.array(samples) * _NS_PER_S for samples in processes]
    before, after = ([array[:, side] for array in taken] for side in (0, 1))
    levels: Levels = paired(before, after, looks=_LOOKS)
    low, high = levels.difference.ci95
    return Proven(levels.before_ms, levels.after_ms, 1 - levels.difference.ratio, (1 - high, 1 - low))


def _proven(found: Found, bench: _Bench, search: Searching) -> _Outcome:
    """Prove the improved model and each of its steps; leave out steps without a saving, and prove the rest again."""
    steps = found.steps
    if not steps:
        return _Outcome()
    files = [step_path(bench.folder, number) for number in range(len(steps) + 1)]
    pairs = [(files[0], files[-1]), *(pairwise(files) if len(steps) > 1 else ())]
    whole, *each = bench.prove(pairs, _FIRST if len(steps) > 1 else 1.0)
    changes = [_changed(step, proof) for step, proof in zip(steps, each or [whole], strict=True)]
    weak = [number for number, change in enumerate(changes) if not change.is_proven]
    final = files[-1]
    if weak and len(weak) < len(steps):
        with contextlib.suppress(WorkerError):
            if not search.without(weak):
                fewer = step_path(bench.folder, len(steps), without=weak)
                (again,) = bench.prove([(files[0], fewer)])
                if again is not None and (whole is None or again.saving > _AS_GOOD * whole.saving):
                    final, whole = fewer, again  # otherwise a weak step was what others build on
    if whole is None or not whole.saves or whole.saving < _LEAST_SAVING:
        return _Outcome(proof=whole, unproven=tuple(changes))
    kept = tuple(_apart(changes, weak if final != files[-1] else ()))
    left_out = tuple(change for change in changes if change not in kept)
    return _Outcome(final, whole, kept, left_out)


def _apart(changes: Sequence[ProvenChange], left_out: Sequence[int]) -> Iterator[ProvenChange]:
    return (change for number, change in enumerate(changes) if number not in left_out)


def _changed(step: Step, proof: Proven | None) -> ProvenChange:
    return ProvenChange(step.kind, step.places, step.layers, step.note, proof)


_WORDS = re.compile(r"[^\w.@+-]")


def rewrite_findings(
    source: ModelSource, latency_ms: float | None, *, threads: int, budget_s: float, write: Path | None,
    progress: ProgressCallback | None = None,
) -> tuple[list[Finding], list[Finding]]:  # fmt: skip
    """Improve a model; return its proven rewrites as findings, and the rewrites without a proven saving.

    Args:
        source: The model.
        latency_ms: The latency that savings refer to; None for the proof's latency.
        threads: Threads of ONNX Runtime.
        budget_s: Seconds for search and proof.
        write: Folder for the improved file; None to keep none.
        progress: Called between processes of the proof.

    Raises:
        DlbricksError: As ``improve``.
    """
    target = None if write is None else write / f"{_WORDS.sub('_', source.name)}-improved.onnx"
    found = improve(source, target, budget_s=budget_s, threads=threads, progress=progress)
    whole = None if found.proof is None else (found.proof.saving, *found.proof.ci95)
    latency = latency_ms or (math.nan if found.proof is None else found.proof.before_ms)
    code = shlex.join(["dlbricks", "improve", str(source.path or source.name), "-o", "improved.onnx"])

    def finding(change: ProvenChange, *, proven: bool) -> Finding:
        engine, _, what = change.kind.partition(": ")
        seen = change.proof or Proven(latency, latency, 0.0, (0.0, 0.0))
        saving, low, high = (latency * share for share in (seen.saving, *seen.ci95))
        proof = Proof(
            seen.before_ms, seen.after_ms, seen.saving * seen.before_ms,
            (seen.ci95[0] * seen.before_ms, seen.ci95[1] * seen.before_ms), found.largest_error,
            None if found.path is None else str(found.path), whole if proven else None,
        )  # fmt: skip
        return Finding(
            kind=engine,
            title=f"{what}, {change.places} x",
            layers=change.layers,
            current_ms=latency,
            achievable_ms=latency - saving,
            saving_ms=saving,
            ci95_ms=(low, high),
            share=seen.saving,
            evidence=(change.note,) if change.note else (),
            keys=(),
            remedy=Remedy("improve", "Use the improved file.", {}, code),
            proof=proof,
            unproven=None if proven else "tried: no saving is proven",
        )

    proven = [finding(change, proven=True) for change in found.changes if change.is_proven]
    rest = [change for change in (*found.changes, *found.unproven) if not change.is_proven or change in found.unproven]
    return proven, [finding(change, proven=False) for change in rest]
