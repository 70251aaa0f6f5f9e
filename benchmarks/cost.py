"""What a suite costs beside measuring the models themselves, everything counted.

    python benchmarks/cost.py [--graph runtime] [--threads 1] [--chunk 10] [--batches 2 4] [--sequence-lengths 64]
                              [--image-sizes 192] [--most 200]

Both ways of benchmarking have the same visits, processes and sessions, in the same hour: of each chunk of the zoo one
way goes first, of the next chunk the other. *Suite*: ``generate``, and ``run`` without models; bricks that an earlier
chunk had are measured already. *Models*: ``measure``. Walls are those of whole calls: starts of workers, reading,
loading, warm-ups, commits and statistics included, but not the wait for another process that measures. The zoo comes
first; further models are the same architectures at other batches and dimensions, without those that are the same
network again. The break-even is the end of the first chunk from which on the suite costs less.

At equal sampling interval: the models' executions are counted only as far as they need them for the interval that the
estimates have, with at least the fewest visits that make a measurement; all else that they cost stays.

Written under ``--out``: ``cost-<graph>-t<threads>[-<half>].json``.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accuracy import parsed, protocol, shared
from dlbricks import estimate
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.constructor.uncertainty.calibration import NORMAL
from dlbricks.db import Store
from dlbricks.db.samples.statistics import MIN_SAMPLES
from dlbricks.errors import DlbricksError
from dlbricks.generator.decomposition.generate import GenerateReport
from dlbricks.generator.measurement.measure import MeasureReport, measure
from dlbricks.generator.measurement.pace import RunCosts
from dlbricks.generator.measurement.run import RunReport, run
from dlbricks.models import ModelSource, find_models
from facts import chosen, generated, provenance, restriction, spent
from figures import middle, share, write


@dataclass(frozen=True)
class Chunk:
    """Some models, measured both ways."""

    generation: GenerateReport
    suite: RunReport
    models: MeasureReport

    def errors(self) -> dict[str, str]:
        """Return the reasons of what could not be measured."""
        rows = (*self.generation.rows, *self.models.rows)
        return {row.name: row.error for row in rows if row.error is not None} | dict(self.suite.failures)


def main() -> None:
    """Measure, print and write."""
    parser = shared(__doc__)
    parser.add_argument("--chunk", type=int, default=10, help="models that are measured one way, then the other")
    parser.add_argument("--batches", type=int, nargs="+", default=[], help="the zoo at these batches as well")
    parser.add_argument("--sequence-lengths", type=int, nargs="+", default=[], help="and at these")
    parser.add_argument("--image-sizes", type=int, nargs="+", default=[], help="and at these")
    parser.add_argument("--most", type=int, help="models in all; default: as many as there are")
    options = parsed(parser)
    sources, errors = catalogue(options)
    chunks: list[Chunk] = []
    with tempfile.TemporaryDirectory(prefix="dlbricks-cost-") as place:
        folder = Path(place)
        with Store.open(folder / "suite.db") as suites, Store.open(folder / "models.db") as models:
            for first in range(0, len(sources), options.chunk):
                chunks.append(
                    measured(sources[first : first + options.chunk], len(chunks), folder, suites, models, options)
                )
                errors |= chunks[-1].errors()
                print(curve(chunks)[-1], flush=True)
            result = {
                **provenance(suites, chunks[-1].suite.system, chunks[-1].suite.stack),
                **{name: getattr(options, name) for name in ("graph", "granularity", "chunk")},
                **protocol(options),
                "errors": errors,
                **figures(chunks),
                **equal_interval(chunks, _half_width(sources, suites, options), visits=options.visits),
            }
    write(options.out / f"cost-{options.graph}-t{options.threads}{restriction(options.half)}.json", result)


def catalogue(options: argparse.Namespace) -> tuple[list[ModelSource], dict[str, str]]:
    """Return the zoo, then the zoo at other batches and dimensions, and the reasons for models that are left out."""
    names = chosen(options.models, options.half)
    shapes: list[tuple[str, int | None, dict[str, int]]] = [("", None, {})]
    shapes += [(f"@b{batch}", batch, {}) for batch in options.batches]
    shapes += [(f"@l{length}", None, {"sequence_length": length}) for length in options.sequence_lengths]
    shapes += [(f"@i{size}", None, {"image_size": size}) for size in options.image_sizes]
    sources: dict[str, ModelSource] = {}
    errors: dict[str, str] = {}
    for suffix, batch, dims in shapes:
        for source in find_models(names, batches=[batch] if batch else [], dims=dims):
            if len(sources) == options.most:
                return list(sources.values()), errors
            name = source.name + suffix
            try:
                sources.setdefault(build_graph(source.skeleton()).key, replace(source, name=name))
            except DlbricksError as error:
                errors[name] = str(error)
    return list(sources.values()), errors


def measured(
    sources: Sequence[ModelSource], place: int, folder: Path, suites: Store, models: Store, options: argparse.Namespace
) -> Chunk:
    """Measure a chunk both ways; which goes first changes every time."""
    cut = {name: getattr(options, name) for name in ("granularity", "graph", "threads")}
    how = {"cache": "model", **protocol(options)}
    first = measure(sources, store=models, **how) if place % 2 else None
    generation, suite = generated(sources, folder / f"suite-{place}", **cut)
    done = run(suite, store=suites, **how)
    return Chunk(generation, done, measure(sources, store=models, **how) if first is None else first)


def curve(chunks: Sequence[Chunk]) -> list[dict[str, Any]]:
    """Return the walls of whole calls after each chunk."""
    steps = []
    for end in range(1, len(chunks) + 1):
        some = chunks[:end]
        generate_s, suite_s, models_s = (
            math.fsum(getattr(one, part).wall_s for one in some) for part in ("generation", "suite", "models")
        )
        steps.append({
            "models": sum(row.error is None for one in some for row in one.generation.rows),
            "bricks_measured": some[-1].suite.measured,
            "bricks_reused": some[-1].suite.reused,
            **_ratios(generate_s, suite_s, models_s),
        })  # fmt: skip
    return steps


def _ratios(generate_s: float, suite_s: float, models_s: float) -> dict[str, Any]:
    return {
        "walls_s": {"generate_s": generate_s, "suite_s": suite_s, "models_s": models_s},
        "ratio": share(suite_s, models_s),
        "ratio_with_generation": share(suite_s + generate_s, models_s),
    }


def figures(chunks: Sequence[Chunk]) -> dict[str, Any]:
    """Return the final ratios, the break-even, the parts of the walls, and the curve."""
    steps = curve(chunks)
    walls_s = steps[-1]["walls_s"]
    return {
        **{name: steps[-1][name] for name in ("models", "walls_s", "ratio", "ratio_with_generation")},
        "break_even": _break_even(steps, "ratio"),
        "break_even_with_generation": _break_even(steps, "ratio_with_generation"),
        "suite": spent(walls_s["suite_s"], sum((one.suite.costs for one in chunks), RunCosts())),
        "models_alone": spent(walls_s["models_s"], sum((one.models.costs for one in chunks), RunCosts())),
        "chunks": steps,
    }


def _break_even(steps: Sequence[Mapping[str, Any]], ratio: str) -> int | None:
    """Return the models from which on the suite costs less than they do; None where it does not in the end."""
    dearer = [place for place, step in enumerate(steps) if step[ratio] is None or step[ratio] >= 1]
    first = max(dearer, default=-1) + 1
    return steps[first]["models"] if first < len(steps) else None


def equal_interval(chunks: Sequence[Chunk], suite_half: float | None, *, visits: int) -> dict[str, Any]:
    """Half-widths of the 95 % intervals of sampling, and the cost where models are measured no better than estimated.

    Args:
        chunks: Both ways with as many visits.
        suite_half: Median half-width of the estimates, as a share.
        visits: Of each model.
    """
    rows = [row for one in chunks for row in one.models.rows if row.ci95_ms and row.latency_ms]
    models_half = middle([(row.ci95_ms[1] - row.ci95_ms[0]) / 2 / row.latency_ms for row in rows])
    halves = {"median_half_width": {"models": models_half, "estimates_sampling_only": suite_half}}
    if models_half is None or suite_half is None:
        return halves | {"at_equal_interval": None}
    part = min(1.0, max(MIN_SAMPLES / visits, (models_half / suite_half) ** 2))
    walls_s = curve(chunks)[-1]["walls_s"]
    walls_s["models_s"] -= (1 - part) * sum(one.models.costs.sample_s for one in chunks)
    return halves | {"at_equal_interval": {"part_of_executions": part, **_ratios(**walls_s)}}


def _half_width(sources: Sequence[ModelSource], store: Store, options: argparse.Namespace) -> float | None:
    """Of the estimates' intervals, without the error of the method, which no sampling narrows."""
    cut = {"granularity": options.granularity, "graph": options.graph}
    halves = []
    for row in estimate(sources, store=store, cache="model", threads=options.threads, **cut):
        if row.latency.ci95_ms and row.latency.ms and row.latency.method:
            half = (row.latency.ci95_ms[1] - row.latency.ci95_ms[0]) / 2 / row.latency.ms
            halves.append(math.sqrt(max(0.0, half**2 - (NORMAL * row.latency.method.sd) ** 2)))
    return middle(halves)


if __name__ == "__main__":
    main()
