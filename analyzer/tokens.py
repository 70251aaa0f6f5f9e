"""The time that a language model takes to answer: its prompt and its steps, from bricks at a few lengths."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ..constructor.curve import Curve, Point
from ..constructor.result import Estimate
from ..constructor.token_latency import Generation, generation, lengths_between, steps_of
from ..db import Store
from ..errors import UnboundDimension, UsageError
from ..generator.measurement.run import RunReport
from ..generator.progress import ProgressCallback
from ..models import ModelSource
from ..models.dimensions import DimensionKind
from ..models.source import find_models
from ..tabular import Field, Records, Row, Tabular, fields, record_of
from .estimation.estimate import estimates_in
from .limits import Figure
from .measuring import MeasuringPlan
from .report.answers.estimated import caveats
from .report.answers.summary import measured_lines
from .report.tables import Answer
from .report.units import counted, milliseconds
from .setups import Setup, cut_of, estimates_here, notes_of, set_up, settled

# The two models of a decoder, and each of them at several lengths.


_LENGTH_PARTS = ("_prompt", "_step")
"""What names of the zoo end in: of the model that fills a cache, and of that which extends it."""


def at_lengths(source: ModelSource, dimension: str, lengths: Iterable[int]) -> list[ModelSource]:
    """Return a model at each length of one dimension, with ``@dimension=length`` at the end of its name."""
    others = tuple((name, size) for name, size in source.dims if name != dimension)
    return [
        replace(source, name=f"{source.name}@{dimension}={length}", dims=(*others, (dimension, length)))
        for length in lengths
    ]


def pair(models: Sequence[str], dims: Mapping[str, int] | None = None) -> tuple[ModelSource, ModelSource]:
    """Return the models of prompt and step, from two names, or from the common beginning of two zoo names.

    Args:
        models: Files or names.
        dims: Values of the dimensions that do not vary, such as an encoder's length.

    Raises:
        UsageError: There are more names, a single name without a pair in the zoo, or an argument with several models.
    """
    arguments = [f"{models[0]}{part}" for part in _LENGTH_PARTS] if len(models) == 1 else list(models)
    sources = find_models(arguments, dims=dims)
    problem = next((source.problem for source in sources if source.problem), None)
    if len(models) == 1 and problem is not None:
        raise UsageError(
            f"'{models[0]}' is not a decoder of the zoo",
            remedy="give the models of the prompt and of a step; "
            "'dlbricks models list' shows names that end in _prompt and _step",
        )
    if problem is not None:
        raise problem
    if len(sources) != len(_LENGTH_PARTS):
        raise UsageError(f"{len(sources)} models are not a prompt and a step", remedy="give two models, or one name")
    return sources[0], sources[1]


def length_dimension(source: ModelSource, kind: DimensionKind, dimension: str | None, option: str) -> str:
    """Return the dimension that counts the length of a model.

    Args:
        source: The model.
        kind: Kind of the dimension: ``SEQUENCE`` or ``PAST``.
        dimension: Its name; None: found by name and place.
        option: The option that gives the name, for the error.

    Raises:
        UnboundDimension: There is no such dimension.
        ModelError: The model cannot be read.
    """
    kinds = source.open_dimensions()
    name = dimension or next((name for name, dimension_kind in kinds.items() if dimension_kind is kind), None)
    if name is None or name not in kinds:
        what = f"dimension '{dimension}'" if dimension else f"open dimension that counts {_COUNTED[kind]}"
        remedy = f"there are {', '.join(kinds)}: {option} NAME" if kinds else "export it with dynamic dimensions"
        raise UnboundDimension(f"model '{source.name}' has no {what}", remedy=remedy)
    return name


_COUNTED = {DimensionKind.SEQUENCE: "tokens of a prompt", DimensionKind.PAST: "positions of a cache"}


_POINT = fields(
    "estimate_ms=latency.ms ci95_ms=latency.ci95_ms undisturbed_ms=latency.undisturbed_ms measured_ms=truth.ms "
    "coverage=parts.coverage.sequences error"
)
"""What JSON says of an estimate at one length."""


@dataclass(frozen=True, slots=True)
class Part:
    """The prompt or the step of a model, against its length.

    Attributes:
        source: The model.
        dimension: The dimension that varies.
        estimates: One per length, by length.
        curve: The complete estimates.
        undisturbed: The same on a quiet machine.
    """

    source: ModelSource
    dimension: str
    estimates: dict[int, Estimate]
    curve: Curve
    undisturbed: Curve

    def record(self) -> Row:
        """Return the estimates as a JSON object."""
        points = [{"length": length, **record_of(entry, _POINT)} for length, entry in self.estimates.items()]
        left_out = [asdict(point) | {"error": point.error} for point in self.curve.left_out]
        return {
            "model": self.source.name,
            "dimension": self.dimension,
            "points": points,
            "left_out": left_out,
            "error": self.curve.error,
        }


@dataclass(frozen=True, slots=True)
class Tokens(Tabular):
    """The times of a language model for prompts of several lengths.

    Attributes:
        prompt: The model of the prompt.
        step: The model of a step.
        rows: One per length of the prompt.
        undisturbed: The same on a quiet machine, without intervals, for comparing runs and machines.
        setup: How it was measured.
        measured: Measurements of this call, of the prompt and of the step; may be empty.
        wall_s: Duration of the whole call.
    """

    ANSWER = "tokens.tokens_answer"

    prompt: Part
    step: Part
    rows: tuple[Generation, ...]
    undisturbed: tuple[Generation, ...]
    setup: Setup
    measured: tuple[RunReport, ...]
    wall_s: float

    @property
    def complete(self) -> bool:
        """True if every answer is known, from start to end."""
        return all(row.total_ms is not None for row in self.rows)

    def records(self) -> Records:
        """Return one row per length of the prompt; the measurements as ``curves``."""
        names = {"prompt_model": self.prompt.source.name, "step_model": self.step.source.name}
        rows = [
            names | asdict(row) | {"ttft_undisturbed_ms": still.ttft_ms, "token_undisturbed_ms": still.token_ms}
            for row, still in zip(self.rows, self.undisturbed, strict=True)
        ]
        totals = {
            "curves": {"prompt": self.prompt.record(), "step": self.step.record()},
            "picked": list(self.setup.picked),
            "measured": sum(report.measured for report in self.measured),
            "wall_s": self.wall_s,
        }
        return Records(rows, totals)


def tokens(
    prompt: ModelSource,
    step: ModelSource,
    *,
    store: Store,
    prompts: Sequence[int],
    new: int,
    lengths: Sequence[int] = (),
    prompt_dimension: str | None = None,
    past_dimension: str | None = None,
    setup: Setup | None = None,
    measure: bool = True,
    visits: int = 24,
    budget_s: float | None = None,
    suite: str | os.PathLike[str] | None = None,
    progress: ProgressCallback | None = None,
) -> Tokens:
    """Estimate time to the first token, time per token and tokens per second, from bricks at a few lengths.

    Latencies of prompt and step are estimated at these lengths and interpolated (``constructor/curve.py``). Nothing is
    extrapolated. No model is executed as a whole.

    Args:
        prompt: The model that takes a prompt and fills a cache.
        step: The model that takes one token and extends the cache.
        store: Database of the measurements.
        prompts: Lengths of the prompt.
        new: Tokens of every answer.
        lengths: Measured lengths of prompt and step; empty: the shortest and longest needed one, and powers of two.
        prompt_dimension: Dimension of ``prompt`` that counts its tokens; None: found by name and place.
        past_dimension: Dimension of ``step`` that counts positions in the cache; None: found by name and place.
        setup: How to measure; by default as ``set_up``.
        measure: Decompose and measure missing bricks; False: use only stored measurements.
        visits: Number of visits of each brick.
        budget_s: Total time, instead of ``visits``.
        suite: Folder for the bricks; None: a temporary one.
        progress: Called between requests to the worker.

    Raises:
        UsageError: A length is less than 1, or no prompt length is given.
        UnboundDimension: A model has no such dimension.
        ModelError: A model cannot be read.
        AmbiguousQuery: With ``measure=False``, several stored combinations match.
        DlbricksError: The machine cannot measure now, or the suite's folder holds something else.

    Example:
        >>> with Store.open("dlbricks.db") as store:  # doctest: +SKIP
        ...     answers = tokens(*pair(["distilgpt2"]), store=store, prompts=[32, 512], new=128)
    """
    begun = time.monotonic()
    if not prompts or min(*prompts, *lengths, new, 1) < 1:
        raise UsageError("prompts, answers and lengths have at least one token", remedy="give lengths of 1 or more")
    how = setup or set_up()
    if measure:
        how = settled(how)
    filled = length_dimension(prompt, DimensionKind.SEQUENCE, prompt_dimension, "--prompt-dim")
    extended = length_dimension(step, DimensionKind.PAST, past_dimension, "--past-dim")
    at_prompt = sorted(set(lengths)) or lengths_between(min(prompts), max(prompts))
    at_step = sorted(set(lengths)) or _of_steps(prompts, new)
    sources = {"prompt": at_lengths(prompt, filled, at_prompt), "step": at_lengths(step, extended, at_step)}
    until = math.inf if budget_s is None else begun + budget_s
    plan = MeasuringPlan(store, how, visits, budget_s, until, progress)
    reports = _measured(sources, plan, suite) if measure else ()
    estimates = iter(_estimates([*sources["prompt"], *sources["step"]], store, how, measure=measure))
    parts = [
        _part(model, dimension, {length: next(estimates) for length in where})
        for model, dimension, where in ((prompt, filled, at_prompt), (step, extended, at_step))
    ]
    answers, still = (
        tuple(generation(*curves, prompt=length, new=new) for length in prompts)
        for curves in ([part.curve for part in parts], [part.undisturbed for part in parts])
    )
    return Tokens(parts[0], parts[1], answers, still, how, reports, time.monotonic() - begun)


def _of_steps(prompts: Sequence[int], new: int) -> tuple[int, ...]:
    """Lengths of the cache to measure at."""
    first, last = steps_of(min(prompts), new), steps_of(max(prompts), new)
    return lengths_between(first[0], last[-1]) if first else ()


def _measured(
    parts: Mapping[str, Sequence[ModelSource]], plan: MeasuringPlan, suite: str | os.PathLike[str] | None
) -> tuple[RunReport, ...]:
    """Measure the missing bricks of the prompt and of the step in separate runs.

    A step mostly reads weights, a prompt computes. Each brick alternates with bricks of its own kind, as in its model.
    """
    reports: list[RunReport] = []
    with ExitStack() as resources:
        folder = Path(suite or resources.enter_context(TemporaryDirectory(prefix="dlbricks-tokens-")))
        for number, (name, all_models) in enumerate(parts.items()):
            estimates = estimates_here(all_models, plan.store, plan.how)
            models = [source for source, entry in zip(all_models, estimates, strict=True) if not entry.complete]
            if not models:
                continue
            left_s = plan.left_s(0.0)
            share_s = None if left_s is None else max(1.0, left_s / (len(parts) - number))
            _, report = plan.measure(models, folder / name, {"visits": plan.visits, "budget_s": share_s})
            reports += [] if report is None else [report]
    return tuple(reports)


def _estimates(models: Sequence[ModelSource], store: Store, how: Setup, *, measure: bool) -> list[Estimate]:
    if measure:
        return estimates_here(models, store, how)
    return estimates_in(store, models, how, cut_of(how))


def _part(source: ModelSource, dimension: str, estimates: dict[int, Estimate]) -> Part:
    points = (
        Point(length, entry.latency.ms, entry.latency.ci95_ms)
        for length, entry in estimates.items()
        if entry.latency.ms is not None
    )
    quiet = (
        Point(length, entry.latency.undisturbed_ms)
        for length, entry in estimates.items()
        if entry.latency.ms is not None and entry.latency.undisturbed_ms is not None
    )
    return Part(source, dimension, estimates, Curve.through(points), Curve.through(quiet))


# What is answered.


_MOST_REASONS = 3


def tokens_answer(result: Tokens) -> Answer:
    """Return the answer of ``tokens``: one row per length of the prompt; the measurements as ``curves``."""
    records = result.records()
    return Answer.of(
        records,
        columns=[
            Field("prompt", "prompt tokens"),
            Field("ttft_ms", "first token ms ±95%", "ms", interval="ttft_ci95_ms"),
            Field("token_ms", "per token ms ±95%", "ms", interval="token_ci95_ms"),
            Field("first_ms", "second token ms", "ms", spare=True),
            Field("last_ms", "last token ms", "ms", spare=True),
            Field("tokens_per_s", "tokens/s", _rate),
            Field("total_ms", "whole answer ms ±95%", "ms", interval="total_ci95_ms"),
            Field("read", "interpolated", str),
        ],
        summary=list(_summary(result)),
        table=[{**record, "read": _read(row)} for record, row in zip(records.results, result.rows, strict=True)],
    )


def token_figures(result: Tokens) -> dict[str, dict[str, Figure]]:
    """Return the figures that limits can name, by length of the prompt."""
    return {
        f"{result.step.source.name}, {row.prompt} tokens": {
            "first-token": Figure(row.ttft_ms, row.ttft_ci95_ms),
            "token": Figure(row.token_ms, row.token_ci95_ms),
            "tokens/s": Figure(row.tokens_per_s, _rates(row.token_ci95_ms)),
        }
        for row in result.rows
    }


def _rates(token_ci95_ms: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return the interval of tokens per second."""
    if token_ci95_ms is None or min(token_ci95_ms) <= 0:
        return None
    low_ms, high_ms = token_ci95_ms
    return 1e3 / high_ms, 1e3 / low_ms


