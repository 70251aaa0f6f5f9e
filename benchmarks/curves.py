"""Interpolated estimates, held against what was measured at the same sizes (docs/explanation/estimates.md).

    python benchmarks/curves.py [--sweep MODEL:DIMENSION=N,N,... ...] [--visits N] [--db FILE] [--out DIR]

Each sweep takes one model at several sizes of a dimension, or of its ``batch``:

1. Bricks of all sizes, and the model itself at each of them, are visited in turn in one run.
2. In a copy of the database every second size but the last is left out: what was measured of bricks that no other size
   has is deleted there.
3. There these sizes are estimated with ``--interpolate`` and with ``--predict``, and compared with the estimate from
   all bricks and with the model as measured.

Whether an interval holds the estimate from all bricks is asked of that part of it which comes from reading between
sizes: how bricks add up is in both. Whether it holds the measured model is asked of all of it.

The zoo exports the transformers at each length, 10 s each, once; ``--sweep mobilenet_v2:image_size=96,112,128,144,160``
varies the size of images. Written under ``--out``: ``curves.json``.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from dlbricks import estimate, estimate_between
from dlbricks.analyzer.tokens import at_lengths
from dlbricks.constructor import Estimate
from dlbricks.constructor.sweep import BATCH, sizes_of
from dlbricks.db import Store, Subject
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.measurement.run import RunReport, run
from dlbricks.models import ModelSource, find_models
from facts import middle, percent, provenance, quietness, share, spent, within, write

_BATCHES = "1,2,3,4,6,8,10,12,16"
_LENGTHS = "16,24,32,48,64,96,128,192,256"
_SWEEPS = (
    f"squeezenet:batch={_BATCHES}",
    f"shufflenet:batch={_BATCHES}",
    f"minilm_l6:sequence_length={_LENGTHS}",
    f"electra_small:sequence_length={_LENGTHS}",
)
_LIMIT = 0.05
"""What an interpolated estimate is to be within at the median."""

_LEVEL = 0.9
"""How many are to be within their interval."""

_HEADS = (
    "measured ms", "all bricks ms", "interpolated ms", "share", "error", "±", "inside", "error against measured",
)  # fmt: skip


class Sweep(NamedTuple):
    """A model, and the sizes of a dimension that it is taken at."""

    model: str
    dimension: str
    sizes: tuple[int, ...]

    @property
    def left_out(self) -> tuple[int, ...]:
        """Every second size but the last."""
        return self.sizes[1:-1:2]

    def sources(self) -> list[ModelSource]:
        """Return the model at each size."""
        if self.dimension == BATCH:
            return find_models([self.model], batches=self.sizes)
        return at_lengths(find_models([self.model])[0], self.dimension, self.sizes)


def main() -> None:
    """Measure, leave out, interpolate, compare, write."""
    options = _options()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dlbricks-curves-") as folder:
        database = options.db or Path(folder) / "curves.db"
        found = [_swept(one, database, Path(folder), options) for one in options.sweep]
        with Store.open(database) as store:
            facts = provenance(store, found[-1]["system"], found[-1]["stack"])
    result = {
        **facts,
        **{name: getattr(options, name) for name in ("graph", "threads", "visits", "processes", "seed")},
        "wall_s": time.monotonic() - begun,
        "summary": summary([row for one in found for row in one["points"]]),
        "sweeps": found,
    }
    write(options.out, "curves", result, report(result))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", nargs="+", type=sweep_of, default=[sweep_of(one) for one in _SWEEPS])
    parser.add_argument("--graph", choices=("runtime", "fused", "source"), default="runtime")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--visits", type=int, default=24, help="of each brick and model")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--db", type=Path, help="keep the measurements; a second call goes on with them")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    return parser.parse_args()


def sweep_of(text: str) -> Sweep:
    """Parse a sweep: ``MODEL:DIMENSION=N,N,...``."""
    model, _, rest = text.rpartition(":")
    dimension, _, sizes = rest.partition("=")
    try:
        made = Sweep(model, dimension, tuple(sorted({int(size) for size in sizes.split(",")})))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not MODEL:DIMENSION=N,N,...") from error
    if not made.left_out:
        raise argparse.ArgumentTypeError(f"{text!r} has fewer than three sizes")
    return made


def _swept(sweep: Sweep, database: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One sweep: measured, and interpolated where sizes are left out."""
    print(f"{sweep.model} against {sweep.dimension}", flush=True)
    sources = sweep.sources()
    made = generate(
        sources, granularity=1, out=folder / f"{sweep.model}-{sweep.dimension}", threads=options.threads, annotate=True,
        graph=options.graph,
    )  # fmt: skip
    broken = {row.name: row.error for row in made.rows if row.error is not None}
    if made.suite is None or broken:
        raise SystemExit(f"{sweep.model} cannot be decomposed: {broken}")
    with Store.open(database) as store:
        done = run(
            made.suite, store=store, models=sources, cache="model", threads=options.threads, visits=options.visits,
            processes=options.processes, seed=options.seed,
        )  # fmt: skip
        known = _by_size(sweep, estimate(sources, store=store, **_where(done, options)))
        whole = store.measurements(subject=Subject.MODEL, variant=None)
        quiet = quietness(store, [one.id for one in whole if done.run in {None, one.run}])
    halved = folder / f"{sweep.model}-{sweep.dimension}.db"
    shutil.copyfile(database, halved)
    kept = {part.key for size, one in known.items() if size not in sweep.left_out for part in one.parts.sequences}
    hidden = {part.key for size in sweep.left_out for part in known[size].parts.sequences} - kept
    forget(halved, hidden)
    begun = time.monotonic()
    with Store.open(halved) as store:
        read = _by_size(sweep, estimate_between(sources, store=store, **_where(done, options)))
        interpolate_s = time.monotonic() - begun
        guessed = _by_size(sweep, estimate(sources, store=store, predict=True, **_where(done, options)))
    return {
        "model": sweep.model,
        "dimension": sweep.dimension,
        "sizes": sweep.sizes,
        "system": done.system,
        "stack": done.stack,
        "bricks": {"unique": made.unique, "failed": done.failed, "hidden": len(hidden)},
        "quiet": quiet,
        "cost": {"run": spent(done.wall_s, done.costs), "interpolate_s": interpolate_s},
        "points": [point(sweep, size, known[size], read[size], guessed[size]) for size in sweep.sizes],
    }


