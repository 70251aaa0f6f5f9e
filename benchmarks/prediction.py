"""How well bricks predict bricks: whole families of models left out, and one number of threads from another.

    python benchmarks/prediction.py [DB] [--threads 1] [--to DB --to-threads 2] [--models NAME...] [--ship]

The database has the bricks of the models (``dlbricks generate --graph runtime``, ``dlbricks run``). The default is the
bricks that ship with the package, without whole models. Each model is left out with its family. The predictor then
chooses 0, 1, 3, 10 and 30 of its bricks to measure, those that narrow its interval most per second. The total is
compared with the sum of all its measured bricks. Errors of bricks and the quantile of a family come from the other
families. Written under ``--out``: ``prediction.json``. ``--days`` writes errors in other runs instead. ``--ship`` also
writes the files of the package, for all families: the errors of predictions (``prediction.json``) and, with a database,
the bricks (``prior.json.xz``).
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from dlbricks.analyzer.estimation.estimate import settle
from dlbricks.analyzer.estimation.learning import cost_s
from dlbricks.analyzer.estimation.reading import evidence_under, read_evidence
from dlbricks.analyzer.predicting import ROUNDS, START_S, VISITS, choice_of
from dlbricks.analyzer.setups import cut_of, set_up
from dlbricks.bricks.decomposition import Decomposition, Failed
from dlbricks.bricks.features import Features, features_of
from dlbricks.bricks.graph.footprint import parse_level
from dlbricks.bricks.layer import LayerSequence
from dlbricks.constructor.choice import Choice, Query
from dlbricks.constructor.interventions import state_of
from dlbricks.constructor.predictor import (
    VARIANTS,
    Belief,
    Example,
    Forest,
    Gap,
    Guess,
    Machine,
    Origin,
    PlacedBrick,
    PredictorErrors,
    prior,
    prior_systems,
)
from dlbricks.constructor.uncertainty.calibration import NORMAL
from dlbricks.db import Store, System
from dlbricks.generator.decomposition.cut import Cut
from dlbricks.generator.decomposition.decompose import decompose, readable
from dlbricks.models import ModelSource, find_models
from facts import entries, relatives_of
from figures import RESULTS, parser, read, write

_TOP = Path(__file__).resolve().parents[1]
_MEASURED = (0, 1, 3, 10, 30)
_BUDGETS_S = (0, 2, 5, 10)
_START = PredictorErrors(
    slope=0.0, size=0.0, offset=0.0, operators={}, unseen=1.0, alike=0.3, near=0.3, reach=1.5, measured=0.03,
    day=0.0, system=0.3, shift=0.2, local=0.3, single=0.2, least=0.01, quantiles=((0, 1.0),),
)  # fmt: skip
"""Shares and distances were chosen by hand on 34 of the models; what is fitted is fitted with families left out."""


_RUNS = (
    ("again/accuracy-runtime-g1-t1-b1", "accuracy-runtime-g1-t1-b1", "accuracy-runtime-g1-t1-b1-n0.5"),
    ("again/accuracy-fused-g1-t1-b1", "accuracy-fused-g1-t1-b1"),
    ("again/accuracy-runtime-g1-t2-b1", "accuracy-runtime-g1-t2-b1", "accuracy-runtime-g1-t2-b1-n0.5"),
)
"""Runs of the same models on systems of one kind, hours apart, in docs/results."""


def day_shifts() -> list[float]:
    """Return the logarithm of the factor between each two runs: the median over models, without disturbances."""
    found = []
    for names in _RUNS:
        records = [read(_TOP / RESULTS / f"{name}.json") for name in names]
        runs = [{row["name"]: row["measured_undisturbed_ms"] for row in record["models"]} for record in records]
        for one, other in combinations(runs, 2):
            both = [name for name in one if one[name] and other.get(name)]
            found.append(statistics.median(math.log(other[name] / one[name]) for name in both))
    return found


def day_sd() -> float:
    """Return the standard deviation of the factor between two runs."""
    return math.sqrt(statistics.fmean(shift**2 for shift in day_shifts()))


Measured = Callable[[Decomposition, LayerSequence], tuple[int, str, float] | None]
"""Footprint class in bytes, variant and latency in ns of a brick of a model."""


@dataclass(frozen=True)
class Model:
    """A model, and how often each brick occurs, by its place."""

    name: str
    family: str
    counts: Mapping[int, int]

    def total_ns(self, examples: Sequence[Example]) -> float:
        """Return the sum of its bricks in ns."""
        return sum(count * examples[place].latency_ns for place, count in self.counts.items())


@dataclass(frozen=True)
class Data:
    """Models and their bricks under one combination."""

    models: Sequence[Model]
    examples: Sequence[Example]
    system: System


def main() -> None:
    """Gather, leave out, print and write."""
    arguments = parser(__doc__)
    arguments.add_argument("db", type=Path, nargs="?", help="default: the bricks that ship with the package")
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--to", type=Path, help="database of the same bricks at another number of threads")
    arguments.add_argument("--to-threads", type=int, default=2)
    arguments.add_argument("--models", nargs="+", help="instead of all of benchmarks/zoo.csv")
    arguments.add_argument("--graph", default="runtime")
    arguments.add_argument("--stack", help="beginning of its key, if the database has several")
    arguments.add_argument("--dtype")
    arguments.add_argument("--batch", type=int, help="of each model")
    arguments.add_argument("--ship", action="store_true")
    arguments.add_argument("--days", action="store_true", help="only: other runs, without and with their common factor")
    arguments.add_argument("--name", default="prediction", help="of the file")
    options = arguments.parse_args()
    write(options.out / f"{options.name}.json", experiment(options))


def experiment(options: argparse.Namespace) -> dict[str, Any]:
    """Leave families out, predict at another number of threads, and ship if requested."""
    data = gathered(options, options.db, options.threads)
    begun = time.monotonic()
    guesses = left_out(data)
    result: dict[str, Any] = {
        "system": asdict(data.system), "threads": options.threads, "models": len(data.models),
        "bricks": len(data.examples), "families": len({model.family for model in data.models}),
    }  # fmt: skip
    if options.days:
        return result | days(data, guesses)
    result |= {
        "left_out": [row_of(data, guesses, count) for count in _MEASURED], "fits_s": time.monotonic() - begun,
    }  # fmt: skip
    begun = time.monotonic()
    Forest.fitted(data.examples)
    result["fit_s"] = time.monotonic() - begun
    calibration = shipped(data, guesses)
    sources = [data]
    if options.db is None or options.to is not None:
        there = gathered(options, options.to, options.to_threads)
        sources.append(there)
        result["threads_to"] = options.to_threads
        result["transfer"] = transferred(data, there, calibration)
    if options.ship:
        ship(sources if options.db is not None else [], calibration)
    return result


def gathered(options: argparse.Namespace, db: Path | None, threads: int) -> Data:
    """Return the models whose bricks are all measured, in a database or in the prior."""
    batches = [options.batch] if options.batch else []
    sources = find_models(options.models or [*entries()], batches=batches)
    if db is None:
        return from_prior(sources, threads)
    query = Query(threads=threads, stack=options.stack, dtype=options.dtype)
    with Store.open(db, read_only=True) as store:
        settled = settle(store, query, Cut(1, graph=options.graph))
        decompositions = decompose(sources, settled.cut)
        evidence = read_evidence(store, decompositions, settled.query, settled.cut)
    choice = evidence.choice

    def measured(model: Decomposition, part: LayerSequence) -> tuple[int, str, float] | None:
        found = evidence.bricks_in(model.own.key, state_of(model, choice)).of(part)
        if found is None:
            return None
        ns = found.latency_ns if found.undisturbed_ns is None else found.undisturbed_ns
        return parse_level(found.conditions.cache) or 0, found.variant, ns

    return collected(decompositions, choice, measured)


def from_prior(sources: Sequence[ModelSource], threads: int) -> Data:
    """Return the models whose bricks ship with the package; bricks of equal features have their mean latency."""
    setup = set_up(threads=threads)
    decompositions = decompose(sources, cut_of(setup))
    with Store.open("sqlite://") as store:
        choice = replace(choice_of(store, setup, (), measure=True), system=prior_systems()[0])
        evidence = evidence_under(choice, readable(decompositions), store, setup, cut_of(setup))
    latencies: defaultdict[tuple[Features, str], defaultdict[int, list[float]]]
    latencies = defaultdict(lambda: defaultdict(list))
    for example in prior():
        if example.origin.threads == threads:
            latencies[example.brick.features, example.brick.variant][example.brick.level].append(example.latency_ns)

    def measured(model: Decomposition, part: LayerSequence) -> tuple[int, str, float] | None:
        state = state_of(model, choice)
        variant = evidence.bricks_in(model.own.key, state).variant(part)
        levels = latencies.get((features_of(model.graph, part), variant), {})
        wanted = parse_level(state) or 0
        level = min(levels, key=lambda level: abs(math.log1p(level) - math.log1p(wanted)), default=None)
        return None if level is None else (level, variant, statistics.fmean(levels[level]))

    return collected(decompositions, choice, measured)


def collected(decompositions: Sequence[Decomposition | Failed], choice: Choice, measured: Measured) -> Data:
    """Return models and examples; models with a brick that is not measured are left out."""
    conditions = choice.conditions
    origin = Origin(choice.system_key, choice.stack.backend, choice.stack.device, conditions.threads, conditions.dtype)
    machine = Machine.of(choice.system, choice.stack.device, conditions.threads)
    places: dict[tuple[str, int, str], int] = {}
    examples: list[Example] = []
    models = []
    for model in readable(decompositions):
        found = [measured(model, part) for part in model.sequences]
        if None in found:
            print(f"left out: {model.name} is not measured completely ({found.count(None)} of {len(found)})")
            continue
        counts: Counter[int] = Counter()
        for part, (level, variant, ns) in zip(model.sequences, filter(None, found), strict=True):
            place = part.key, level, variant
            if place not in places:
                places[place] = len(examples)
                brick = PlacedBrick(features_of(model.graph, part), level, variant)
                examples.append(Example(brick, machine, max(ns, 100.0), origin))
            counts[places[place]] += 1
        models.append(Model(model.name, relatives_of(model.name), counts))
    return Data(models, examples, choice.system)


@dataclass(frozen=True)
class LeftOut:
    """What the other families say of the bricks of one family; new are those that the other families do not have."""

    places: Sequence[int]
    guess: Guess
    errors: Any
    new: Any


def left_out(data: Data) -> dict[str, LeftOut]:
    """By family."""
    found = {}
    for family in sorted({model.family for model in data.models}):
        others = {place for model in data.models if model.family != family for place in model.counts}
        mine = sorted({place for model in data.models if model.family == family for place in model.counts})
        forest = Forest.fitted([data.examples[place] for place in sorted(others)])
        guess = guessed(forest, data.examples, mine)
        errors = np.log([data.examples[place].latency_ns for place in mine]) - guess.log_ns
        found[family] = LeftOut(mine, guess, errors, np.array([place not in others for place in mine]))
    return found


def guessed(forest: Forest, examples: Sequence[Example], places: Sequence[int]) -> Guess:
    """Return the predictions of a forest for some bricks."""
    some = [examples[place] for place in places]
    return forest.guess([example.brick for example in some], some[0].machine if some else examples[0].machine)


def fitted(guesses: Mapping[str, LeftOut], families: Collection[str]) -> PredictorErrors:
    """Fit the errors of bricks of some families, each predicted from all other families."""
    some = [guesses[family] for family in sorted(families)]
    new = np.concatenate([one.new for one in some])
    errors = np.concatenate([one.errors for one in some])[new]
    seen, spread, log_ns, operators = (
        np.concatenate([getattr(one.guess, name) for one in some])[new]
        for name in ("seen", "spread", "log_ns", "operators")
    )
    table = np.column_stack([np.log(spread + 0.02), log_ns, np.ones(len(log_ns))])
    slope, size, offset = np.linalg.lstsq(table[seen], np.log(np.abs(errors[seen]) + 0.01), rcond=None)[0]
    scores = errors / np.exp(table @ [slope, size, offset])
    shift = math.sqrt(np.mean(np.clip(np.abs(scores[seen]), 0, 5) ** 2))
    squares = np.clip((scores / shift) ** 2, 0, 25)
    factors = {}
    for operator in sorted(set(operators[seen])):
        mine = (operators == operator) & seen
        factors[str(operator)] = float(math.sqrt((squares[mine].sum() + 5) / (mine.sum() + 5)))
    unseen = float(np.sqrt(np.mean(errors[~seen] ** 2))) if (~seen).any() else _START.unseen
    offset = float(offset + math.log(shift))
    return replace(
        _START, slope=float(slope), size=float(size), offset=offset, operators=factors, unseen=unseen
    )  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """Of one model: error of the logarithm of its total, half of its interval, share of it that was measured."""

    error: float
    half: float
    share: float


def outcome(
    data: Data, model: Model, left: LeftOut, how: PredictorErrors, count: int, shift: float | None = None
) -> Outcome:
    """Measure so many bricks of a model: in the run of the learned ones, or in a run with that factor."""
    numbers = {place: number for number, place in enumerate(left.places) if shift is not None or left.new[number]}
    mine = [place for place in model.counts if place in numbers]
    factor = math.exp(shift or 0.0)
    true = model.total_ns(data.examples) * factor
    if not mine:
        return Outcome(0.0, how.least * how.quantile(0), 0.0)
    which = [numbers[place] for place in mine]
    operators = tuple(left.guess.operators[number] for number in which)
    guess = Guess(operators, *(getattr(left.guess, name)[which] for name in ("log_ns", "spread", "numbers", "seen")))
    belief = Belief(guess, how, familiar=True)
    counts = {number: float(model.counts[place]) for number, place in enumerate(mine)}
    costs_s = [cost_s(data.examples[place].brick, VISITS, data.examples[place].latency_ns) for place in mine]
    known_ns = true - sum(data.examples[place].latency_ns * factor * model.counts[place] for place in mine)
    spent_ns = 0.0
    for number in range(min(count, len(mine))):
        gains = belief.gains([belief.total(Gap(counts, known_ns, number))])
        place = max(counts, key=lambda place: gains[place] / costs_s[place])
        ns = data.examples[mine[place]].latency_ns * factor
        belief.learn(place, ns)
        known_ns += ns * counts.pop(place)
        spent_ns += ns
    total = belief.total(Gap(counts, known_ns, min(count, len(mine))))
    return Outcome(math.log(true / total.ns), total.half, spent_ns / true)


def outcomes(data: Data, guesses: Mapping[str, LeftOut], count: int) -> dict[str, Outcome]:
    """By model, with what bricks of other families are off by, before any quantile."""
    found = {}
    for family, left in guesses.items():
        how = fitted(guesses, guesses.keys() - {family})
        found |= {m.name: outcome(data, m, left, how, count) for m in data.models if m.family == family}
    return found


def quantile(scores: Sequence[float]) -> float:
    """Return the conformal 95 % quantile."""
    return sorted(scores)[min(len(scores) - 1, math.ceil(0.95 * (len(scores) + 1)) - 1)]


def row_of(data: Data, guesses: Mapping[str, LeftOut], count: int) -> dict[str, Any]:
    """One row of the table, and its models."""
    found = outcomes(data, guesses, count)
    families = {model.name: model.family for model in data.models}
    rows = []
    for model in data.models:
        own = found[model.name]
        reach = own.half * quantile(
            [abs(other.error) / other.half for name, other in found.items() if families[name] != model.family]
        )
        rows.append(
            {"name": model.name, "family": model.family, "error": math.exp(-own.error) - 1, "half": reach,
             "inside": abs(own.error) <= reach, "share": own.share}
        )  # fmt: skip
    share = statistics.median(row["share"] for row in rows)
    return {"bricks": count, **summary(rows), "share": share, "models": rows}


def other_days(
    data: Data, guesses: Mapping[str, LeftOut], count: int, day: float, shifts: Sequence[float]
) -> dict[str, Any]:
    """One row: each model in runs that are slower than the learned one by some factors, given as logarithms."""
    same, families = outcomes(data, guesses, count), {model.name: model.family for model in data.models}
    rows = []
    for family, left in guesses.items():
        others = [abs(one.error) / one.half for name, one in same.items() if families[name] != family]
        how = replace(fitted(guesses, guesses.keys() - {family}), day=day, quantiles=((0, quantile(others)),))
        members = [model for model in data.models if model.family == family]
        for own in (outcome(data, model, left, how, count, shift) for model in members for shift in shifts):
            inside = abs(own.error) <= own.half
            rows.append({"error": math.exp(-own.error) - 1, "half": own.half, "inside": inside})
    return {"bricks": count, "day": day, **summary(rows)}


def days(data: Data, guesses: Mapping[str, LeftOut]) -> dict[str, Any]:
    """Return rows without and with the factor of a run: by the factors it was fitted to, and by one more.

    The other factor is the one between the shipped bricks and whole models in an earlier run on the same processor.
    """
    rows = read(_TOP / RESULTS / "epyc/accuracy-runtime-g1-t1-b1.json")["models"]
    later_ms = {row["name"]: row["measured_undisturbed_ms"] for row in rows if row["measured_undisturbed_ms"]}
    both = [model for model in data.models if model.name in later_ms]
    later = statistics.median(math.log(later_ms[model.name] * 1e6 / model.total_ns(data.examples)) for model in both)
    known = [sign * shift for shift in day_shifts() for sign in (1, -1)]
    rows: dict[str, Any] = {"later": later, "day": day_sd()}
    settings = [(count, day) for count in _MEASURED for day in (0.0, day_sd())]
    for name, shifts in (("pairs", known), ("other", [later])):
        rows[name] = [other_days(data, guesses, count, day, shifts) for count, day in settings]
    return rows


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians and shares."""
    errors = [abs(row["error"]) for row in rows]
    figures = {
        "median": statistics.median(errors),
        "within_10": sum(error <= 0.1 for error in errors) / len(errors),
        "worst": max(errors),
        "inside": sum(row["inside"] for row in rows) / len(rows),
        "half": statistics.median(row["half"] for row in rows),
        "known": sum(row["half"] <= math.log(2) for row in rows) / len(rows),
    }
    print({name: round(value, 4) for name, value in figures.items()}, flush=True)
    return figures


