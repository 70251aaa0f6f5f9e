"""The time that a language model takes to answer: its prompt and its steps, from bricks at a few lengths."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ...constructor.curve import Curve, Point
from ...constructor.result import Estimate
from ...constructor.token_latency import Generation, Rate, generation, lengths_between, rate, steps_of
from ...constructor.token_parts import PartTime, token_parts
from ...db import Store
from ...errors import UsageError
from ...generator.backends.base import Backend
from ...generator.backends.registry import get
from ...generator.decomposition.decompose import Model, decompose, decomposing_until
from ...generator.machine.free_memory import whole_pieces
from ...generator.machine.lock import work_clock
from ...generator.measurement.run import RunReport
from ...generator.measurement.settings import PaceFields
from ...generator.progress import ProgressCallback
from ...models import ModelSource
from ...tabular import Records, Row, Tabular, fields, record_of
from ..estimation.estimate import estimate, estimates_in
from ..measuring import MeasuringPlan, Spending
from ..setups import Setup, cut_of, evidence_here, interrupted_here, set_up, settled
from .beside import LOOP_SHARE, Loop, LoopReport, LoopTask, LoopTime, running_loop
from .lengths import Side, sides_of

_POINT = fields(
    "estimate_ms=latency.ms ci95_ms=latency.ci95_ms undisturbed_ms=latency.undisturbed_ms measured_ms=truth.ms "
    "method_sd=latency.method.sd coverage=parts.coverage.sequences error"
)
"""What JSON says of an estimate at one length."""


@dataclass(frozen=True, slots=True)
class Part:
    """The prompt or the step of a model, against its length.

    Attributes:
        side: The model at any length.
        estimates: One per length, by length.
        curve: The complete estimates, by the positions that an execution sees: of a step the cache and its token.
        undisturbed: The same on a quiet machine.
    """

    side: Side
    estimates: dict[int, Estimate]
    curve: Curve
    undisturbed: Curve

    @property
    def parts(self) -> dict[int, tuple[PartTime, ...]]:
        """Where the time goes, by length, of a file with prompt and step."""
        decoder = self.side.decoder
        if decoder is None:
            return {}
        caches = [entry.name for entry in decoder.caches]
        return {length: token_parts(entry, caches, decoder.logits) for length, entry in self.estimates.items()}

    def record(self) -> Row:
        """Return the estimates as a JSON object."""
        parts = self.parts
        points = [
            {
                "length": length, **record_of(entry, _POINT),
                "parts": [asdict(part) | {"gb_per_s": part.gb_per_s} for part in parts.get(length, ())],
            }
            for length, entry in self.estimates.items()
        ]  # fmt: skip
        left_out = [
            asdict(point) | {"length": point.length - self.side.seen, "error": point.error}
            for point in self.curve.left_out
        ]
        return {
            "model": self.side.source.name,
            "dimension": self.side.dimension,
            "points": points,
            "left_out": left_out,
            "error": self.curve.error,
        }


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a decoder.

    Attributes:
        weight_bytes: Bytes of its weights.
        cache_bytes: Bytes of all keys and values at the longest context.
        positions: This context.
        position_bytes: Bytes of the keys and values of one position of each sequence.
    """

    weight_bytes: int
    cache_bytes: int
    positions: int
    position_bytes: int


