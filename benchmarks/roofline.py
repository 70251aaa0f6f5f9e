"""Compare rooflines with everything that was measured: no way to run a model or brick may be faster.

    python benchmarks/roofline.py [--models NAME ...] [--folder .cache/roofline]
    python benchmarks/roofline.py --stored DB ...

The machine's ceilings are measured with each runtime. Each model is measured with its bricks, of the executed graph and
of the source graph, and alone in other ways: fewer optimisations, and other runtimes. Then the roofline of the model
and of each brick is compared with every stored latency at the same system, threads and precision. A latency beats a
roofline if the upper end of its interval is below it. ``--stored`` only compares what databases have. Models in
``roofline.json`` under ``--out`` are not repeated, so that several short calls add up.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dlbricks import estimate
from dlbricks.db import Store, Subject
from dlbricks.db.values import NATIVE
from dlbricks.errors import DlbricksError
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.measurement.ceilings import measure_ceilings
from dlbricks.generator.measurement.measure import measure
from dlbricks.generator.measurement.run import run
from dlbricks.models import ModelSource, find_models
from facts import provenance, write

NAME = "roofline"

MODELS = (
    "squeezenet", "mobilenet_v2", "shufflenet", "resnet18", "inception_v1", "efficientnet_b0", "levit_128",
    "mobilevit_small", "deit_tiny", "minilm_l6", "electra_small", "alexnet",
)  # fmt: skip

_WAYS: tuple[dict[str, Any], ...] = (
    {"options": {"optimization": "extended"}},
    {"options": {"optimization": "basic"}},
    {"backend": "openvino"},
    {"backend": "torch"},
)

_GRAPHS = ("runtime", "source")


def main() -> None:
    """Measure and compare, or only compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", metavar="NAME", default=MODELS)
    parser.add_argument("--stored", nargs="+", type=Path, help="only compare what these databases have")
    parser.add_argument("--visits", type=int, default=10)
    parser.add_argument("--folder", type=Path, default=Path(".cache/roofline"), help="of the database")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{NAME}.json"
    found = json.loads(path.read_text()) if path.exists() else {"models": []}
    known = {row["name"] for row in found["models"]}
    for source in find_models([name for name in options.models if name not in known]):
        rows = []
        for file in options.stored or [options.folder / f"{NAME}.db"]:
            with Store.open(file) as store:
                if not options.stored:
                    _measure(source, store, options)
                for graph in _GRAPHS:
                    rows += [*compared(source, store, graph)]
                place = store.measurements(subject=Subject.MODEL)[-1]
                facts = provenance(store, place.system, place.stack)
        found = {**facts, "models": [*found["models"], {"name": source.name, "graphs": rows}]}
        write(options.out, NAME, found, text(found))


def _measure(source: ModelSource, store: Store, options: argparse.Namespace) -> None:
    if not store.measurements(subject=Subject.REFERENCE):
        measure_ceilings(store=store, threads=1, dtype=NATIVE, visits=options.visits)
    for graph in _GRAPHS:
        made = generate([source], out=options.folder / source.name / graph, granularity=1, graph=graph, annotate=True)
        if made.suite is not None:
            run(made.suite, store=store, models=[source], visits=options.visits)
    for way in _WAYS:
        try:
            measure([source], store=store, threads=1, visits=options.visits, **way)
        except DlbricksError as error:
            print(f"{source.name}, {way}: {error}")


def compared(source: ModelSource, store: Store, graph: str) -> Iterator[dict[str, Any]]:
    """Yield the roofline of a model beside its fastest way, and how many bricks beat theirs."""
    (found,) = estimate([source], store=store, granularity=1, graph=graph, backend="onnxruntime", threads=1)
    bound = found.roofline.ms
    if bound is None or found.model.decomposition is None or found.roofline.bricks is None:
        print(f"{source.name}, {graph}: {found.error or found.roofline.reason}")
        return
    ways = _latencies(store, found.model.decomposition.own.key)
    fastest = min(ways, key=lambda way: way["high_ms"])
    bricks = [
        {"key": row.key, "operators": list(row.op_types), "bound_ms": row.bound_ms, **way}
        for row in found.roofline.bricks.layers
        if row.bound_ms is not None
        for way in _latencies(store, row.key, found.model.level)
    ]
    yield {
        "graph": graph,
        "roofline_ms": bound,
        "ways": len(ways),
        "fastest": fastest,
        "beaten": fastest["high_ms"] < bound,
        "brick_latencies": len(bricks),
        "beaten_bricks": [brick for brick in bricks if brick["high_ms"] < brick["bound_ms"]],
    }


def _latencies(store: Store, key: str, level: str | None = None) -> list[dict[str, Any]]:
    """Return every stored latency of a model, or of a brick in a cache state, at one thread in the own precision."""
    stacks, subject = store.stacks(), Subject.MODEL if level is None else Subject.BRICK
    return [
        {
            "way": f"{stacks[one.stack].backend} {one.variant}".strip(),
            "options": dict(stacks[one.stack].options).get("optimization", ""),
            "ms": one.latency_ms,
            "high_ms": (one.latency_ns + one.half_ns) / 1e6,
        }
        for one in store.measurements(subject=subject, keys=[key], variant=None, cache=level)
        if (one.conditions.threads, one.conditions.dtype) == (1, NATIVE) and one.latency_ns > 0
    ]


def text(found: dict[str, Any]) -> str:
    """Return a line on all comparisons."""
    rows = [row for model in found["models"] for row in model["graphs"]]
    models = sum(row["beaten"] for row in rows)
    bricks = sum(len(row["beaten_bricks"]) for row in rows)
    total = sum(row["brick_latencies"] for row in rows)
    return f"{models} of {len(rows)} rooflines of models are beaten, and {bricks} of {total} latencies beat a brick's"


if __name__ == "__main__":
    main()
