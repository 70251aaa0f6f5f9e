"""The search: ask every engine, check and time its proposals, keep those with a saving; in a separate process.

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
from .checking import CheckedModel, Checker, CheckVerdict, Timing, compare, computes_the_same, loaded
from .equality import shapes_of_inputs
from .form import Rewrite, RewriteGraph
from .recurrence import looped
from .repetition import loops
from .values import Engine, Values, session

_ROUNDS = 3
_LEAST_SAVING = 0.005
"""Share that a step must save at a quick look, by all of its interval more than nothing."""
_CLEAR = 0.06
"""Share from which one quick look is enough."""
_LEAST_PREDICTED = 0.002
_ASKED, _LEAST_ENGINE_S = 0.3, 0.3
"""Share of the time left for one engine at most; seconds for each of them at least."""
_AT_ONCE, _NEW_ROUND = 0.04, 0.9
"""Predicted share from which a group is tried before other engines are asked; share left that begins a new round."""
_TRIAL_S = 0.8
_HALVED = 0.05
"""Predicted share from which a group that saves nothing as a whole is taken apart."""
_DEPTH = 2
_CLOSE_S = 0.5


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
    """

    path: str
    folder: str
    batch: int | None = None
    dims: tuple[tuple[str, int], ...] = ()
    threads: int = 1
    budget_s: float = 20.0
    noise_ok: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """Rewrites of one kind that were applied together.

    Attributes:
        kind: ``engine: name``.
        places: Number of rewrites.
        layers: Names of the layers of the model that are no longer needed.
        note: Details.
        saving: Share of the model before this step that a quick look showed.
        error: Largest relative difference of an output after this step.
    """

    kind: str
    places: int
    layers: tuple[str, ...]
    note: str
    saving: float
    error: float


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search.

    Attributes:
        steps: The steps in order; ``step_path`` has the model after each.
        rejected: Unsuccessful trials, with the reason.
        untried: Rewrites and engines left when the time was up.
        noise: The model's own noise.
        tolerance: Allowed difference of outputs.
        dynamic: The model has dynamic dimensions that the file keeps.
        second_shape: A second shape was checked.
        wall_s: Seconds that the search took.
    """

    steps: tuple[Step, ...] = ()
    rejected: tuple[tuple[str, str], ...] = ()
    untried: tuple[str, ...] = ()
    noise: float = 0.0
    tolerance: float = 0.0
    dynamic: bool = False
    second_shape: bool = False
    wall_s: float = 0.0


def step_path(folder: Path, number: int, *, without: Sequence[int] = ()) -> Path:
    """Return the file of the model after so many steps, 0 for the model itself; some steps may be left out."""
    marks = "".join(f"-{step}" for step in without)
    return folder / f"{number}{marks}.onnx"


def found_path(folder: Path) -> Path:
    """Return the file of the results so far, in case the process dies."""
    return folder / "found.json"


@dataclass(slots=True)
class _Round:
    """One round: the graph that it began with, and the groups of rewrites that were kept."""

    graph: RewriteGraph
    kept: list[list[Rewrite]] = field(default_factory=list)

    def build(self, more: Iterable[Rewrite] = ()) -> onnx.ModelProto:
        return self.graph.build([*(rewrite for group in self.kept for rewrite in group), *more])


class Search:
    """A search in one model.

    Args:
        subject: The model.
        request: Settings of the search.
    """

    def __init__(self, subject: CheckedModel, request: SearchRequest) -> None:
        self._begun = time.perf_counter()
        self._end = self._begun + request.budget_s
        self._request, self._subject = request, subject
        self._checker = Checker(subject, threads=request.threads, noise_ok=request.noise_ok)
        self._rounds = list[_Round]()
        self._runner: Any = self._checker.runner
        self._executed = self._checker.executed
        self._fixed = 0  # steps before the first round
        self._start = subject.model
        self._origins = dict[str, str]()
        self._steps = list[Step]()
        self._rejected = dict[str, str]()
        self._untried = dict[str, None]()
        self._data = b""
        self._taken = 1.0  # share of the original latency that is left
        self._tried = set[tuple[object, ...]]()
        self._write(subject.model)

    @property
    def _left_s(self) -> float:
        return self._end - time.perf_counter()

    def run(self, asked: Mapping[str, tuple[Engine, float]]) -> Found:
        """Search until nothing more is found or the time is up.

        Args:
            asked: The engines by name, each with its share of the budget.
        """
        model = self._subject.model
        if not self._subject.is_external:
            self._write_plainly()
        model = self._start = self._without_loops(model)
        self._begin(model)
        graph = self._rounds[-1].graph
        self._origins = {name: name for name in graph.names(range(len(graph.nodes)))}
        for _ in range(_ROUNDS):
            before = len(self._steps)
            self._ask_all(asked)
            if len(self._steps) == before or self._left_s < _CLOSE_S:
                break
            self._begin(self._rounds[-1].build())
        return self._found()

    def _begin(self, model: onnx.ModelProto) -> None:
        """Begin a round with a model."""
        self._rounds.append(_Round(RewriteGraph(model)))
        self._values = Values(self._rounds[-1].graph, self._checker.usable, self._checker.other)

    def _ask_all(self, asked: Mapping[str, tuple[Engine, float]]) -> None:
        """Ask every engine: try promising rewrites at once, and the rest by predicted saving."""
        later = list[list[Rewrite]]()
        for name, (engine, share) in asked.items():
            if self._left_s < _CLOSE_S:
                self._untried[name] = None
                continue
            groups = self._groups(name, engine, share)
            before = self._taken
            for group in groups:
                if _predicted(group) >= _AT_ONCE * self._values.total_ns:
                    self._try(self._rounds[-1], self._values, group)
                else:
                    later.append(group)
            if self._taken < _NEW_ROUND * before and self._left_s > _CLOSE_S:
                self._begin(self._rounds[-1].build())
                later.clear()  # they belong to the old graph, and are asked for again
        for group in sorted(later, key=_predicted, reverse=True):
            self._try(self._rounds[-1], self._values, group)

    def _found(self) -> Found:
        return Found(
            tuple(self._steps),
            tuple(self._rejected.items()),
            tuple(self._untried),
            self._checker.noise,
            self._checker.tolerance,
            bool(self._subject.other_feeds),
            self._checker.second_shape,
            time.perf_counter() - self._begun,
        )

    def _write_plainly(self) -> None:
        """Count the saving of the plain form as a step: constants stored as constants, overridable ones included."""
        original, executed = loaded(self._subject.path.read_bytes(), threads=self._request.threads)
        if executed == self._executed:
            return
        timing = self._timed(original, self._runner)
        if timing.low > 0 and timing.saving >= _LEAST_SAVING:
            number = len(self._subject.overridable)
            kind, note = "constants: stored as such", ""
            if number:
                kind, note = "constants: default values of inputs", "callers can no longer override them as inputs"
            self._steps.append(Step(kind, max(1, number), (), note, timing.saving, 0.0))
            self._fixed = 1
            self._write(self._subject.model)

    def _without_loops(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Return the model with its loops written out, in which engines see more; a step if that alone is faster."""
        graph = RewriteGraph(model)
        if not any(node.op_type in {"If", "Loop", "Scan"} for node in graph.nodes):
            return self._with_shapes_of_inputs(graph)
        values = Values(graph, self._checker.usable, self._checker.other)
        cells = looped(values, time.perf_counter() + _ASKED * self._left_s)
        known = {value for rewrite in cells for value in rewrite.values}
        found = [*cells, *(rewrite for rewrite in loops(values) if known.isdisjoint(rewrite.values))]
        made = graph.build(found)
        verdict = self._checker.check(made.SerializeToString())
        if not found or verdict.refusal:
            return self._with_shapes_of_inputs(graph)
        timing = self._timed(self._runner, verdict.runner)
        if timing.low > 0 and timing.saving >= _LEAST_SAVING:
            names = [name for rewrite in found for name in rewrite.replaces]
            self._steps.append(
                Step(found[0].kind, len(found), tuple(names), found[0].note, timing.saving, verdict.error)
            )
            self._fixed += 1
            self._runner, self._executed = verdict.runner, verdict.executed
            self._write(made)
        return self._with_shapes_of_inputs(RewriteGraph(made))

    def _with_shapes_of_inputs(self, graph: RewriteGraph) -> onnx.ModelProto:
        """Return a model that reads shapes from its inputs, if it computes the same; otherwise the model."""
        inner = any(node.op_type == "Shape" and node.input[0] not in graph.given for node in graph.nodes)
        found = []
        if inner and self._checker.other is not None:
            found = shapes_of_inputs(Values(graph, self._checker.usable[:1], self._checker.other))
        made = graph.build(found) if found else graph.model
        same = not found or not self._checker.check(made.SerializeToString()).refusal
        return made if same else graph.model

    def _timed(self, before: Any, after: Any, *, longer: int = 2) -> Timing:
        budget_s = min(_TRIAL_S, max(0.2, self._left_s / 4))
        feeds, threads = self._checker.usable[0], self._request.threads
        return compare(before, after, feeds, threads=threads, budget_s=budget_s, longer=longer)

    def _groups(self, name: str, engine: Engine, share: float) -> list[list[Rewrite]]:
        """Return the correct rewrites of an engine by kind, the largest predicted saving first."""
        values, groups, now = self._values, dict[str, list[Rewrite]](), time.perf_counter()
        deadline = now + max(_LEAST_ENGINE_S, min(share * self._request.budget_s, _ASKED * self._left_s))
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
            self._untried[f"{name} (its share of the time was up)"] = None
        for rewrite in proposed:
            if self._is_right(values, rewrite):
                groups.setdefault(rewrite.kind, []).append(rewrite)
        ordered = sorted(groups.values(), key=_predicted, reverse=True)
        return [sorted(group, key=lambda rewrite: -rewrite.saving_ns) for group in ordered]

    def _is_right(self, values: Values, rewrite: Rewrite) -> bool:
        try:
            right = computes_the_same(values, rewrite)
        except Exception as error:  # noqa: BLE001  # the runtime refuses nodes in its own ways
            self._rejected.setdefault(rewrite.kind, f"refused: {' '.join(str(error).split())[:160]}")
            return False
        if not right:
            self._rejected.setdefault(rewrite.kind, "it computes other values")
        return right

    def _try(  # noqa: PLR0911  # one reason each
        self, current: _Round, values: Values, group: list[Rewrite], depth: int = 0
    ) -> bool:
        """Check and time a group on top of the kept ones; keep it, or try its halves. Return True if any was kept."""
        predicted = _predicted(group) / max(values.total_ns, 1.0)
        key = (group[0].kind, *sorted(rewrite.values for rewrite in group))
        if predicted < _LEAST_PREDICTED or key in self._tried:
            return False
        self._tried.add(key)
        kind = group[0].kind
        if self._left_s < _CLOSE_S:
            self._untried[kind] = None
            return False
        try:
            model = current.build(group)
        except DlbricksError as error:
            return self._halves(current, values, group, depth, str(error))
        verdict = self._checker.check(model.SerializeToString())
        if verdict.refusal:
            return self._halves(current, values, group, depth, verdict.refusal)
        if verdict.executed and verdict.executed == self._executed:
            self._rejected.setdefault(kind, "the runtime executes the same without it")
            return False
        timing = self._timed(self._runner, verdict.runner, longer=1 if depth else 2)
        if timing.low > 0 and _LEAST_SAVING <= timing.saving < _CLEAR:  # memory may lie better by chance: once more
            old, new = (
                session(data, threads=self._request.threads) for data in (self._data, model.SerializeToString())
            )
            again = self._timed(old, new, longer=1)
            timing = min(timing, again, key=lambda found: found.low)
        if timing.low > 0 and timing.saving >= _LEAST_SAVING:
            self._keep(current, group, model, verdict, timing)
            return True
        why = f"saves nothing: {timing.saving:+.1%} ({timing.low:+.1%} to {timing.high:+.1%})"
        if predicted < _HALVED:
            self._rejected.setdefault(kind, why)
            return False
        return self._halves(current, values, group, depth, why)

    def _halves(self, current: _Round, values: Values, group: list[Rewrite], depth: int, why: str) -> bool:
        if len(group) < 2 or depth >= _DEPTH:
            self._rejected.setdefault(group[0].kind, why)
            return False
        middle = len(group) // 2
        kept = [self._try(current, values, half, depth + 1) for half in (group[:middle], group[middle:])]
        if not any(kept):
            self._rejected.setdefault(group[0].kind, why)
        return any(kept)

    def _keep(
        self,
        current: _Round,
        group: list[Rewrite],
        model: onnx.ModelProto,
        verdict: CheckVerdict,
        timing: Timing,
    ) -> None:
        current.kept.append(group)
        self._taken *= 1 - timing.saving
        self._runner, self._executed = verdict.runner, verdict.executed
        layers = dict.fromkeys(
            origin for rewrite in group for name in rewrite.replaces if (origin := self._origins.get(name))
        )
        note = next((rewrite.note for rewrite in group if rewrite.note), "")
        self._steps.append(Step(group[0].kind, len(group), tuple(layers), note, timing.saving, verdict.error))
        self._rejected.pop(group[0].kind, None)
        self._write(model)

    def _write(self, model: onnx.ModelProto) -> None:
        folder = Path(self._request.folder)
        self._data = model.SerializeToString(deterministic=True)
        step_path(folder, len(self._steps)).write_bytes(self._data)
        found_path(folder).write_bytes(msgspec.json.encode(self._found()))

    def without(self, left_out: Sequence[int]) -> str:
        """Write the model without some steps, and return why that is not possible; empty if it is.

        Args:
            left_out: Numbers of the steps, from 0 on.
        """
        number, model = self._fixed, self._start
        for current in self._rounds:
            graph = RewriteGraph(model)
            known = graph.given | set(graph.constants) | set(graph.producer)
            kept = list[Rewrite]()
            for group in current.kept:
                if number not in left_out:
                    kept += [rewrite for rewrite in group if _applies(rewrite, known)]
                number += 1
            model = graph.build(kept)
        data = model.SerializeToString(deterministic=True)
        verdict = self._checker.check(data)
        if not verdict.refusal:
            step_path(Path(self._request.folder), len(self._steps), without=left_out).write_bytes(data)
        return verdict.refusal


def _predicted(group: Sequence[Rewrite]) -> float:
    return sum(rewrite.saving_ns for rewrite in group)


def _applies(rewrite: Rewrite, known: Collection[str]) -> bool:
    made = {name for node in rewrite.nodes for name in node.output}
    reads = {name for node in rewrite.nodes for name in node.input if name}
    return all(name in known for name in {*rewrite.values, *(reads - made - set(rewrite.constants))})