@dataclass(frozen=True, slots=True)
class Tokens(Tabular):
    """The times of a language model for prompts of several lengths.

    Attributes:
        prompt: The model of the prompt.
        step: The model of a step.
        rows: One per length of the prompt.
        undisturbed: The same on a quiet machine, without intervals, for comparing runs and machines.
        rates: Rates of prompts, of tokens one by one, of both, and of one token behind each context.
        batch: Sequences at once.
        loop: Times of the model's own loop; None without a loop.
        memory: Memory of a file with prompt and step; None for two models.
        setup: How it was measured.
        measured: Measurements of this call, of the prompt and of the step; may be empty.
        wall_s: Duration of the whole call, without waiting for another process.
        unasked: Why the budget did not hold; empty if it did.
        interrupted: What interrupted the measurement; the answers are from what was known until then.
    """

    ANSWER = "decoding.token_answer.tokens_answer"

    prompt: Part
    step: Part
    rows: tuple[Generation, ...]
    undisturbed: tuple[Generation, ...]
    rates: tuple[Rate, ...]
    batch: int
    loop: LoopReport | None
    memory: Memory | None
    setup: Setup
    measured: tuple[RunReport, ...]
    wall_s: float
    unasked: tuple[str, ...] = ()
    interrupted: KeyboardInterrupt | None = None

    @property
    def complete(self) -> bool:
        """True if every answer is known, from start to end, and the loop did not fail."""
        known = all(row.total_ms is not None for row in self.rows) and all(rate.ms is not None for rate in self.rates)
        return known and (self.loop is None or self.loop.complete)

    @property
    def tests(self) -> list[dict[str, object]]:
        """The rates as JSON objects, with the times of the loop for the same executions."""
        return [asdict(entry) | {"each_ms": entry.each_ms, "each_ci95_ms": entry.each_ci95_ms, **self._looped(entry)}
                for entry in self.rates]  # fmt: skip

    def _looped(self, entry: Rate) -> dict[str, object]:
        """Return the time of the loop for a rate, and the ratio of the estimate of the same executions to it."""
        empty = dict.fromkeys(("loop_ms", "loop_ci95_ms", "loop_visits", "ratio", "ratio_ci95"))
        taken, points = self._executed(entry)
        if taken is None:
            return empty
        if not points:  # the loop is measured all the same
            return empty | {"loop_ms": taken.ms, "loop_ci95_ms": taken.ci95_ms, "loop_visits": taken.visits}
        ms = sum(point.ms for point in points) / len(points)
        intervals = [point.ci95_ms for point in points if point.ci95_ms is not None]
        known = len(intervals) == len(points)
        mean = (
            (sum(low for low, _ in intervals) / len(points), sum(high for _, high in intervals) / len(points))
            if known
            else None
        )
        ratio, ratio_ci95 = taken.ratio(ms, mean if self.measured else None)  # runs differ by more than an interval has
        values = (taken.ms, taken.ci95_ms, taken.visits, ratio, ratio_ci95)
        return dict(zip(empty, values, strict=True))

    def _executed(self, entry: Rate) -> tuple[LoopTime | None, list[Point]]:
        """Return the time of the loop for a part of a rate, and the estimates of the same executions."""
        times = {} if self.loop is None else self.loop.times
        for task, taken in times.items():
            if task.prompt and entry.test == f"pp{task.length}":
                points = [self.prompt.curve.at(task.length)]
            elif not task.prompt and "pp" not in entry.test and task.length == entry.context:
                points = [self.step.curve.at(context + 1) for context in task.contexts]
            else:
                continue
            return taken, [point for point in points if point is not None] if None not in points else []
        return None, []

    def records(self) -> Records:
        """Return one row per length of the prompt; tests, memory and measurements as totals."""
        names = {"prompt_model": self.prompt.side.source.name, "step_model": self.step.side.source.name}
        rows = [
            names | {"batch": self.batch} | asdict(row)
            | {"ttft_undisturbed_ms": still.ttft_ms, "token_undisturbed_ms": still.token_ms}
            for row, still in zip(self.rows, self.undisturbed, strict=True)
        ]  # fmt: skip
        totals = {
            "tests": self.tests,
            "memory": None if self.memory is None else asdict(self.memory),
            "loop_reason": None if self.loop is None else self.loop.reason or None,
            "curves": {"prompt": self.prompt.record(), "step": self.step.record()},
            "picked": list(self.setup.picked),
            "measured": sum(report.measured for report in self.measured),
            "unasked": list(self.unasked),
            "wall_s": self.wall_s,
        }
        return Records(rows, totals)


