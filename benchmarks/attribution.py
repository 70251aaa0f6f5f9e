"""Measure the part of latency that the causes of `estimate --explain` leave unexplained.

    python benchmarks/attribution.py [--threads 1] [--visits 12] [--half HALF] [--models ...]

One run alternates source bricks of one layer and whole models. A second run measures the windows of layers that the
runtime fuses, unfused and fused. Each term is measured without the
model's latency and is not a difference of other terms, so that the rest can be anything. Bricks of the executed graph
are not measured, because the estimate is to be explained.

Written under ``--out``: ``attribution-g1-t<threads>[-<half>]`` as ``.json``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from accuracy import protocol, shared
from dlbricks import estimate
from dlbricks.constructor import Estimate
from dlbricks.constructor.result import SIGNS
from dlbricks.constructor.uncertainty.pairing import FUSION
from dlbricks.db import Store
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.machine.cores import physical_cores
from dlbricks.generator.measurement.run import run
from dlbricks.models import ModelSource, find_models
from facts import chosen, entry, middle, number, percent, provenance, quietness, restriction, share, versions, write

_LIMIT = 0.05


def main() -> None:
    """Measure, print and write."""
    parser = shared(argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter))
    options = parser.parse_args()
    options.threads = options.threads or len(physical_cores())
    with ExitStack() as resources:
        folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="dlbricks-attribution-")))
        store = resources.enter_context(Store.open(folder / "attribution.db"))
        result = experiment(find_models(chosen(options.models, options.half)), store, folder, options)
    name = f"attribution-g1-t{options.threads}{restriction(options.half)}"
    write(options.out, name, result, report(result))


def experiment(
    sources: Sequence[ModelSource], store: Store, folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Measure bricks, models and interventions; explain."""
    threads = options.threads
    made = generate(sources, granularity=1, out=folder / "source", threads=threads, annotate=True)
    usable = [source for source, row in zip(sources, made.rows, strict=True) if row.error is None]
    windows = generate(usable, granularity=1, graph="fused", out=folder / "fused", threads=threads, annotate=True)
    if made.suite is None or windows.suite is None:
        raise SystemExit("no model can be decomposed")
    done = run(made.suite, store=store, models=usable, cache="model", **protocol(options))
    again = run(windows.suite, store=store, algorithms=FUSION, cache="model", **protocol(options))
    found = estimate(usable, store=store, cache="model", threads=threads)
    rows = [_row(one) for one in found]
    return {
        **provenance(store, done.system, done.stack),
        **protocol(options),
        "models": rows,
        "errors": {row.name: row.error for row in (*made.rows, *windows.rows) if row.error},
        "failures": dict(done.failures) | dict(again.failures),
        "quiet": quietness(store, [one.id for one in store.measurements(variant=None)]),
        "walls_s": {"source": done.wall_s, "fused": again.wall_s},
        "summary": summary(rows),
    }


def _row(found: Estimate) -> dict[str, Any]:
    terms = found.attribution or {}
    return {
        "name": found.name,
        **entry(found.name),
        "measured_ms": found.truth.ms,
        "estimate_ms": found.latency.ms,
        "absolute_ms": found.attribution_absolute_ms,
        "terms": {
            name: {"ms": term.ms, "ci95_ms": term.ci95_ms, "counted": term.counted, "reason": term.reason}
            for name, term in terms.items()
        },
        "reason": found.error or found.truth.reason,
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarise the models without unknown terms."""
    shares = [left for row in rows if (left := _left(row)) is not None]
    impossible = [
        row["name"]
        for row in rows
        for name, term in row["terms"].items()
        if name != "bricks" and term["counted"] and term["ms"] is not None and abs(term["ms"]) > row["measured_ms"]
    ]
    return {
        "models": len(rows),
        "explained": len(shares),
        "median": middle([abs(left) for left in shares]),
        "within_5": share(sum(abs(left) <= _LIMIT for left in shares), len(shares)),
        "within_10": share(sum(abs(left) <= 2 * _LIMIT for left in shares), len(shares)),
        "larger_than_the_model": impossible,
    }


def _left(row: Mapping[str, Any]) -> float | None:
    """Return the unexplained share of the model's latency."""
    term = row["terms"].get("unexplained")
    return None if term is None or term["ms"] is None else term["ms"] / row["measured_ms"]


def report(result: Mapping[str, Any]) -> str:
    """Return the tables as Markdown."""
    found = result["summary"]
    lines = [
        f"# What is unexplained: {found['models']} models, layer by layer, {result['threads']} thread(s)\n",
        (
            f"dlbricks {result['dlbricks']}, {result['date']}, {result['system']['cpu']}, {versions(result['stack'])}; "
            f"{result['visits']} visits; the machine: {result['quiet']['state']}. Written by "
            "`benchmarks/attribution.py`; all figures are in the JSON.\n"
        ),
        (
            f"Of {found['explained']} models that are explained the median of what is left is "
            f"{percent(found['median'])} of the model; {percent(found['within_5'])} are within 5 %, "
            f"{percent(found['within_10'])} within 10 %. Causes larger than their model: "
            f"{', '.join(found['larger_than_the_model']) or 'none'}.\n"
        ),
        "Milliseconds; in brackets what is not counted, since its interval includes zero.\n",
        f"| model | half | measured | {' | '.join(SIGNS)} | of the model |",
        "|---" * (len(SIGNS) + 4) + "|",
    ]
    for row in result["models"]:
        cells = [row["name"], row["half"], number(row["measured_ms"])]
        cells += [_cell(row["terms"].get(name)) for name in SIGNS]
        lines.append(f"| {' | '.join(cells)} | {percent(_left(row))} |")
    return "\n".join([*lines, ""])


def _cell(term: Mapping[str, Any] | None) -> str:
    if term is None or term["ms"] is None:
        return ""
    return number(term["ms"]) if term["counted"] else f"({number(term['ms'])})"


if __name__ == "__main__":
    main()
