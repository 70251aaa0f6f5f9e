"""The search: ask every engine, prove its proposals, time them, keep those with a saving; in a separate process.

Each round asks the engines about the current model, so that one rewrite may enable another.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import onnx

from ...errors import DlbricksError
from ...generator.network.export import write_file
from .checked_model import CheckedModel
from .checking import Checker, CheckVerdict, loaded
from .copies import CopiedOutput, copied_outputs, without_outputs
from .looks import Timing, compare
from .prover import Prover, Verdict
from .recording import Engine, Values, session
from .rewrite import Rewrite, RewriteGraph

_ROUNDS = 3
_LEAST_SAVING = 0.005
"""Share that a step must save at a quick look, by all of its interval more than nothing."""
_NO_INPUTS = "callers can no longer override default values of inputs"
_CLEAR = 0.06
"""Share from which one quick look is enough."""
_LEAST_PREDICTED = 0.002
_ASKED, _LEAST_ENGINE_S = 0.3, 0.3
"""Share of the time left for one engine at most; seconds for each of them at least."""
_ASKED_AGAIN, _MORE = 0.5, 1.5
"""The same share when no other engine needs the time; how many times as long as before it must be."""
_AT_ONCE, _NEW_ROUND = 0.04, 0.9
"""Predicted share from which a group is tried before other engines are asked; share left that begins a new round."""
_TRIAL_S, _LONG_TRIAL_S, _PROMISING = 0.8, 2.4, 0.05
"""Seconds of a quick look; of one at a change with a larger predicted share."""
_LONGER, _PLENTY_S = 4, 6.0
"""How many times as long such a look takes if it is not clear, with so many seconds left."""
_HALVED = 0.05
"""Predicted share from which a group that saves nothing as a whole is taken apart."""
_DEPTH, _LEAST_SEARCH = 2, 0.5
"""How often a group is halved; share of the budget that is left for the search after a large model was read."""
_CLOSE_S = 0.5
_LARGE_COPIES = 64 << 10
"""Bytes of copied outputs from which their time is measured."""
_PROVING, _HOSTILE, _OTHERS = 0.3, 0.15, 0.15
"""Shares of the budget for proofs; for inputs that guards exist for; for inputs at other shapes."""


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """Settings of a search.

    Attributes:
        path: The model file.
        folder: Folder for the models of the steps.
        batch: As ``ModelSource``.
        dims: As ``ModelSource``.
        threads: Threads of the runtime.
        budget_s: Seconds for the search.
        noise_ok: As ``Checker``.
        data: Files of the user's own inputs.
        values: The user's own values of small inputs.
        libraries: Libraries of custom operators.
        denormal_as_zero: Time with denormal numbers as zero.
        everything: Keep every proven rewrite, whether it saves time or not: to test proofs.
    """

    path: str
    folder: str
    batch: int | None = None
    dims: tuple[tuple[str, int], ...] = ()
    threads: int = 1
    budget_s: float = 15.0
    noise_ok: bool = False
    data: tuple[str, ...] = ()
    values: tuple[tuple[str, str], ...] = ()
    libraries: tuple[str, ...] = ()
    denormal_as_zero: bool = False
    everything: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """Rewrites of one kind that were kept together.

    Attributes:
        kind: ``engine: recognised pattern``.
        places: Number of rewrites.
        layers: Names of the layers of the original that are no longer needed.
        note: Details.
        reason: Why it holds for every input.
        saving: Share that a quick look saw.
        error: Largest difference of an output.
    """

    kind: str
    places: int
    layers: tuple[str, ...]
    note: str
    reason: str
    saving: float
    error: float


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search.

    Attributes:
        steps: The kept rewrites, in order; the model after each is a file (``step_path``).
        rejected: What was proposed and not kept, with the reason.
        untried: Rewrites and engines for which no time was left.
        noise: The model's own noise.
        tolerance: Allowed difference of outputs.
        dynamic: The model has dynamic dimensions that the file keeps.
        shapes: Number of shapes at which outputs were compared.
        hostile: Number of inputs of the kind that guards exist for.
        wall_s: Seconds that the search took.
        proving_s: Seconds of these for proofs.
        copies: Outputs that are copies of inputs; the model without them is a file (``shorter_path``).
    """

    steps: tuple[Step, ...] = ()
    rejected: tuple[tuple[str, str], ...] = ()
    untried: tuple[str, ...] = ()
    noise: float = 0.0
    tolerance: float = 0.0
    dynamic: bool = False
    shapes: int = 1
    hostile: int = 0
    wall_s: float = 0.0
    proving_s: float = 0.0
    copies: tuple[CopiedOutput, ...] = ()


