"""Two versions of a runtime against each other: models first, then their unique bricks, alternately on this machine.

Each version runs in a separate environment. A first pass visits all bricks briefly, in two pairs of processes. Bricks
that may differ are visited again in fresh processes. Only these visits decide, so a chance difference of the first pass
is not counted twice. At most 5 % of the reported differences are chance (``difference.discoveries``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Unpack

import numpy as np

from ...bricks.decomposition import Decomposition, Failed
from ...bricks.graph.control import write_out
from ...bricks.layer import LayerState
from ...bricks.reference import OVERHEAD, write_built_in
from ...bricks.suite.suite import Suite
from ...constructor.uncertainty.pairing import trimmed
from ...db.values import NATIVE, Runtime, RuntimeFields
from ...errors import BackendError, DlbricksError, MachineBusy, UsageError
from ...generator.backends.environments import RuntimeVersion, version_of
from ...generator.backends.registry import get
from ...generator.decomposition.cut import Cut
from ...generator.decomposition.decompose import decompose, decomposing_until
from ...generator.decomposition.generate import along_source, generate
from ...generator.decomposition.observation import run_as_given
from ...generator.machine.lock import work_clock
from ...generator.measurement.pace import loops_of, warmups_of
from ...generator.measurement.trial import (
    Contender,
    Trial,
    TrialPair,
    brick_pair,
    place_of,
    try_in_models,
    try_out,
    warm_worker,
)
from ...generator.network.network import read_network
from ...generator.progress import ProgressCallback
from ...generator.worker.client import Timeouts, Workers, file_of, start_worker
from ...generator.worker.execution.extraction import EXECUTED
from ...generator.worker.messages import Place
from ...models import ModelSource
from ...tabular import Field, Records, Row, Tabular, fields, record_of
from .difference import MINIMUM_EFFECT, Levels, Relation, check_minimum_effect, discoveries, paired, relation
from .gate import FEWEST, MOST, VISITS, judged, levels_of
from .results import ModelBrick, bricks_of

_OF_MODELS = 0.4
"""Share of the budget after which models are not visited any more."""

_OF_BRICKS = 0.85
"""Share of the remaining budget for fresh processes; the rest is for the cache state of models."""

_FIRST, _FRESH, _IN_MODEL = (2, 12), (6, 48), (4, 32)
"""Processes, and visits in all of them: of the first pass, in fresh processes, and in the cache state of models."""

_LATE = "the time was up before it was run: give a larger --budget"

_LABEL = 8
"""Characters of a brick's key that progress reports show."""

_CHANCE = 0.2
"""Largest probability of chance with which the first pass makes a brick a suspect."""

_FAR, _FAR_CHANCE = 0.1, 0.01
"""Minimum effect of a load time or first run, and the largest probability that it is chance: both
scatter more than latencies, and a process has one of each."""

FIELDS = (
    Field("name", "model"),
    *fields("base other"),
    Field("base_ms", "base ms", "ms", path="levels.before_ms"),
    Field("other_ms", "other ms", "ms", path="levels.after_ms"),
    Field("ratio", "ratio ±95%", "ratio", interval="ratio_ci95", path="levels.difference.ratio"),
    Field("ratio_ci95", path="levels.difference.ci95"),
    Field("verdict"),
    Field("explained", "bricks explain", "share"),
    *fields("left_ms call_ms processes load first_run executed bricks missing error"),
)


@dataclass(frozen=True, slots=True)
class BrickVersions:
    """A brick of a model in both versions.

    Attributes:
        brick: The brick.
        levels: Latencies and their ratio.
        verdict: The other version in relation to the base.
        fresh: True if fresh processes decided it, False if only the first pass saw the brick.
        suspect: True if it may differ, and the budget ended before fresh processes could decide it.
        largest_error: Largest difference of the outputs, relative to the largest value of the base's output.
        in_model: Latencies and their ratio in the cache state of its models, if it differs; None if they are unknown.
    """

    brick: ModelBrick
    levels: Levels
    verdict: Relation
    fresh: bool
    suspect: bool
    largest_error: float
    in_model: Levels | None = None

    @property
    def effect_ms(self) -> float:
        """Effect of the brick on the latency of the model: occurrences times the difference."""
        return self.brick.occurrences * (self.levels.after_ms - self.levels.before_ms)

    @property
    def told(self) -> bool:
        """True if it differs, beyond chance and by about the minimum effect."""
        return self.verdict in {Relation.SLOWER, Relation.FASTER}

    def record(self) -> Row:
        """As a JSON object."""
        return {
            "key": self.brick.key,
            "operator": "+".join(self.brick.operators),
            "shapes": record_of(self.brick.form, fields("inputs weights outputs")),
            "count": self.brick.occurrences,
            **_levels_record(self.levels),
            **record_of(self, fields("verdict effect_ms fresh suspect largest_error")),
            "in_model": None if self.in_model is None else _levels_record(self.in_model),
        }


