"""Run one suite in every framework: support, agreement of outputs, latencies and fastest known bricks.

    python benchmarks/frameworks.py [--models NAME ...] [--backends NAME[:OPTION=VALUE] ...] [--db FILE] [--out DIR]

1. Every unique brick of the zoo runs in every framework; its outputs are compared with ONNX Runtime's.
2. Every framework measures its supported bricks, alternating with whole models, with hot caches, and in cache mode
   ``model`` if possible, at each requested granularity.
3. Each model is estimated in each framework and compared with its measured latency. The fastest known bricks come from
   all frameworks, and from all bricks up to the largest granularity.

Written under ``--out``: ``frameworks.json`` (every figure, with the stacks). ``--db``
keeps the measurements.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dlbricks import __version__, estimate
from dlbricks.analyzer.estimation.estimates import estimate_record
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.bricks.suite.suite import Suite
from dlbricks.constructor import Estimate
from dlbricks.db import Store
from dlbricks.generator.backends.registry import get
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.measurement.agreement import AgreementReport, Outcome, check_agreement
from dlbricks.generator.measurement.run import RunReport, run
from dlbricks.models import ModelSource, find_models
from facts import middle, number, percent, share, versions, within, write

CNNS = [
    "alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
    "zfnet512",
]  # fmt: skip
TRANSFORMERS = ["bert_base", "gpt2", "vit_b16"]
BACKENDS = ["onnxruntime", "torch", "openvino", "mxnet"]
_BOUNDS = (
    "lower_bound_sequential_ms", "lower_bound_critical_path_ms", "benanza_ratio_sequential",
    "benanza_ratio_critical_path",
)  # fmt: skip
_FIGURES = ("measured_ms", "estimate_ms", "ci95_ms", "sequential_ms", "critical_path_ms", *_BOUNDS)


@dataclass(frozen=True)
class Framework:
    """A backend with options, as asked for."""

    label: str
    backend: str
    options: dict[str, str]

    @classmethod
    def parse(cls, text: str) -> Framework:
        """``torch`` or ``torch:mode=compile``."""
        backend, _, more = text.partition(":")
        return cls(text, backend, dict(part.split("=", 1) for part in more.split(",") if part))


def main() -> None:
    """Check, measure, estimate, write."""
    options = _options()
    sources = find_models(options.models)
    frameworks = [Framework.parse(text) for text in options.backends]
    with ExitStack() as resources:
        folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="dlbricks-frameworks-")))
        store = resources.enter_context(Store.open(options.db or folder / "frameworks.db"))
        suites: dict[int, Suite] = {}
        bricks = {}
        for granularity in options.granularities:
            made = generate(sources, granularity=granularity, out=folder / f"suite-{granularity}")
            assert made.suite is not None
            suites[granularity] = made.suite
            bricks[granularity] = {"sequences": made.sequences, "unique": made.unique}
        of_cnns = _keys(source for source in sources if source.name in CNNS)
        result: dict[str, Any] = {
            "schema": 1,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "dlbricks": __version__,
            **{name: getattr(options, name) for name in ("threads", "processes", "visits", "sessions")},
            "bricks": bricks,
            "frameworks": {},
        }
        for one in frameworks:
            print(one.label, flush=True)
            result["frameworks"][one.label] = _framework(one, suites, sources, store, of_cnns, options)
        for one in frameworks:  # the bound is over all of them: known once all are measured
            entry = result["frameworks"][one.label]
            for granularity in suites:
                for cache in entry["caches"]:
                    label = _label(granularity, cache)
                    bounds = _models(sources, store, (granularity, cache, entry["stack"]), options)
                    for row, found in zip(entry["models"][label], bounds, strict=True):
                        row |= {name: found[name] for name in _BOUNDS}
        systems = store.systems()
        result["system"] = [{"cpu": found.cpu, "cores": found.physical_cores} for found in systems.values()]
    write(options.out, "frameworks", result, report(result))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=[*CNNS, *TRANSFORMERS])
    parser.add_argument("--backends", nargs="+", default=BACKENDS, metavar="NAME[:OPTION=VALUE,...]")
    parser.add_argument("--granularities", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--threads", type=int, default=1, help="0: all cores")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--visits", type=int, default=24, help="of each brick and model")
    parser.add_argument("--sessions", type=int, default=2)
    parser.add_argument("--memory-gib", type=int, default=5, help="networks kept loaded at once")
    parser.add_argument("--no-agreement", action="store_true", help="leave the comparison of outputs out")
    parser.add_argument("--db", type=Path, help="keep the measurements")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    return parser.parse_args()


def _keys(sources: Iterable[ModelSource]) -> set[str]:
    """Bricks of some models at G = 1."""
    return {sequence.key for source in sources for sequence in sequences(build_graph(source.skeleton()), 1)}


def _framework(
    one: Framework,
    suites: Mapping[int, Suite],
    sources: Sequence[ModelSource],
    store: Store,
    cnns: set[str],
    options: Any,
) -> dict[str, Any]:
    """One framework: agreement, and its runs."""
    backend = get(one.backend)
    caches = ["hot", "model"] if backend.in_turn(backend.resolve("cpu", one.options)) else ["hot"]
    entry: dict[str, Any] = {"caches": caches, "runs": {}, "models": {}, "accuracy": {}}
    if not options.no_agreement:
        entry["agreement"] = _agreed(check_agreement(suites[min(suites)], one.backend, options=one.options), cnns)
    for granularity, suite in suites.items():
        for cache in caches:
            done = run(
                suite, store=store, backend=one.backend, options=one.options, threads=options.threads, cache=cache,
                models=sources, again=("all",),  # a ratio is of models that were visited in turn with these very bricks
                visits=options.visits, processes=options.processes, sessions=options.sessions,
                memory_bytes=options.memory_gib << 30,
            )  # fmt: skip
            label = _label(granularity, cache)
            entry["models"][label] = _models(sources, store, (granularity, cache, done.stack), options)
            entry["accuracy"][label] = _accuracy(entry["models"][label])
            entry["runs"][label] = _run_row(done)
            stack = store.stacks()[done.stack]
            entry["stack"] = done.stack
            entry["versions"], entry["options"] = dict(stack.versions), dict(stack.options)
            print(f"{one.label}, {label}: {done.wall_s:.0f} s, {done.failed} failed", flush=True)
    return entry


def _label(granularity: int, cache: str) -> str:
    return f"G={granularity}, {cache}"


def _agreed(report: AgreementReport, cnns: set[str]) -> dict[str, Any]:
    reasons = Counter(
        f"{' '.join(row.operators)}: {row.reason}" for row in report.rows if row.verdict is not Outcome.SAME
    )
    ran = {row.key for row in report.rows if row.verdict in {Outcome.SAME, Outcome.DIFFERENT}}
    return {
        "against": report.against,
        "tolerance": report.tolerance,
        "counts": {str(verdict): report.count(verdict) for verdict in Outcome},
        "runs": share(len(ran), len(report.rows)),
        "runs_of_cnns": share(len(ran & cnns), sum(row.key in cnns for row in report.rows)),
        "worst_error": max((row.error for row in report.rows if row.error is not None), default=None),
        "reasons": dict(reasons.most_common()),
    }


def _run_row(report: RunReport) -> dict[str, Any]:
    return {
        "bricks": report.bricks, "failed": report.failed, "models": report.models, "wall_s": report.wall_s,
        "timed_s": report.timed_s, "prepare_s": report.prepare_s,
    }  # fmt: skip


def _models(
    sources: Sequence[ModelSource], store: Store, where: tuple[int, str, str], options: Any
) -> list[dict[str, Any]]:
    granularity, cache, stack = where
    found = estimate(sources, store=store, stack=stack, threads=options.threads, cache=cache, granularity=granularity)
    return [_row(row) for row in found]


def _row(found: Estimate) -> dict[str, Any]:
    measured, record = found.truth.ms, estimate_record(found, explained=False)
    return {
        "name": found.name,
        "error": found.error,
        "missing": len(found.parts.missing),
        **{name: record[name] for name in _FIGURES},
        "ratio": found.truth.ratio if found.truth.paired else None,
        "ratio_ci95": found.truth.ratio_ci95 if found.truth.paired else None,
        "raw_ratio": found.sums.sequential_ms / measured if found.sums.sequential_ms is not None and measured else None,
        "ratio_reason": found.truth.reason,
    }


def _accuracy(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Summarise the models with all bricks measured."""
    known = [row for row in rows if row["ratio"] is not None]
    if not known:
        return {"models": 0}
    errors = [abs(row["ratio"] - 1) for row in known]
    inside = sum(row["ratio_ci95"][0] <= 1 <= row["ratio_ci95"][1] for row in known)
    return {
        "models": len(known),
        "median_error": middle(errors),
        "within_10": within(errors, 0.10),
        "worst": max(errors),
        "worst_model": max(known, key=lambda row: abs(row["ratio"] - 1))["name"],
        "inside_interval": share(inside, len(known)),
    }