def _where(done: RunReport, options: argparse.Namespace) -> dict[str, Any]:
    return {"stack": done.stack, "system": done.system, "threads": options.threads, "cache": "model",
            "graph": options.graph}  # fmt: skip


def _by_size(sweep: Sweep, found: Iterable[Estimate]) -> dict[int, Estimate]:
    return {sizes_of(one)[sweep.dimension]: one for one in found}


def forget(database: Path, keys: Iterable[str]) -> None:
    """Delete what was measured of bricks."""
    measured = "SELECT m.id FROM measurement m JOIN item i ON i.id = m.item_id WHERE i.subject = 'brick' AND i.key = ?"
    with closing(sqlite3.connect(database)) as connection, connection:
        for key in keys:
            connection.execute(f"DELETE FROM block WHERE measurement_id IN ({measured})", (key,))
            connection.execute(f"DELETE FROM measurement WHERE id IN ({measured})", (key,))


def point(sweep: Sweep, size: int, known: Estimate, read: Estimate, guessed: Estimate) -> dict[str, Any]:
    """One size: what all bricks say, what is read where it was left out, and the model itself."""
    row: dict[str, Any] = {
        "size": size,
        "estimate_ms": known.latency.ms,
        "undisturbed_ms": known.latency.undisturbed_ms,
        "measured_ms": known.truth.ms,
        "ratio": known.truth.ratio,
        "left_out": size in sweep.left_out,
    }
    if size not in sweep.left_out:
        return row
    if guessed.parts.predicted and guessed.latency.undisturbed_ms and known.latency.undisturbed_ms:
        row["predicted_undisturbed_error"] = guessed.latency.undisturbed_ms / known.latency.undisturbed_ms - 1
        row["predicted_half"] = math.expm1(guessed.parts.predicted.half)
    row |= {
        "interpolated_ms": read.latency.ms if read.parts.interpolated else None,
        "reason": read.parts.interpolation_reason,
    }
    if read.parts.interpolated is None or read.latency.ms is None or known.latency.ms is None:
        return row
    found = read.parts.interpolated
    half = None if found.error is None else found.error * found.share
    error = read.latency.ms / known.latency.ms - 1
    row |= {
        "ci95_ms": read.latency.ci95_ms,
        "between": found.between,
        "share": found.share,
        "half": half,
        "error": error,
        "inside": None if half is None else abs(known.latency.ms - read.latency.ms) <= half * read.latency.ms,
        "left_out_errors": [asdict(one) | {"error": one.error} for one in found.left_out],
    }
    if read.latency.undisturbed_ms is not None and known.latency.undisturbed_ms is not None:
        row["undisturbed_error"] = read.latency.undisturbed_ms / known.latency.undisturbed_ms - 1
    if known.truth.ms is not None:
        row["measured_error"] = read.latency.ms / known.truth.ms - 1
        row["estimate_error"] = known.latency.ms / known.truth.ms - 1
        row["inside_measured"] = None if read.latency.ci95_ms is None else _holds(read.latency.ci95_ms, known.truth.ms)
    return row


def _holds(interval: Sequence[float], value: float) -> bool:
    return interval[0] <= value <= interval[1]