def shipped(data: Data, guesses: Mapping[str, LeftOut]) -> PredictorErrors:
    """Return the errors of predictions over all families, with the quantile for each number of bricks."""
    how = fitted(guesses, guesses.keys())
    quantiles: list[tuple[int, float]] = []
    for count in _MEASURED:
        found = outcomes(data, guesses, count).values()
        widest = quantiles[-1][1] if quantiles else math.inf
        score = quantile([abs(one.error) / one.half for one in found])
        quantiles.append((count, min(widest, max(NORMAL, score))))
    print("quantiles", quantiles)
    return replace(how, day=day_sd(), quantiles=tuple(quantiles))


def first_of_families(data: Data) -> Data:
    """Return the first model of each family and the bricks of these models."""
    models = [*{model.family: model for model in reversed(data.models)}.values()]
    used = sorted({place for model in models for place in model.counts})
    places = {place: number for number, place in enumerate(used)}
    models = [
        replace(model, counts={places[place]: count for place, count in model.counts.items()}) for model in models
    ]
    return Data(models, [data.examples[place] for place in used], data.system)


def transferred(here: Data, there: Data, how: PredictorErrors) -> list[dict[str, Any]]:
    """Predict a model of each family at another number of threads; choose and learn bricks as ``predict`` does.

    The seconds are those that ``predict`` expects, with the start of its worker.
    """
    forest = Forest.fitted(here.examples)
    there = first_of_families(there)
    guess = guessed(forest, there.examples, range(len(there.examples)))
    rows = []
    for budget_s in _BUDGETS_S:
        belief, measured, left_s = Belief(guess, how, familiar=False), set[int](), float(budget_s)
        for _ in range(ROUNDS):  # as on a system that is not known
            left_s -= START_S
            pairs = zip(there.examples, belief.latencies_ns, strict=True)
            costs_s = np.array([cost_s(example.brick, VISITS, ns) for example, ns in pairs])
            costs_s[list(measured)] = np.inf
            chosen = belief.choose([_split(model, there, measured) for model in there.models], costs_s, 0.01, left_s)
            if not chosen:
                break
            for place in chosen:
                belief.learn(place, there.examples[place].latency_ns)
                left_s -= cost_s(there.examples[place].brick, VISITS, there.examples[place].latency_ns)
            measured.update(chosen)
        found = []
        for model in there.models:
            true, gap = model.total_ns(there.examples), _split(model, there, measured)
            total = belief.total(gap)
            inside = abs(math.log(true / total.ns)) <= total.half
            row = {"name": model.name, "error": total.ns / true - 1, "half": total.half, "inside": inside}
            found.append(row)
        rows.append({"budget_s": budget_s, "bricks": len(measured), **summary(found), "models": found})
    return rows