def _levels_record(levels: Levels) -> Row:
    seen = levels.difference
    return {
        "base_ms": levels.before_ms, "other_ms": levels.after_ms, "ratio": seen.ratio, "ratio_ci95": seen.ci95,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class StartVersions:
    """The load time of a model, or its first run, in both versions.

    Attributes:
        levels: Durations and their ratio, over processes.
        verdict: As of a latency, but from 10 %, and with a probability of chance below 1 %.
    """

    levels: Levels
    verdict: Relation

    def record(self) -> Row:
        """As a JSON object."""
        return {**_levels_record(self.levels), "verdict": self.verdict}


def starts_of(trial: Trial) -> tuple[StartVersions, StartVersions] | None:
    """Return load time and first run of a model in both versions; None with too few processes.

    Args:
        trial: Visits of the model.
    """
    both = list(zip(*trial.starts_ns, strict=False))
    if len(both) < FEWEST:
        return None
    starts = []
    for part in range(2):
        base, other = (
            [np.array([max(side[part], 1)], np.float64) for side in sides] for sides in zip(*both, strict=True)
        )
        seen = (levels := paired(base, other)).difference
        verdict = relation(seen, minimum_effect=_FAR, discovered=seen.p < _FAR_CHANCE)
        starts.append(StartVersions(levels, verdict))
    load, first_run = starts
    return load, first_run


@dataclass(frozen=True, slots=True)
class ModelVersions:
    """A model in both versions.

    Attributes:
        name: The model.
        base: Name of the base.
        other: Name of the other version.
        levels: Latencies and their ratio; None if the model did not run in both.
        verdict: The other version in relation to the base; None without latencies.
        processes: Pairs of processes that ran it.
        bricks: Bricks that ran in both versions, the largest effect first.
        missing: Bricks that did not, by key, and layers that cannot be bricks, by name; each with the reason.
        load: Load time in both; None with too few processes.
        first_run: The first run after loading, likewise.
        call_ms: Duration of a call in the other version minus its duration in the base; a model makes one call. None if
            it is unknown.
        executed: Operators that one version executes more often in this model: counts in the base and in the other;
            None if the runtime does not report its graph, or the model does not differ.
        error: Why the model could not be run or decomposed.
    """

    name: str
    base: str
    other: str
    levels: Levels | None = None
    verdict: Relation | None = None
    processes: int = 0
    bricks: tuple[BrickVersions, ...] = ()
    missing: Mapping[str, str] | None = None
    load: StartVersions | None = None
    first_run: StartVersions | None = None
    call_ms: float | None = None
    executed: Mapping[str, tuple[int, int]] | None = None
    error: str | None = None

    @property
    def difference_ms(self) -> float | None:
        """Difference of the model's latencies, other less base; None if the verdict is SAME or UNCLEAR."""
        if self.levels is None or self.verdict not in {Relation.SLOWER, Relation.FASTER}:
            return None
        return self.levels.after_ms - self.levels.before_ms

    @property
    def left_ms(self) -> float | None:
        """The difference minus those of all bricks and of a call; None without a difference, or if any is not known."""
        if self.difference_ms is None or not self.bricks or self.missing or self.call_ms is None:
            return None
        return self.difference_ms - math.fsum([self.call_ms, *(brick.effect_ms for brick in self.bricks)])

    @property
    def explained(self) -> float | None:
        """Differences of all bricks and of a call as a share of the model's difference; None as for ``left_ms``."""
        if self.difference_ms is None or self.left_ms is None:
            return None
        return 1 - self.left_ms / self.difference_ms

    def record(self) -> dict[str, object]:
        """As a JSON object."""
        return record_of(self, FIELDS)


@dataclass(frozen=True, slots=True)
class VersionComparison(Tabular):
    """Models in two versions of a runtime.

    Attributes:
        base: The version that ratios refer to.
        other: The other one.
        rows: One per model.
        suite: Unique bricks of all models; None if none could be decomposed. It is in the folder of the caller.
        call: Latencies of a call of one addition: a brick's difference excludes theirs. None if it is unknown.
        minimum_effect: Relative difference that matters.
        threads: Threads of the runtime.
        wall_s: Wall time in seconds, environments included, without waiting for another process.
    """

    ANSWER = "report.answers.versions.versions_answer"

    base: RuntimeVersion
    other: RuntimeVersion
    rows: tuple[ModelVersions, ...]
    suite: Suite | None
    call: Levels | None
    minimum_effect: float
    threads: int
    wall_s: float

    @property
    def complete(self) -> bool:
        """True if every model and brick ran in both versions, and no suspect is left."""
        return not any(row.error or row.missing or any(brick.suspect for brick in row.bricks) for row in self.rows)

    def records(self) -> Records:
        """One row per model; in CSV, one per brick."""
        flat = [
            {"name": row.name, "base": row.base, "other": row.other, **brick.record()}
            for row in self.rows
            for brick in row.bricks
        ]
        call = None if self.call is None else (self.call.before_ms, self.call.after_ms)
        totals = {"call_ms": call, **record_of(self, fields("minimum_effect threads wall_s"))}
        return Records([row.record() for row in self.rows], totals, flat)


def compare_versions(
    models: Sequence[ModelSource],
    versions: tuple[str, str],
    *,
    folder: Path,
    granularity: int = 1,
    connected: bool = False,
    graph: str | None = None,
    threads: int = 1,
    dtype: str = NATIVE,
    minimum_effect: float = MINIMUM_EFFECT,
    budget_s: float = 120.0,
    progress: ProgressCallback | None = None,
    **runtime: Unpack[RuntimeFields],
) -> VersionComparison:
    """Run models and their unique bricks in two versions of a runtime, alternately.

    Args:
        models: The models.
        versions: The base and the other version (``version_of``); equal ones get an environment each.
        folder: Empty or new folder for the suite of bricks.
        granularity: Most layers in a brick.
        connected: Bricks may be weakly connected windows.
        graph: Graph that bricks are cut from; None: ``fused`` if the runtime reports its graph on this device in this
            precision, else ``source``. The version that dlbricks itself uses determines the fusions.
        threads: Threads of the runtime.
        dtype: Precision.
        minimum_effect: Relative difference that matters.
        budget_s: Seconds of work after which no more visits are made; installing does not count.
        progress: Called between visits.
        **runtime: ``backend`` of a bare version, ``device`` and ``options``.

    Raises:
        UsageError: A text names no version, or an option has a wrong value.
        BackendUnavailable: A version cannot be installed or used here.
        WorkerError: dlbricks is missing in the Python of a version.
        MachineBusy: Another process is measuring.
        SuiteError: The suite cannot be written.

    Example:
        >>> models = find_models(["squeezenet"])  # doctest: +SKIP
        >>> old_and_new = ("onnxruntime==1.22.1", "onnxruntime==1.23.2")  # doctest: +SKIP
        >>> compare_versions(models, old_and_new, folder=Path("bricks")).rows[0].verdict  # doctest: +SKIP
        <Relation.SAME: 'SAME'>
    """
    check_minimum_effect(minimum_effect)
    begun = work_clock()
    first, second = versions
    backend = runtime.get("backend", "onnxruntime")
    base = version_of(first, backend)
    other = version_of(second, backend, copy=int(first == second))
    if base.python == other.python:
        raise UsageError(f"{first} and {second} are one environment", remedy="name two")
    places = places_of((base, other), runtime, threads, dtype)
    with Workers(start_worker) as workers:
        for place in places:
            workers.at(place)  # a version that cannot run here ends it now, and not brick by brick
    if graph is None:  # an executed graph is one version's, and another version may not run its bricks
        best = get(base.backend).graph_at(places[0].runtime.device, dtype, dict(places[0].runtime.options))
        graph = "source" if best == "source" else "fused"
    cut = Cut(granularity, connected=connected, graph=graph, runtime=places[0].runtime, threads=threads)
    until = work_clock() + budget_s
    with decomposing_until(until):
        decomposed = along_source(decompose(models, cut, progress=progress), cut)
    cut_up = [model for model in decomposed if isinstance(model, Decomposition)]
    suite = generate(cut_up, out=folder, settings=cut).suite
    trying = Trying(places, minimum_effect, until, progress)
    counts = Counter(part.key for model in cut_up for part in model.sequences)
    with TemporaryDirectory(prefix="dlbricks-versions-") as name:
        whole = trying.models(models, Path(name))
        seen, call = ({}, None) if suite is None else trying.bricks(suite, counts)
        seen = seen if suite is None else trying.in_models(suite, seen)
        call_ms = None if call is None else call.after_ms - call.before_ms
        rows = [
            replace(_row(model, (base, other), result, seen, minimum_effect), call_ms=call_ms)
            for model, result in zip(decomposed, whole, strict=True)
        ]
        with Workers(start_worker) as workers:
            rows = [
                replace(row, executed=_executed(source, workers, places, Path(name)))
                if row.verdict in {Relation.SLOWER, Relation.FASTER}
                else row
                for row, source in zip(rows, models, strict=True)
            ]
    wall_s = work_clock() - begun
    return VersionComparison(base, other, tuple(rows), suite, call, minimum_effect, threads, wall_s)


def places_of(
    versions: tuple[RuntimeVersion, RuntimeVersion], runtime: RuntimeFields, threads: int, dtype: str = NATIVE
) -> tuple[Place, Place]:
    """Return the place of each version (``place_of``)."""
    device, options = runtime.get("device", "cpu"), runtime.get("options")
    base, other = (
        place_of(Runtime.of(version.backend, device, options), threads, dtype, version.python) for version in versions
    )
    return base, other


@dataclass(frozen=True, slots=True)
class SeenBrick:
    """The results of a brick in two versions.

    Attributes:
        trial: Its visits; an error if it could not be visited.
        fresh: True if fresh processes made the visits, after the first pass made it a suspect.
        suspect: True if it is a suspect that fresh processes did not visit: the time was up.
        in_model: Latencies and their ratio in the cache state of its models; None if it was not visited there.
    """

    trial: Trial | DlbricksError
    fresh: bool = False
    suspect: bool = False
    in_model: Levels | None = None

    @property
    def levels(self) -> Levels | None:
        """Latencies and ratio; None without visits, or if it takes no time that could be measured."""
        return levels_of(self.trial)


def without_call(trial: Trial | DlbricksError, call: Trial | DlbricksError) -> Trial | DlbricksError:
    """Return the visits of a brick as if a call took as long in the other version as in the base.

    A model makes one call, and so does a brick that is called alone. A difference of calls would look like a difference
    of each operator. The correction also removes differences of the processes that the brick and the call share.

    Args:
        trial: Visits of the brick.
        call: Visits of a network of one addition, in the same processes.
    """
    if isinstance(trial, DlbricksError) or isinstance(call, DlbricksError):
        return trial
    both = list(zip(trial.before_ns, trial.after_ns, call.before_ns, call.after_ns, strict=False))
    after = tuple(after - (trimmed(other) - trimmed(base)) for _, after, base, other in both)
    return replace(trial, before_ns=tuple(before for before, *_ in both), after_ns=after)


def brick_verdicts(seen: Mapping[str, SeenBrick], minimum_effect: float) -> dict[str, Relation]:
    """Return the verdict on each brick with latencies; FASTER and SLOWER only if fresh processes decided it.

    Args:
        seen: Results of all bricks (``Trying.bricks``).
        minimum_effect: Relative difference that matters.
    """
    levels = {key: known for key, brick in seen.items() if (known := brick.levels) is not None}
    fresh = [key for key in levels if seen[key].fresh]
    found = discoveries([levels[key].difference.p for key in fresh])
    told = {key for key, discovered in zip(fresh, found, strict=True) if discovered}
    return {
        key: relation(known.difference, minimum_effect=minimum_effect, discovered=key in told)
        for key, known in levels.items()
    }


@dataclass(frozen=True, slots=True)
class Trying:
    """Runs models and bricks at two places until a time.

    Attributes:
        places: The base and the other place.
        minimum_effect: Relative difference that matters.
        until: Time on the ``work_clock`` at which visiting ends.
        progress: Called between visits.
    """

    places: tuple[Place, Place]
    minimum_effect: float
    until: float
    progress: ProgressCallback | None = None

    def models(self, models: Sequence[ModelSource], folder: Path) -> list[Trial | DlbricksError]:
        """Return the visits of each model, until its verdict is clear or its share of the time is spent.

        Args:
            models: The models.
            folder: Existing folder for copies.
        """
        pairs: list[TrialPair | DlbricksError] = []
        for number, source in enumerate(models):
            try:
                control = write_out(source.skeleton()).control
                runnable = run_as_given(source, folder / str(number), control)
                base, other = (Contender(runnable, place) for place in self.places)
                pairs.append(TrialPair(base, other, label=source.name))
            except DlbricksError as error:
                pairs.append(error)
        begun = work_clock()
        trials = iter(
            try_out(
                [pair for pair in pairs if isinstance(pair, TrialPair)],
                visits=MOST * VISITS,
                processes=MOST,
                until=begun + _OF_MODELS * (self.until - begun),
                settled=lambda trial: judged(trial, self.minimum_effect)[2] is not Relation.UNCLEAR,
                start=warm_worker,
                progress=self.progress,
            )
        )
        return [next(trials) if isinstance(pair, TrialPair) else pair for pair in pairs]

    def bricks(
        self, suite: Suite, counts: Mapping[str, int] | None = None
    ) -> tuple[dict[str, SeenBrick], Levels | None]:
        """Return the results of each brick after both passes, by key, and the latency of a call.

        Args:
            suite: The bricks.
            counts: Occurrences in a model: the suspects with the largest effect come first; None: 1 for all.
        """
        if not suite.keys:
            return {}, None
        begun = work_clock()
        seen, call = self._pass(suite, suite.keys, _FIRST, brief=True)
        load_s = (work_clock() - begun) / len(seen) / _FIRST[0]
        suspects: dict[str, tuple[float, float]] = {}
        for key, brick in seen.items():
            if (levels := brick.levels) is not None and self._is_suspect(levels):
                effect_ms = (counts or {}).get(key, 1) * abs(levels.after_ms - levels.before_ms)
                visits_s = _FRESH[1] * sum(_visit_s(ms) for ms in (levels.before_ms, levels.after_ms))
                suspects[key] = (effect_ms, _FRESH[0] * load_s + visits_s)
        remaining_s, chosen = _OF_BRICKS * (self.until - work_clock()), []
        for key, (_, cost_s) in sorted(suspects.items(), key=lambda item: -item[1][0]):
            remaining_s -= cost_s
            if remaining_s < 0:
                break
            chosen.append(key)
        seen |= {key: replace(seen[key], suspect=True) for key in suspects.keys() - {*chosen}}
        fresh, fresh_call = self.fresh(suite, chosen) if chosen else ({}, None)
        return seen | fresh, fresh_call or call

    def fresh(self, suite: Suite, keys: Sequence[str]) -> tuple[dict[str, SeenBrick], Levels | None]:
        """Return the visits of some bricks of a suite in fresh processes, by key, and the latency of a call there."""
        seen, call = self._pass(suite, keys, _FRESH)
        return {key: replace(brick, fresh=True) for key, brick in seen.items()}, call

    def in_models(self, suite: Suite, seen: Mapping[str, SeenBrick]) -> dict[str, SeenBrick]:
        """Visit bricks that differ in the cache state of their models, and return all bricks by key.

        Args:
            suite: The bricks.
            seen: Results of all bricks (``bricks``).
        """
        verdicts = brick_verdicts(seen, self.minimum_effect)
        told = [key for key, verdict in verdicts.items() if verdict in {Relation.SLOWER, Relation.FASTER}]
        if not told or not all(place.together for place in self.places):
            return dict(seen)
        processes, visits = _IN_MODEL
        trials = try_in_models(
            suite, told, self.places, visits=visits, processes=processes, until=self.until, progress=self.progress
        )
        return {**seen, **{key: replace(seen[key], in_model=levels_of(trial)) for key, trial in trials.items()}}

    def _pass(
        self, suite: Suite, keys: Sequence[str], effort: tuple[int, int], *, brief: bool = False
    ) -> tuple[dict[str, SeenBrick], Levels | None]:
        """Visit bricks and a call of one addition; subtract the difference of the call from their differences."""
        processes, visits = effort
        with TemporaryDirectory(prefix="dlbricks-call-") as name:
            call = Path(name) / "call.onnx"
            write_built_in(OVERHEAD, call)
            files = [("a call", call), *((key[:_LABEL], suite.brick_path(key)) for key in keys)]
            pairs = [brick_pair(path, self.places, label, brief=brief) for label, path in files]
            first, *trials = try_out(
                pairs, visits=visits, processes=processes, until=self.until, progress=self.progress
            )
        seen = {key: SeenBrick(without_call(trial, first)) for key, trial in zip(keys, trials, strict=True)}
        return seen, SeenBrick(first).levels

    def _is_suspect(self, levels: Levels) -> bool:
        """Return true if a brick may differ by the minimum effect."""
        large = abs(math.log(levels.difference.ratio)) > math.log1p(self.minimum_effect) / 2
        return large and levels.difference.p < _CHANCE


def _visit_s(latency_ms: float) -> float:
    """Return the seconds of a visit, with the execution before it."""
    latency_ns = latency_ms * 1e6
    return (loops_of(int(latency_ns)) + warmups_of(int(latency_ns))) * latency_ns / 1e9


def _row(
    model: Decomposition | Failed,
    versions: tuple[RuntimeVersion, RuntimeVersion],
    whole: Trial | DlbricksError,
    seen: Mapping[str, SeenBrick],
    minimum_effect: float,
) -> ModelVersions:
    base, other = (version.name for version in versions)
    row = ModelVersions(model.source.name, base, other)
    if isinstance(whole, DlbricksError):
        row = replace(row, error=str(whole))
    elif whole.visits:
        levels, _, verdict = judged(whole, minimum_effect)
        row = replace(row, levels=levels, verdict=verdict, processes=len(whole.before_ns))
        if (starts := starts_of(whole)) is not None:
            row = replace(row, load=starts[0], first_run=starts[1])
    else:
        row = replace(row, error=_LATE)
    if isinstance(model, Failed):
        return replace(row, error=row.error or model.reason)
    verdicts = brick_verdicts(seen, minimum_effect)
    skipped = [layer for layer in model.graph.layers if layer.state is LayerState.SKIPPED]
    bricks, missing = [], {layer.name: layer.reason for layer in skipped}
    for key, brick in bricks_of(model).items():
        known, trial, found = seen[key], seen[key].trial, seen[key].levels
        if isinstance(trial, DlbricksError):
            missing[key] = str(trial)
        elif found is None:
            missing[key] = "it takes no time that could be measured" if trial.visits else _LATE
        else:
            state = (known.fresh, known.suspect, trial.largest_error, known.in_model)
            bricks.append(BrickVersions(brick, found, verdicts[key], *state))
    bricks.sort(key=lambda brick: -abs(brick.effect_ms))
    return replace(row, bricks=tuple(bricks), missing=missing)


def _executed(
    source: ModelSource, workers: Workers[Place], places: tuple[Place, Place], folder: Path
) -> dict[str, tuple[int, int]] | None:
    """Return the operators that both versions execute in different numbers; None if a runtime does not report them."""
    counts = []
    for number, place in enumerate(places):
        answer = folder / f"executed-{number}"
        answer.mkdir(exist_ok=True)
        try:
            runnable = run_as_given(source, folder / "executed", write_out(source.skeleton()).control)
            timeout_s = Timeouts.optimising(source.skeleton().weight_bytes)
            workers.at(place).extract([file_of(runnable)], [answer], timeout_s=timeout_s)
        except MachineBusy:
            raise
        except (BackendError, UsageError):  # it reports no graph, or cannot write the one of this model
            return None
        counts.append(Counter(node.op_type for node in read_network(answer / EXECUTED).graph.node))
    base, other = counts
    return {name: (base[name], other[name]) for name in sorted({*base, *other}) if base[name] != other[name]}