def tokens(
    prompt: ModelSource,
    step: ModelSource | None = None,
    *,
    store: Store,
    prompts: Sequence[int],
    new: int,
    contexts: Sequence[int] | None = None,
    batch: int | None = None,
    lengths: Sequence[int] = (),
    roles: Mapping[str, str] | None = None,
    prompt_dimension: str | None = None,
    past_dimension: str | None = None,
    loop: bool = True,
    setup: Setup | None = None,
    measure: bool = True,
    visits: int = 24,
    budget_s: float | None = None,
    suite: str | os.PathLike[str] | None = None,
    progress: ProgressCallback | None = None,
) -> Tokens:
    """Estimate time to the first token, time per token and tokens per second, from bricks at a few lengths.

    Latencies of prompt and step are estimated at these lengths and interpolated (``constructor/curve.py``). Nothing is
    extrapolated. The loop of a file with both runs alternately with the measurement: greedy decoding with its cache.

    Args:
        prompt: A decoder in one file, or the model that takes a prompt and fills a cache.
        step: The model that takes one token and extends the cache; None: the same file.
        store: Database of the measurements.
        prompts: Lengths of the prompt.
        new: Tokens of every answer.
        contexts: Cached positions to tell the time of one token at; None: 0, 512 and 2,048 for one file, as far as it
            has positions.
        batch: Sequences at once; None: 1, or what two models fix.
        lengths: Measured lengths of prompt and step; empty: the shortest and longest needed one, and powers of two.
        roles: Role by input of one file, for inputs that names and use do not tell.
        prompt_dimension: Dimension of ``prompt`` that counts its tokens; None: found by name and place.
        past_dimension: Dimension of ``step`` that counts positions in the cache; None: found by name and place.
        loop: Run the loop of one file.
        setup: How to measure; by default as ``set_up``.
        measure: Decompose and measure missing bricks; False: use only stored measurements.
        visits: Number of visits of each brick.
        budget_s: Total time, instead of ``visits``.
        suite: Folder for the bricks; None: a temporary one.
        progress: Called between requests to the worker.

    Raises:
        UsageError: A length is less than 1 or beyond the model's positions, no prompt length is given, or an input is
            not understood.
        UnboundDimension: A model has no such dimension.
        ModelError: A model cannot be read.
        AmbiguousQuery: With ``measure=False``, several stored combinations match.
        DlbricksError: The machine cannot measure now, or the suite's folder holds something else.

    Example:
        >>> with Store.open("dlbricks.db") as store:  # doctest: +SKIP
        ...     answers = tokens(*find_models(["decoder.onnx"]), store=store, prompts=[512], new=128)
    """
    begun, spent = work_clock(), Spending()
    if not prompts or min(*prompts, *lengths, new, batch or 1, 1) < 1:
        raise UsageError("prompts, answers and lengths have at least one token", remedy="give lengths of 1 or more")
    how = setup or set_up()
    if measure:
        how = settled(how)
    filled, extended = sides_of(
        prompt, step, prompt_dimension=prompt_dimension, past_dimension=past_dimension, roles=roles, batch=batch,
        opened=_keeps_lengths_open(how),
    )  # fmt: skip
    depths = _contexts(extended, prompts, new, contexts)
    where = {
        "prompt": sorted(set(lengths)) or lengths_between(min(prompts), max(prompts)),
        "step": sorted({*lengths, *depths}) if lengths else _of_steps(extended, prompts, new, depths),
    }
    sides = {"prompt": filled, "step": extended}
    models: list[Model] = [model for name, side in sides.items() for model in side.at(where[name])]
    spent.on("reading")
    until = math.inf if budget_s is None else begun + budget_s
    reports: tuple[RunReport, ...] = ()
    looped: LoopReport | None = None
    interrupted: KeyboardInterrupt | None = None
    with ExitStack() as resources:
        kept_s = _kept_s(extended, how, budget_s) if measure and loop else 0.0
        resources.enter_context(decomposing_until(until - kept_s))
        running: Loop | LoopReport | None = None
        if measure:
            models = [*decompose(models, cut_of(how), progress=progress)]
        spent.on("decomposing")
        if measure and loop and extended.decoder is not None:
            tasks = [
                *(LoopTask(length, prompt=True) for length in prompts),
                *(LoopTask(depth, prompt=False) for depth in depths),
            ]
            resources.enter_context(whole_pieces(2 * extended.decoder.weight_bytes))  # its loop loads first
            running = resources.enter_context(running_loop(extended, how, tasks, progress))
            spent.on("loading the loop")
        try:
            if measure:
                called = running if isinstance(running, Loop) else progress
                plan = MeasuringPlan(store, how, visits, budget_s, until, called)
                shares = {"prompt": models[: len(where["prompt"])], "step": models[len(where["prompt"]) :]}
                decoder = extended.decoder
                together_bytes = None if decoder is None else max(decoder.weight_bytes, _LEAST_TOGETHER)
                reports = _measured(shares, plan, suite, together_bytes)
            if isinstance(running, Loop):
                running.finish(until)
        except KeyboardInterrupt as error:
            interrupted = error
        looped = running.report() if isinstance(running, Loop) else running
    spent.on("measuring")
    with interrupted_here(store, how) if interrupted is not None else nullcontext():
        estimates = iter(_estimates(models, store, how, measure=measure))
    parts = [_part(side, {length: next(estimates) for length in where[name]}) for name, side in sides.items()]
    answers, still = (
        tuple(generation(*curves, prompt=length, new=new, batch=filled.batch) for length in prompts)
        for curves in ([part.curve for part in parts], [part.undisturbed for part in parts])
    )
    memory = _memory(extended, max([*depths, *(length + new for length in prompts)]))
    spent.on("estimating")
    latencies_ms = {entry.name: entry.latency.ms for part in parts for entry in part.estimates.values()}
    return Tokens(
        parts[0], parts[1], answers, still, _rates(parts, prompts, new, depths), filled.batch, looped, memory, how,
        reports, work_clock() - begun, spent.beyond(budget_s, latencies_ms), interrupted,
    )  # fmt: skip


