"""What a suite costs beside measuring the models themselves, everything counted.

    python benchmarks/cost.py [--graph runtime] [--threads 1] [--chunk 10] [--batches 2 4] [--sequence-lengths 64]
                              [--image-sizes 192] [--most 200]

Both ways of benchmarking have the same visits, processes and sessions, in the same hour: of each chunk of the zoo one
way goes first, of the next chunk the other. *Suite*: ``generate``, and ``run`` without models; bricks that an earlier
chunk had are measured already. *Models*: ``measure``. Walls are those of whole calls: starts of workers, reading,
loading, warm-ups, commits and statistics included, but not the wait for another process that measures. The zoo comes
first; further models are the same architectures at other batches and dimensions, without those that are the same
network again.

Within a chunk the walls are shared out among its models: executions by what was executed for each (a brick belongs to
the first model that holds it), all else of the models evenly, of the suite by new bricks, of generation by layers. So
the curve and the break-even are exact where a chunk ends, and an account in between.

At equal sampling interval: the models' executions are counted only as far as they need them for the interval that the
estimates have, with at least the fewest visits that make a measurement; all else that they cost stays.

Written under ``--out``: ``cost-<graph>-t<threads>[-<half>].json``.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from accuracy import protocol, shared
from dlbricks import estimate
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.constructor.uncertainty.calibration import NORMAL
from dlbricks.db import Measurement, Store, Subject
from dlbricks.db.samples.statistics import MIN_SAMPLES
from dlbricks.errors import DlbricksError
from dlbricks.generator.decomposition.generate import GenerateReport, generate
from dlbricks.generator.machine.cores import physical_cores
from dlbricks.generator.measurement.measure import MeasureReport, measure
from dlbricks.generator.measurement.pace import RunCosts
from dlbricks.generator.measurement.run import RunReport, run
from dlbricks.models import ModelSource, find_models
from facts import chosen, middle, provenance, restriction, share, spent, write


@dataclass(slots=True)
class Account:
    """What one more model costs either way, in seconds."""

    name: str
    generate_s: float = 0.0
    suite_s: float = 0.0
    models_s: float = 0.0
    new_bricks: int = 0


@dataclass(slots=True)
class Totals:
    """Walls of whole calls so far."""

    generate_s: float = 0.0
    suite_s: float = 0.0
    models_s: float = 0.0


class Ledger:
    """Measures chunk by chunk, both ways, and keeps the accounts.

    Args:
        options: From the command line.
        folder: For suites.
        suites: Database of the bricks.
        models: Database of the models.
    """

    def __init__(self, options: argparse.Namespace, folder: Path, suites: Store, models: Store) -> None:
        self._options = options
        self._folder = folder
        self._stores = suites, models
        self._seen: set[tuple[str, str]] = set()
        self.accounts: list[Account] = []
        self.totals = Totals()
        self.costs = {"suite": RunCosts(), "models": RunCosts()}
        self.chunks: list[dict[str, Any]] = []
        self.halves: list[float] = []
        self.errors: dict[str, str] = {}
        self.place = ("", "")

    def add(self, sources: Sequence[ModelSource]) -> None:
        """One chunk; which way goes first changes every time."""
        suite_first = len(self.chunks) % 2 == 0
        if suite_first:
            made, done = self._suite(sources)
            found = self._models(sources)
        else:
            found = self._models(sources)
            made, done = self._suite(sources)
        self.errors |= {row.name: row.error for row in made.rows if row.error is not None}
        self.errors |= {row.name: row.error for row in found.rows if row.error is not None}
        self.errors |= dict(done.failures)
        self.place = done.system, done.stack
        self._book(made, done, found)
        self.chunks.append(
            {
                "models": len(self.accounts),
                "suite_first": suite_first,
                "bricks_measured": done.measured,
                "bricks_reused": done.reused,
                **{field.name: getattr(self.totals, field.name) for field in fields(Totals)},
            }
        )

    def _suite(self, sources: Sequence[ModelSource]) -> tuple[GenerateReport, RunReport]:
        options = self._options
        made = generate(
            sources,
            granularity=options.granularity,
            out=self._folder / f"suite-{len(self.chunks)}",
            graph=options.graph,
            threads=options.threads,
            annotate=True,
        )
        self.totals.generate_s += made.wall_s
        if made.suite is None:
            raise SystemExit(f"no model can be decomposed: {made.rows[0].error}")
        done = run(made.suite, store=self._stores[0], cache="model", **protocol(options))
        self.totals.suite_s += done.wall_s
        return made, done

    def _models(self, sources: Sequence[ModelSource]) -> MeasureReport:
        found = measure(sources, store=self._stores[1], cache="model", **protocol(self._options))
        self.totals.models_s += found.wall_s
        self.halves += [
            (row.ci95_ms[1] - row.ci95_ms[0]) / 2 / row.latency_ms
            for row in found.rows
            if row.ci95_ms and row.latency_ms
        ]
        return found

    def _book(self, made: GenerateReport, done: RunReport, found: MeasureReport) -> None:
        """Share the walls of a chunk out among its models."""
        suites, models = self._stores
        bricks = [one for one in suites.measurements(subject=Subject.BRICK) if one.run == done.run]
        brick_s = {(one.key, one.conditions.cache): seconds for one, seconds in _executed(suites, bricks)}
        truths = [one for one in models.measurements(subject=Subject.MODEL) if one.run == found.run]
        model_s = {one.key: seconds for one, seconds in _executed(models, truths)}
        rows = [row for row in made.rows if row.error is None]
        layers = sum(row.layers or 0 for row in rows)
        others = {
            "suite": done.wall_s - math.fsum(brick_s.values()),
            "models": found.wall_s - math.fsum(model_s.values()),
        }
        keys = {row.name: row.key for row in found.rows}
        for row in rows:
            new = {place for place in brick_s if place[0] in row.keys} - self._seen
            self._seen |= new
            executed = math.fsum(brick_s[place] for place in new)
            part = len(new) / len(brick_s) if brick_s else 1 / len(rows)
            self.accounts.append(
                Account(
                    row.name,
                    made.wall_s * (row.layers or 0) / layers,
                    executed + others["suite"] * part,
                    model_s.get(keys[row.name] or "", 0.0) + others["models"] / len(rows),
                    len(new),
                )
            )
        for way, costs in (("suite", done.costs), ("models", found.costs)):
            for field in fields(RunCosts):
                total = getattr(self.costs[way], field.name) + getattr(costs, field.name)
                setattr(self.costs[way], field.name, total)


def main() -> None:
    """Measure, print and write."""
    parser = shared(argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter))
    parser.add_argument("--chunk", type=int, default=10, help="models that are measured one way, then the other")
    parser.add_argument("--batches", type=int, nargs="+", default=[], help="the zoo at these batches as well")
    parser.add_argument("--sequence-lengths", type=int, nargs="+", default=[], help="and at these")
    parser.add_argument("--image-sizes", type=int, nargs="+", default=[], help="and at these")
    parser.add_argument("--most", type=int, help="models in all; default: as many as there are")
    options = parser.parse_args()
    options.threads = options.threads or len(physical_cores())
    sources, left_out = catalogue(options)
    with tempfile.TemporaryDirectory(prefix="dlbricks-cost-") as place:
        folder = Path(place)
        with Store.open(folder / "suite.db") as suites, Store.open(folder / "models.db") as models:
            ledger = Ledger(options, folder, suites, models)
            for first in range(0, len(sources), options.chunk):
                ledger.add(sources[first : first + options.chunk])
                print(_line(ledger), flush=True)
            result = {
                **provenance(suites, *ledger.place),
                **{name: getattr(options, name) for name in ("graph", "granularity", "chunk")},
                **protocol(options),
                "models": len(ledger.accounts),
                "errors": ledger.errors | left_out,
                **figures(ledger),
                **equal_interval(ledger, _half_width(sources, suites, options), visits=options.visits),
            }
    write(options.out, f"cost-{options.graph}-t{options.threads}{restriction(options.half)}", result)


def catalogue(options: argparse.Namespace) -> tuple[list[ModelSource], dict[str, str]]:
    """Return the zoo, then the zoo at other batches and dimensions, and the reasons for models that are left out."""
    names = chosen(options.models, options.half)
    shapes: list[tuple[str, int | None, dict[str, int]]] = [("", None, {})]
    shapes += [(f"@b{batch}", batch, {}) for batch in options.batches]
    shapes += [(f"@l{length}", None, {"sequence_length": length}) for length in options.sequence_lengths]
    shapes += [(f"@i{size}", None, {"image_size": size}) for size in options.image_sizes]
    found: dict[str, ModelSource] = {}
    left_out: dict[str, str] = {}
    for suffix, batch, dims in shapes:
        for source in find_models(names, batches=[batch] if batch else [], dims=dims):
            if len(found) == options.most:
                return list(found.values()), left_out
            name = source.name + suffix
            try:
                found.setdefault(build_graph(source.skeleton()).key, replace(source, name=name))
            except DlbricksError as error:
                left_out[name] = str(error)
    return list(found.values()), left_out


def figures(ledger: Ledger) -> dict[str, Any]:
    """Ratios, break-even and the curve."""
    totals, costs = ledger.totals, ledger.costs
    curve = _curve(ledger.accounts)
    return {
        "walls_s": {field.name: getattr(totals, field.name) for field in fields(Totals)},
        "ratio": share(totals.suite_s, totals.models_s),
        "ratio_with_generation": share(totals.suite_s + totals.generate_s, totals.models_s),
        "break_even": _break_even(curve, "ratio"),
        "break_even_with_generation": _break_even(curve, "ratio_with_generation"),
        "suite": spent(totals.suite_s, costs["suite"]),
        "models_alone": spent(totals.models_s, costs["models"]),
        "chunks": ledger.chunks,
        "curve": curve,
    }


def equal_interval(ledger: Ledger, suite_half: float | None, *, visits: int) -> dict[str, Any]:
    """Half-widths of the 95 % intervals of sampling, and the cost where models are measured no better than estimated.

    Args:
        ledger: Both ways with as many visits.
        suite_half: Median half-width of the estimates, as a share.
        visits: Of each model.
    """
    models_half = middle(ledger.halves)
    found: dict[str, Any] = {"median_half_width": {"models": models_half, "estimates_sampling_only": suite_half}}
    if models_half is None or suite_half is None:
        return found | {"at_equal_interval": None}
    part = min(1.0, max(MIN_SAMPLES / visits, (models_half / suite_half) ** 2))
    models_s = ledger.totals.models_s - (1 - part) * ledger.costs["models"].sample_s
    suite_s, generate_s = ledger.totals.suite_s, ledger.totals.generate_s
    return found | {
        "at_equal_interval": {
            "part_of_executions": part,
            "models_s": models_s,
            "ratio": share(suite_s, models_s),
            "ratio_with_generation": share(suite_s + generate_s, models_s),
        }
    }


def _curve(accounts: Sequence[Account]) -> list[dict[str, Any]]:
    """Return the sums over the first models."""
    curve: list[dict[str, Any]] = []
    generate_s = suite_s = models_s = 0.0
    for number, one in enumerate(accounts, start=1):
        generate_s, suite_s, models_s = generate_s + one.generate_s, suite_s + one.suite_s, models_s + one.models_s
        curve.append(
            {
                "models": number,
                "added": one.name,
                "new_bricks": one.new_bricks,
                "generate_s": generate_s,
                "suite_s": suite_s,
                "models_s": models_s,
                "ratio": share(suite_s, models_s),
                "ratio_with_generation": share(suite_s + generate_s, models_s),
            }
        )
    return curve


def _break_even(curve: Sequence[Mapping[str, Any]], ratio: str) -> int | None:
    """Models from which on the suite costs less than they do; None where it does not in the end."""
    dearer = [step["models"] for step in curve if step[ratio] is None or step[ratio] >= 1]
    first = max(dearer, default=0) + 1
    return first if first <= len(curve) else None


def _executed(store: Store, measured: Sequence[Measurement]) -> list[tuple[Measurement, float]]:
    """Return the seconds of each measurement's samples."""
    blocks = store.blocks_of([one.id for one in measured])
    return [
        (one, sum(elapsed_ns for block in blocks[one.id] for elapsed_ns, _ in block.samples) / 1e9) for one in measured
    ]


def _half_width(sources: Sequence[ModelSource], store: Store, options: argparse.Namespace) -> float | None:
    """Of the estimates' intervals, without the error of the method, which no sampling narrows."""
    cut = {"granularity": options.granularity, "graph": options.graph}
    halves = []
    for row in estimate(sources, store=store, cache="model", threads=options.threads, **cut):
        if row.latency.ci95_ms and row.latency.ms and row.latency.method:
            half = (row.latency.ci95_ms[1] - row.latency.ci95_ms[0]) / 2 / row.latency.ms
            halves.append(math.sqrt(max(0.0, half**2 - (NORMAL * row.latency.method.sd) ** 2)))
    return middle(halves)


def _line(ledger: Ledger) -> str:
    totals = ledger.totals
    return (
        f"{len(ledger.accounts)} models: generation {totals.generate_s:.1f} s, suite {totals.suite_s:.1f} s, "
        f"models {totals.models_s:.1f} s"
    )


if __name__ == "__main__":
    main()