def step_path(folder: Path, number: int, *, without: Sequence[int] = ()) -> Path:
    """Return the file of the model after so many steps, 0 for the model itself; some steps may be left out."""
    marks = "".join(f"-{step}" for step in without)
    return folder / f"{number}{marks}.onnx"


def shorter_path(folder: Path) -> Path:
    """Return the file of the model without those outputs that are always copies of inputs."""
    return folder / "shorter.onnx"


def found_path(folder: Path) -> Path:
    """Return the file of the results so far, in case the process dies or is interrupted."""
    return folder / "found.json"


@dataclass(slots=True)
class _Round:
    """One round: the graph that it began with, its values, and the groups of rewrites that were kept."""

    graph: RewriteGraph
    values: Values
    prover: Prover
    kept: list[list[Rewrite]] = field(default_factory=list)

    def build(self, more: Iterable[Rewrite] = ()) -> onnx.ModelProto:
        return self.graph.build([*(rewrite for group in self.kept for rewrite in group), *more])


@dataclass(frozen=True, slots=True)
class _Look:
    """A quick look at a group of rewrites.

    Attributes:
        refusal: Why it is not kept; empty if it saves time.
        verdict: The comparison of outputs.
        model: The model with the group.
        saving: The share that it saves.
        final: No part of the group is worth a look.
    """

    refusal: str
    verdict: CheckVerdict = field(default_factory=lambda: CheckVerdict(0.0, ""))
    model: onnx.ModelProto = field(default_factory=onnx.ModelProto)
    saving: float = 0.0
    final: bool = False