def _rates(parts: Sequence[Part], prompts: Sequence[int], new: int, depths: Sequence[int]) -> tuple[Rate, ...]:
    """Return the rates of prompts, of answers behind nothing and behind prompts, and of a token behind each depth."""
    (first, second), (filled, extended) = (part.curve for part in parts), (part.side for part in parts)
    rates = [rate(first, second, prompt=length, batch=filled.batch) for length in prompts]
    if extended.decoder is not None:
        rates += [rate(first, second, new=new, batch=filled.batch)] if 0 in depths else []
        rates += [rate(first, second, prompt=length, new=new, batch=filled.batch) for length in prompts]
    return (*rates, *(rate(first, second, new=1, context=depth, batch=filled.batch) for depth in depths))


def _keeps_lengths_open(how: Setup) -> bool:
    """Return True if the loop of a decoder runs in this runtime: one session with open lengths, for all of them."""
    return how.runtime.device == "cpu" and get(how.runtime.backend).offers(Backend.decoding)


_FOR_LOOP, _FOR_LOOP_S = 0.5, 15.0
"""Share of a budget, and seconds at most, that decomposing leaves to the loop and to bricks."""


def _kept_s(side: Side, how: Setup, budget_s: float | None) -> float:
    """Return the seconds of a budget that decomposing leaves to the loop of a decoder; 0 if none runs."""
    if budget_s is None or side.decoder is None or not _keeps_lengths_open(how):
        return 0.0
    return min(_FOR_LOOP * budget_s, _FOR_LOOP_S)


_CONTEXTS = (0, 512, 2048)
"""Cached positions that the time of a token is told at."""


def _contexts(side: Side, prompts: Sequence[int], new: int, contexts: Sequence[int] | None) -> tuple[int, ...]:
    """Return the contexts to tell the time of a token at.

    Raises:
        UsageError: A length is beyond the positions of the model.
    """
    most = None if side.decoder is None else side.decoder.positions
    longest = max([*(length + new for length in prompts), *(depth + 1 for depth in contexts or ())])
    if most is not None and longest > most:
        raise UsageError(
            f"{side.source.name} has {most} positions, and {longest} are asked for",
            remedy="give shorter --prompt, --new or --context",
        )
    if contexts is not None or side.decoder is None:
        return tuple(sorted(set(contexts or ())))
    return tuple(depth for depth in _CONTEXTS if most is None or depth < most)