def _split(model: Model, data: Data, measured: Collection[int]) -> Gap:
    """Return the bricks of a model that are believed, and the sum of those that were measured."""
    known = sum(data.examples[place].latency_ns * count for place, count in model.counts.items() if place in measured)
    rest = {place: float(count) for place, count in model.counts.items() if place not in measured}
    return Gap(rest, known, len(model.counts) - len(rest))


def ship(sources: Sequence[Data], calibration: PredictorErrors) -> None:
    """Write the calibration and the bricks of some databases into the package."""
    folder = _TOP / "constructor"
    write(folder / "prediction.json", {"calibration": asdict(calibration)})
    if not sources:  # the prior itself
        return
    operators = sorted({example.brick.features.operator for data in sources for example in data.examples})
    places = {operator: place for place, operator in enumerate(operators)}
    origins, rows = [], []
    for number, data in enumerate(sources):
        origin = data.examples[0].origin
        fields = {name: getattr(origin, name) for name in ("backend", "device", "threads", "dtype")}
        origins.append({"system": asdict(data.system), **fields})
        for example in data.examples:
            features, place = example.brick.features, (example.brick.level, VARIANTS.index(example.brick.variant))
            row = [number, *place, round(example.latency_ns), places[features.operator], features.flops]
            rows.append([*row, features.weight_bytes, features.read_bytes, features.written_bytes, *features.extents])
    record = {"origins": origins, "operators": operators, "rows": sorted(rows, key=str)}
    text = json.dumps(record, separators=(",", ":"))
    (folder / "prior.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))


if __name__ == "__main__":
    main()