class Search:
    """A search in one model.

    Args:
        subject: The model.
        request: Settings of the search.
    """

    def __init__(self, subject: CheckedModel, request: SearchRequest) -> None:
        self._begun = time.perf_counter()
        self._request, self._subject = request, subject
        self._checker = Checker(
            subject, threads=request.threads, noise_ok=request.noise_ok, until=self._begun + _OTHERS * request.budget_s
        )
        self._end = self._begun + request.budget_s
        self._rounds = list[_Round]()
        self._runner: Any = self._checker.runner
        self._executed = self._checker.executed
        self._fixed = 0  # steps before the first round
        self._origins = dict[str, str]()
        self._steps = list[Step]()
        self._rejected, self._untried = dict[str, str](), dict[str, None]()
        self._cut_short = dict[str, float]()  # seconds of engines that had not looked at every place
        self._reasons, self._verdicts = dict[int, str](), dict[object, Verdict]()
        self._data = b""
        self._taken, self._proving_s = 1.0, 0.0  # share of the original latency that is left; seconds of proofs
        self._tried = set[tuple[object, ...]]()
        self._copies: tuple[CopiedOutput, ...] = ()
        self._write(subject.model)

    @property
    def _left_s(self) -> float:
        return self._end - time.perf_counter()

    def run(self, asked: Mapping[str, tuple[Engine, float]]) -> Found:
        """Search until nothing more is found or the time is up.

        Args:
            asked: The engines by name, each with its share of the budget.
        """
        if self._subject.is_altered and not self._subject.is_external:
            self._write_plainly()
        self._begin(self._subject.model)
        self._end = max(self._end, time.perf_counter() + _LEAST_SEARCH * self._request.budget_s)
        graph = self._rounds[-1].graph
        self._origins = {name: name for name in graph.names(range(len(graph.nodes)))}
        self._find_copies(graph)
        for number in range(_ROUNDS):
            before = len(self._steps)
            self._ask_all(asked, _ASKED)
            last = number == _ROUNDS - 1
            if len(self._steps) == before or last:
                self._ask_again(asked)
            if len(self._steps) == before or last or self._left_s < _CLOSE_S:
                break
            self._begin(self._rounds[-1].build())
        return self._found()

    def _ask_again(self, asked: Mapping[str, tuple[Engine, float]]) -> None:
        """Ask engines that were cut short once more, where they get clearly more time than they took."""
        for name, taken_s in [*self._cut_short.items()]:
            if _ASKED_AGAIN * self._left_s > _MORE * taken_s:
                if self._rounds[-1].kept:  # what is kept would be proposed again
                    self._begin(self._rounds[-1].build())
                self._ask_all({name: (asked[name][0], 1.0)}, _ASKED_AGAIN)

    def _begin(self, model: onnx.ModelProto) -> None:
        """Begin a round with a model."""
        graph = RewriteGraph(model)
        values = Values(graph, self._checker.usable, self._checker.others)
        self._rounds.append(_Round(graph, values, Prover(values, self._verdicts)))

    def _ask_all(self, asked: Mapping[str, tuple[Engine, float]], most: float) -> None:
        """Ask every engine: try promising rewrites at once, and the rest by predicted saving.

        Args:
            asked: The engines by name, each with its share of the budget.
            most: Largest share of the time left for one engine.
        """
        later = list[list[Rewrite]]()
        for name, (engine, share) in asked.items():
            if self._left_s < _CLOSE_S:
                self._untried[name] = None
                continue
            before = self._taken
            for group in self._groups(name, engine, min(share * self._request.budget_s, most * self._left_s)):
                if _predicted(group) >= _AT_ONCE * self._rounds[-1].values.total_ns:
                    self._try(self._rounds[-1], group)
                else:
                    later.append(group)
            if self._taken < _NEW_ROUND * before and self._left_s > _CLOSE_S:
                self._begin(self._rounds[-1].build())
                later.clear()  # they belong to the old graph, and are asked for again
        for group in sorted(later, key=_predicted, reverse=True):
            self._try(self._rounds[-1], group)

    def _found(self) -> Found:
        checker = self._checker
        cut_short = (f"{name} (its share of the time was up)" for name in self._cut_short if name not in self._untried)
        untried = (*self._untried, *cut_short)
        return Found(
            tuple(self._steps), tuple(self._rejected.items()), untried, checker.noise, checker.tolerance,
            bool(self._subject.bound), 1 + len(checker.others), checker.hostile,
            time.perf_counter() - self._begun, self._proving_s, self._copies,
        )  # fmt: skip

    def _find_copies(self, graph: RewriteGraph) -> None:
        """Note outputs that are copies of inputs, and write the model without them if they are large."""
        self._copies = copied_outputs(graph, self._checker.usable[0])
        always = [copy for copy in self._copies if not copy.branch]
        if sum(copy.nbytes for copy in always) >= _LARGE_COPIES:
            shorter = without_outputs(graph, frozenset(copy.output for copy in always))
            if shorter is not None:
                shorter_path(Path(self._request.folder)).write_bytes(shorter.SerializeToString())

    def _write_plainly(self) -> None:
        """Count the saving of the plain form as a step: constants stored as constants, overridable ones included."""
        original, executed = loaded(self._subject.path.read_bytes(), threads=self._request.threads)
        if executed == self._executed:
            return
        timing = self._timed(original, self._runner)
        if timing.low > 0 and timing.saving >= _LEAST_SAVING:
            number = len(self._subject.overridable)
            kind, note = "constants: stored as initializers", ""
            if number:
                kind, note = "constants: default values of inputs", _NO_INPUTS
            self._steps.append(Step(kind, max(1, number), (), note, "the same nodes", timing.saving, 0.0))
            self._fixed = 1
            self._write(self._subject.model)

    def _timed(self, before: Any, after: Any, *, predicted: float = 0.0, longer: int = 2) -> Timing:
        most_s = _LONG_TRIAL_S if predicted > _PROMISING else _TRIAL_S
        budget_s = min(most_s, max(0.2, self._left_s / 4))
        feeds, threads = self._checker.usable[0], self._request.threads
        return compare(before, after, feeds, threads=threads, budget_s=budget_s, longer=longer)

    def _groups(self, name: str, engine: Engine, most_s: float) -> list[list[Rewrite]]:
        """Return the rewrites of an engine by kind, the largest predicted saving first."""
        values, groups, begun = self._rounds[-1].values, dict[str, list[Rewrite]](), time.perf_counter()
        deadline = begun + max(_LEAST_ENGINE_S, most_s)
        self._cut_short.pop(name, None)
        try:
            proposed = engine(values, deadline)
        except Exception as error:  # noqa: BLE001
            # A boundary: one engine may break on a model that nobody thought of, and the others go on.
            self._rejected[name] = f"the engine failed: {type(error).__name__}: {' '.join(str(error).split())[:160]}"
            return []
        if values.refusals:
            told = f"{len(values.refusals)} places refused: {values.refusals[0]}"
            self._rejected.setdefault(f"{name} (some places)", told)
            values.refusals.clear()
        if time.perf_counter() > deadline:
            self._cut_short[name] = time.perf_counter() - begun
        for rewrite in proposed:
            groups.setdefault(rewrite.kind, []).append(rewrite)
        ordered = sorted(groups.values(), key=_predicted, reverse=True)
        return [sorted(group, key=lambda rewrite: -rewrite.saving_ns) for group in ordered]

    def _proven(self, current: _Round, group: Sequence[Rewrite]) -> list[Rewrite]:
        """Return the rewrites of a group that hold for every input."""
        proven = list[Rewrite]()
        for index, rewrite in enumerate(group):
            if index and self._left_s <= 0:
                self._untried[f"{rewrite.kind} (the time was up after {index} of {len(group)} places)"] = None
                break
            most_s = max(_PROVING * self._request.budget_s - self._proving_s, _CLOSE_S)
            spent_s = current.prover.spent_s
            try:
                verdict = current.prover.prove(rewrite, most_s=min(most_s, max(self._left_s, _CLOSE_S)))
            except Exception as error:  # noqa: BLE001  # a boundary, as for engines: what cannot be shown is refused
                told = " ".join(str(error).split())[:160]
                self._rejected.setdefault(rewrite.kind, f"the proof failed: {type(error).__name__}: {told}")
                continue
            finally:
                self._proving_s += current.prover.spent_s - spent_s
            if verdict.reason:
                self._reasons[id(rewrite)] = verdict.reason
                proven.append(rewrite)
            else:
                self._rejected.setdefault(rewrite.kind, verdict.refusal)
        return proven

    def _try(self, current: _Round, group: list[Rewrite]) -> bool:
        """Time a group on top of the kept ones, and prove what saves time; return True if any of it was kept."""
        kind, everything = group[0].kind, self._request.everything
        predicted = _predicted(group) / max(current.values.total_ns, 1.0)
        key = (kind, *sorted(rewrite.values for rewrite in group))
        if (predicted < _LEAST_PREDICTED and not everything) or key in self._tried:
            return False
        self._tried.add(key)
        if self._left_s < _CLOSE_S:
            self._untried[kind] = None
            return False
        chosen = self._proven(current, group) if everything else group
        return bool(chosen) and self._try_part(current, chosen, 0)

    def _try_part(self, current: _Round, group: list[Rewrite], depth: int) -> bool:
        look = self._look(current, group, depth)
        if look.refusal:
            if look.final:
                self._rejected.setdefault(group[0].kind, look.refusal)
                return False
            return self._halves(current, group, depth, look.refusal)
        proven = self._proven(current, group)
        if len(proven) < len(group):
            return bool(proven) and self._try_part(current, proven, depth + 1)
        until = time.perf_counter() + _HOSTILE * self._request.budget_s
        if refusal := self._checker.check_hostile(look.verdict.runner, until=until):
            return self._halves(current, group, depth, refusal)
        self._keep(current, group, look)
        return True

    def _look(self, current: _Round, group: Sequence[Rewrite], depth: int) -> _Look:
        """Check and time a group on top of the kept ones."""
        predicted = _predicted(group) / max(current.values.total_ns, 1.0)
        try:
            model = current.build(group)
        except DlbricksError as error:
            return _Look(str(error))
        verdict = self._checker.check(model.SerializeToString())
        if verdict.refusal or self._request.everything:
            return _Look(verdict.refusal, verdict, model)
        if verdict.executed and verdict.executed == self._executed:
            return _Look("the runtime executes the same without it", final=True)
        longer = 1 if depth else _LONGER if predicted > _PROMISING and self._left_s > _PLENTY_S else 2
        timing = self._timed(self._runner, verdict.runner, predicted=predicted, longer=longer)
        if timing.low > 0 and _LEAST_SAVING <= timing.saving < _CLEAR:  # memory may lie better by chance: once more
            old, new = (
                session(data, threads=self._request.threads) for data in (self._data, model.SerializeToString())
            )
            again = self._timed(old, new, predicted=predicted, longer=1)
            timing = min(timing, again, key=lambda trial: trial.low)
        if timing.low > 0 and timing.saving >= _LEAST_SAVING:
            return _Look("", verdict, model, timing.saving)
        why = f"saves nothing: {timing.saving:+.1%} ({timing.low:+.1%} to {timing.high:+.1%})"
        return _Look(why, final=predicted < _HALVED)

    def _halves(self, current: _Round, group: list[Rewrite], depth: int, why: str) -> bool:
        if len(group) < 2 or depth >= _DEPTH or self._left_s < _CLOSE_S:
            self._rejected.setdefault(group[0].kind, why)
            return False
        middle = len(group) // 2
        outcomes = [self._try_part(current, half, depth + 1) for half in (group[:middle], group[middle:])]
        if not any(outcomes):
            self._rejected.setdefault(group[0].kind, why)
        return any(outcomes)

    def _keep(self, current: _Round, group: list[Rewrite], look: _Look) -> None:
        verdict = look.verdict
        current.kept.append(group)
        self._taken *= 1 - look.saving
        self._runner, self._executed = verdict.runner, verdict.executed
        layers = dict.fromkeys(
            origin for rewrite in group for name in rewrite.replaces if (origin := self._origins.get(name))
        )
        note = next((rewrite.note for rewrite in group if rewrite.note), "")
        if self._subject.overridable and not self._steps:
            note = "; ".join(filter(None, [note, _NO_INPUTS]))
        reasons = ", ".join(dict.fromkeys(self._reasons[id(rewrite)] for rewrite in group))
        self._steps.append(Step(group[0].kind, len(group), tuple(layers), note, reasons, look.saving, verdict.error))
        self._rejected.pop(group[0].kind, None)
        self._write(look.model)

    def _write(self, model: onnx.ModelProto) -> None:
        folder = Path(self._request.folder)
        self._data = model.SerializeToString(deterministic=True)
        step_path(folder, len(self._steps)).write_bytes(self._data)
        write_file(found_path(folder), msgspec.json.encode(self._found()))

    def without(self, left_out: Sequence[int]) -> str:
        """Write the model without some steps, and return why that is not possible; empty if it is.

        Args:
            left_out: Numbers of the steps, from 0 on.
        """
        if self._fixed and 0 in left_out:
            return "the other steps build on the constants"
        number, model = self._fixed, self._subject.model
        for current in self._rounds:
            graph = RewriteGraph(model)
            value_names = graph.given | set(graph.constants) | set(graph.producer)
            rewrites = list[Rewrite]()
            for group in current.kept:
                if number not in left_out:
                    rewrites += [rewrite for rewrite in group if _applies(rewrite, value_names)]
                number += 1
            try:
                model = graph.build(rewrites)
            except DlbricksError as error:  # a later step computed what the one that is gone made possible
                return str(error)
        data = model.SerializeToString(deterministic=True)
        verdict = self._checker.check(data)
        refusal = verdict.refusal or self._checker.check_hostile(verdict.runner, until=time.perf_counter())
        if not refusal:
            step_path(Path(self._request.folder), len(self._steps), without=left_out).write_bytes(data)
        return refusal


def _predicted(group: Sequence[Rewrite]) -> float:
    return sum(rewrite.saving_ns for rewrite in group)


def _applies(rewrite: Rewrite, value_names: Collection[str]) -> bool:
    outputs = {name for node in rewrite.nodes for name in node.output}
    reads = {name for node in rewrite.nodes for name in node.input if name}
    return all(name in value_names for name in {*rewrite.values, *(reads - outputs - set(rewrite.constants))})