def _memory(side: Side, positions: int) -> Memory | None:
    decoder = side.decoder
    if decoder is None:
        return None
    each = decoder.cache_bytes(batch=1, positions=1)
    return Memory(decoder.weight_bytes, decoder.cache_bytes(batch=side.batch, positions=positions), positions, each)


def _of_steps(side: Side, prompts: Sequence[int], new: int, depths: Sequence[int]) -> tuple[int, ...]:
    """Return the lengths of the cache to measure at."""
    first, last = steps_of(min(prompts), new), steps_of(max(prompts), new)
    if side.decoder is None:
        return tuple(sorted({*(lengths_between(first[0], last[-1]) if first else ()), *depths}))
    # Answers begin behind an empty cache and behind each prompt, and end further on.
    ends = {min(prompts), max(prompts) + new - 1, *({new - 1} if 0 in depths else ())}
    needed = sorted({*ends, *depths})
    kept = {needed[0], needed[-1], *depths}
    for length in needed:
        if all(5 * (min(length, other) + _NEAR) <= 4 * (max(length, other) + _NEAR) for other in kept):
            kept.add(length)
    return tuple(sorted(kept))


_NEAR = 16
"""Positions that are added to lengths before they are compared: a step at 0 is as long as one at 10."""


_LEAST_TOGETHER = 1 << 29
"""Bricks of small decoders are loaded together up to this size in bytes; otherwise up to the size of the weights."""


def _measured(
    parts: Mapping[str, Sequence[Model]],
    plan: MeasuringPlan,
    suite: str | os.PathLike[str] | None,
    together_bytes: int | None,
) -> tuple[RunReport, ...]:
    """Measure the missing bricks of the prompt and of the step in separate runs.

    A step mostly reads weights, a prompt computes. Each brick alternates with bricks of its own kind, as in its model.

    Args:
        parts: The models at each length, of the prompt and of the step.
        plan: How to measure, and until when.
        suite: Folder for the bricks; None: a temporary one.
        together_bytes: Bricks are kept loaded together up to this size; None: as far as memory allows.
    """
    reports: list[RunReport] = []
    with ExitStack() as resources:
        folder = Path(suite or resources.enter_context(TemporaryDirectory(prefix="dlbricks-tokens-")))
        for number, (name, all_models) in enumerate(parts.items()):
            estimates = _estimates(all_models, plan.store, plan.how, measure=True)
            models = [model for model, entry in zip(all_models, estimates, strict=True) if not entry.complete]
            if not models:
                continue
            left_s = plan.left_s(0.0)
            own = 1.0 - (LOOP_SHARE if isinstance(plan.progress, Loop) else 0.0)
            share_s = None if left_s is None else max(1.0, own * left_s / (len(parts) - number))
            pace = PaceFields(visits=plan.visits, budget_s=share_s, together_bytes=together_bytes)
            _, report = plan.measure(models, folder / name, pace)
            reports += [] if report is None else [report]
    return tuple(reports)


def _estimates(models: Sequence[Model], store: Store, how: Setup, *, measure: bool) -> list[Estimate]:
    decomposed = [model for model in models if not isinstance(model, ModelSource)]
    if measure:
        return [*estimate(decomposed, evidence_here(decomposed, store, how))]
    return estimates_in(store, models, how, cut_of(how))


def _part(side: Side, estimates: dict[int, Estimate]) -> Part:
    points = (
        Point(length + side.seen, entry.latency.ms, entry.latency.ci95_ms)
        for length, entry in estimates.items()
        if entry.latency.ms is not None
    )
    quiet = (
        Point(length + side.seen, entry.latency.undisturbed_ms)
        for length, entry in estimates.items()
        if entry.latency.ms is not None and entry.latency.undisturbed_ms is not None
    )
    return Part(side, estimates, Curve.through(points), Curve.through(quiet))