def _summary(result: Tokens) -> Iterator[str]:
    """Yield lines about measured lengths, errors of interpolation, and missing lengths."""
    for name, part in (("first token", result.prompt), ("each further token", result.step)):
        points = part.curve.points
        if points:
            text = ", ".join(f"{point.length}: {milliseconds(point.ms)}" for point in points)
            yield f"{name}, from bricks of {part.source.name} at {part.dimension} (ms)  {text}"
            yield f"  {_trust(part.curve)}"
        yield from _missing(part)
    yield from _beyond(result)
    yield from caveats([*result.prompt.estimates.values(), *result.step.estimates.values()])
    yield from notes_of(result.setup)
    yield from measured_lines(result.measured, result.wall_s)


def _beyond(result: Tokens) -> Iterator[str]:
    """Return required lengths outside the measured ones."""
    for part, needed in (
        (result.prompt, [row.prompt for row in result.rows]),
        (result.step, [length for row in result.rows for length in steps_of(row.prompt, row.new)]),
    ):
        low, high = min(part.estimates, default=0), max(part.estimates, default=0)
        beyond = [length for length in needed if not low <= length <= high]
        if beyond:
            yield (
                f"{part.source.name}: {part.dimension}={min(beyond)} to {max(beyond)} is outside {low} to "
                f"{high}, and is not extrapolated: give --at lengths that hold it"
            )


def _trust(curve: Curve) -> str:
    """How good it is to read between the measured lengths."""
    if curve.error is None:
        return "nothing says how good it is to read between them: that takes at least three lengths"
    worst = max(abs(point.error) for point in curve.left_out)
    return (
        f"each of {counted(len(curve.left_out), 'length')} left out is read from the others within {worst:.1%}; "
        f"interpolated figures are ± {curve.error:.1%} by that"
    )


def _missing(part: Part) -> Iterator[str]:
    """Return lengths without a latency, each with the reason."""
    reasons = {
        entry.error or f"{counted(len(missing), 'brick')} not measured ({missing[0].reason})": entry.name
        for entry in part.estimates.values()
        if (missing := entry.parts.missing) or entry.error
    }
    for reason, name in list(reasons.items())[:_MOST_REASONS]:
        yield f"{name}: {reason}"


def _read(row: Generation) -> str:
    """Write the interpolated part of an answer."""
    parts = ["first token"] if row.ttft_interpolated else []
    if row.steps_interpolated:
        parts.append(f"{row.steps_interpolated} of {counted(row.steps, 'step')}")
    return ", ".join(parts)


def _rate(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