def report(result: dict[str, Any]) -> str:
    """Return the tables as Markdown."""
    frameworks = result["frameworks"]
    small, large = (_label(pick(result["bricks"]), "hot") for pick in (min, max))
    lines = [
        f"# One suite in {len(frameworks)} frameworks, {result['threads']} thread(s)",
        "",
        f"dlbricks {result['dlbricks']}, {result['date']}, "
        + "; ".join(f"{system['cpu']}, {system['cores']} cores" for system in result["system"])
        + ". Unique bricks: "
        + ", ".join(f"{row['unique']} at G={granularity}" for granularity, row in result["bricks"].items())
        + ". Written by `benchmarks/frameworks.py`; all figures are in the JSON.",
        "",
        "| framework | versions | runs | of the CNNs' bricks | same result | different | failed | worst error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for label, entry in frameworks.items():
        found = entry.get("agreement")
        if found is not None:
            counts = found["counts"]
            lines.append(
                f"| {label} | {versions(entry)} | {percent(found['runs'])} | {percent(found['runs_of_cnns'])} | "
                f"{counts['same']} | {counts['different']} | {counts['failed']} | {found['worst_error']:.1e} |"
            )
    apart = [
        f"* {label}: {count} x {reason}"
        for label, entry in frameworks.items()
        for reason, count in entry.get("agreement", {}).get("reasons", {}).items()
    ]
    lines += ["", f"What does not run, or not alike:{'' if apart else ' nothing.'}", *([""] if apart else []), *apart]
    lines += [
        "",
        "| framework | bricks, cache | models | median error | within 10 % | worst | inside interval |",
        "|---|---|---|---|---|---|---|",
    ]
    for label, entry in frameworks.items():
        for cache, row in entry["accuracy"].items():
            if row["models"]:
                lines.append(
                    f"| {label} | {cache} | {row['models']} | {percent(row['median_error'])} | "
                    f"{percent(row['within_10'])} | {percent(row['worst'])} ({row['worst_model']}) | "
                    f"{percent(row['inside_interval'])} |"
                )
    lines += [
        "",
        (
            f"Caches hot, in milliseconds. Sums are of bricks at G={min(result['bricks'])}; the lower bound is over "
            f"all frameworks and bricks of at most {max(result['bricks'])} layers."
        ),
        "",
        (
            "| model | framework | measured | sequential | critical path | bound, sequential | bound, critical path "
            "| Benanza ratio | critical path | estimate / measured | bricks missing |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for position in range(max((len(entry["models"][small]) for entry in frameworks.values()), default=0)):
        for label, entry in frameworks.items():
            row = entry["models"][small][position]
            bound = {key: value for key, value in entry["models"][large][position].items() if key in _BOUNDS}
            row = row | bound
            cells = [row[key] for key in ("measured_ms", "sequential_ms", "critical_path_ms", *_BOUNDS, "ratio")]
            lines.append(f"| {row['name']} | {label} | {' | '.join(map(number, cells))} | {row['missing'] or ''} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