def summary(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How far interpolated estimates are off, over all sizes that were left out."""
    left = [one for one in points if one["left_out"]]
    read = [one for one in left if one.get("interpolated_ms") is not None]
    inside = [one["inside"] for one in read if one.get("inside") is not None]
    measured = [one["inside_measured"] for one in read if one.get("inside_measured") is not None]
    return {
        "left_out": len(left),
        "read": len(read),
        "against_estimate": _spread(one.get("error") for one in read),
        "against_estimate_undisturbed": _spread(one.get("undisturbed_error") for one in read),
        "predicted_undisturbed": _spread(one.get("predicted_undisturbed_error") for one in left),
        "predicted_half": middle([one["predicted_half"] for one in left if "predicted_half" in one]),
        "inside": share(sum(inside), len(inside)),
        "half": middle([one["half"] for one in read if one.get("half") is not None]),
        "against_measured": _spread(one.get("measured_error") for one in read),
        "inside_measured": share(sum(measured), len(measured)),
        "estimate_against_measured": _spread(one.get("estimate_error") for one in read),
    }


def _spread(errors: Iterable[float | None]) -> dict[str, Any]:
    sizes = sorted(abs(error) for error in errors if error is not None)
    return {
        "count": len(sizes),
        "median": statistics.median(sizes) if sizes else None,
        "p90": sizes[math.ceil(0.9 * len(sizes)) - 1] if sizes else None,
        "worst": sizes[-1] if sizes else None,
        "within_5": within(sizes, _LIMIT),
    }


def report(result: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    total, stack = result["summary"], result["stack"]
    taken = (
        result["date"][:10], result["system"]["cpu"], " ".join((stack["backend"], *stack["versions"].values())),
        f"graph: {result['graph']}", f"threads: {result['threads']}", f"visits: {result['visits']}",
        f"{result['wall_s'] / 60:.0f} min",
    )  # fmt: skip
    known = _said(total["against_estimate"]), f"{percent(total['inside'])} inside the interval of reading between sizes"
    whole = _said(total["against_measured"]), f"{percent(total['inside_measured'])} inside the whole interval"
    lines = [
        "# Estimates between measured sizes",
        "",
        "Written by `benchmarks/curves.py`. Bricks and models of all sizes were visited in turn in one run; then what",
        "was measured of every second size was left out, and its bricks were read between the others.",
        "",
        f"{', '.join(taken)}.",
        "",
        f"- {total['read']} of {total['left_out']} sizes that were left out could be read.",
        f"- Against the estimate from all bricks: {'; '.join(known)}, ± {percent(total['half'])} at the median.",
        f"- The same of undisturbed latencies: {_said(total['against_estimate_undisturbed'])}.",
        f"- Predicted from other sizes and the prior, undisturbed: {_said(total['predicted_undisturbed'])},",
        f"  ± {percent(total['predicted_half'])} at the median.",
        f"- Against the model as measured: {'; '.join(whole)}.",
        f"- Estimates from all bricks against the model at these sizes: {_said(total['estimate_against_measured'])}.",
        f"- Target: {percent(_LIMIT)} at the median, {percent(_LEVEL)} inside: {_verdict(total)}.",
        "",
    ]
    for one in result["sweeps"]:
        bricks, quiet = one["bricks"], percent(one["quiet"]["quiet_share"])
        heads = one["dimension"], *_HEADS
        lines += [
            f"## {one['model']} against {one['dimension']}",
            "",
            f"{bricks['unique']} bricks, {bricks['hidden']} of sizes that were left out alone; visits of models that",
            f"were quiet: {quiet}.",
            "",
            f"| {' | '.join(heads)} |",
            "|" + "--:|" * len(heads),
            *map(_row, one["points"]),
            "",
            *(f"- {row['size']}: {row['reason']}" for row in one["points"] if row.get("reason")),
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"


def _row(row: Mapping[str, Any]) -> str:
    def ms(name: str) -> str:
        return "" if row.get(name) is None else f"{row[name]:.3f}"

    def signed(name: str) -> str:
        return "" if row.get(name) is None else f"{100 * row[name]:+.1f} %"

    inside = {True: "yes", False: "no", None: ""}[row.get("inside")]
    cells = (
        str(row["size"]), ms("measured_ms"), ms("estimate_ms"), ms("interpolated_ms"), percent(row.get("share")),
        signed("error"), percent(row.get("half")), inside, signed("measured_error"),
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _said(spread: Mapping[str, Any]) -> str:
    if not spread["count"]:
        return "none"
    return (
        f"median |error| {percent(spread['median'])}, 90 % within {percent(spread['p90'])}, worst "
        f"{percent(spread['worst'])} ({spread['count']} sizes)"
    )


def _verdict(total: Mapping[str, Any]) -> str:
    median, inside = total["against_estimate"]["median"], total["inside"]
    if median is None or inside is None:
        return "nothing to judge by"
    return "met" if median <= _LIMIT and inside >= _LEVEL else "missed"


if __name__ == "__main__":
    main()
