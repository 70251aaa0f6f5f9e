"""Try comparisons: models against equal copies, and against copies that are slower by known shares.

    python benchmarks/gates.py --copies FOLDER [--models squeezenet FILE ...] [--shares 0 0 0.02 0.03 0.05] [--tries 5]
        [--beside quiet loops memory] [--minimum-effect 0.03] [--threads 1]
    python benchmarks/gates.py --proofs 200 [--models squeezenet ...] [--threads 1] [--name NAME]

Each try calls ``dlbricks.gate``: how often is a difference found, how wrong is its size, and how often does an equal
copy look slower? A slower copy computes more from its first input, in one of four ways (``WAYS``), the next one for the
next share and model. How much slower it is, 40 processes of their own say, without dlbricks: each loads both files, in
one order or the other, and runs them in turn. Copies and these figures stay in ``--copies``, for later calls. Beside
the tries runs nothing, two programs that only compute, or one that copies memory. Written under ``--out``, after each
try: ``power-t<threads>.json``; a later call adds to it, so that a curve may grow over days.

With ``--proofs`` models are compared with themselves as often in all, like in the proof of a finding. At most 5 % of
the intervals may exclude zero. Written: ``equal-t<threads>[-<name>].json``; a later call adds to it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from busy import busy
from dlbricks import gate
from dlbricks.analyzer.comparison.difference import MINIMUM_EFFECT
from dlbricks.analyzer.findings.proof import Proving, proof_of
from dlbricks.db.values import runtime_from
from dlbricks.generator.machine.system import probe_system
from dlbricks.generator.measurement.trial import Contender, Trial, TrialPair, place_of, try_out
from dlbricks.models import ModelSource, find_models
from figures import parser, read, write
from onnx import NodeProto, helper, numpy_helper

_ELEMENTS = {"float": np.float32, "double": np.float64, "int64": np.int64, "int32": np.int32, "bool": np.bool_}
"""Element types of inputs, as the runtime calls them."""

_BATCH = 10
_SMALL = ("squeezenet", "mobilenet_v2", "shufflenet", "minilm_l6", "levit_128", "resnet18")
"""Models of a few milliseconds, and of several families."""

_VISITS, _VISIT_NS = 16, 10_000_000
"""Visits of each file in a process that tells how much slower a copy is, and nanoseconds of one."""

_FEW, _PROCESSES = 8, 40
"""Processes that tell how much slower a copy is, as many in each order of loading: for its steps, and for good."""

_CLEAR = 0.25
"""Additional share that is so large that a few processes can measure it; smaller ones are proportions of its steps."""

_FINDING = 0.03
"""Share of a model that a finding must save."""

_STREAM = """
import os
import numpy
parent, there, here = os.getppid(), numpy.ones(1 << 24), numpy.ones(1 << 24)
while os.getppid() == parent:
    here[:] = there
"""

BESIDE: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "quiet": contextlib.nullcontext,
    "loops": lambda: busy(2),
    "memory": lambda: busy(1, _STREAM),
}
"""What runs beside the tries."""


def main() -> None:
    """Try, print and write."""
    arguments = parser(__doc__)
    arguments.add_argument("--models", nargs="+", default=_SMALL)
    arguments.add_argument("--copies", type=Path, metavar="FOLDER", help="of copies, and how much slower they are")
    arguments.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.03], help="a repeated one is tried again")
    arguments.add_argument("--tries", type=int, default=5, help="of each copy beside each program")
    arguments.add_argument("--beside", nargs="+", choices=BESIDE, default=["quiet"])
    arguments.add_argument("--minimum-effect", type=float, default=MINIMUM_EFFECT)
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--proofs", type=int, default=0)
    arguments.add_argument("--name", default="", help="distinguishes several runs of proofs")
    options = arguments.parse_args()
    if options.proofs:
        with tempfile.TemporaryDirectory(prefix="dlbricks-gates-") as name:
            equal(options, Path(name))
    elif options.copies is None:
        arguments.error("--copies is missing")
    else:
        curve(options)


def curve(options: argparse.Namespace) -> None:
    """Compare models with copies that are slower by known shares."""
    path = options.out / f"power-t{options.threads}.json"
    cpu = probe_system().cpu
    curve = read(path, {"cpu": cpu, "threads": options.threads, "rows": []})
    if curve["cpu"] != cpu:
        raise SystemExit(f"{path} is of {curve['cpu']}: give another --out")
    pairs = [*_pairs(options)]
    for number, beside in itertools.product(range(options.tries), options.beside):
        with BESIDE[beside]():
            for known, before, after in pairs:
                row = {**known, "beside": beside, **_tried(before, after, options)}
                curve["rows"].append(row)
                write(path, curve, f"{number} {_told(row)}")


def _pairs(options: argparse.Namespace) -> Iterator[tuple[dict[str, Any], ModelSource, ModelSource]]:
    """Return for each model and share what is known of the copy, the model and the copy, as files."""
    options.copies.mkdir(parents=True, exist_ok=True)
    path = options.copies / "copies.json"
    for number, source in enumerate(find_models(options.models)):
        old = options.copies / f"{source.name}.onnx"
        if not old.exists():
            onnx.save(onnx.load(source.runnable(options.copies).path), old)
        for place, share in enumerate(options.shares):
            way = [*WAYS][(number + place) % len(WAYS)] if share else ""
            new = options.copies / f"{source.name}-{way or 'equal'}-{share}-t{options.threads}.onnx"
            known = read(path, {})
            if new.name not in known:
                injected = (0.0, 0.0)
                if share:
                    slowed(old, new, way, share, options.threads)
                    injected = _injected(old, new, options.threads, _PROCESSES)
                else:
                    new.write_bytes(old.read_bytes())
                seen = {"model": source.name, "share": share, "way": way}
                known[new.name] = {**seen, "injected": injected[0], "injected_error": injected[1]}
                write(path, known, f"{new.name}: {injected[0]:+.2%} ± {injected[1]:.2%}")
            yield (known[new.name], *find_models([old, new]))


def _injected(old: Path, new: Path, threads: int, processes: int) -> tuple[float, float]:
    """Return the additional share of a copy, and the standard error of it, from processes of their own."""
    script = "import gates, sys; print(gates.ratio(*sys.argv[1:3], int(sys.argv[3]), first=int(sys.argv[4])))"
    logs = []
    for first in itertools.islice(itertools.cycle((0, 1)), processes):
        command = [sys.executable, "-c", script, str(old), str(new), str(threads), str(first)]
        logs.append(math.log(float(subprocess.check_output(command, cwd=Path(__file__).parent, text=True))))
    return math.expm1(statistics.fmean(logs)), statistics.stdev(logs) / math.sqrt(len(logs))


def _told(row: dict[str, Any]) -> str:
    low, high = row["ratio_ci95"] or (math.nan, math.nan)
    return (
        f"{row['model']} {row['way']}, {row['beside']}: {row['injected']:+.2%} reads {row['ratio'] - 1:+.2%} "
        f"({low - 1:+.2%} to {high - 1:+.2%}), {row['verdict']}, {row['wall_s']:.0f} s"
    )


def equal(options: argparse.Namespace, folder: Path) -> None:
    """Prove models against themselves until the file has so many proofs; it is written after each batch."""
    name = f"equal-t{options.threads}" + (f"-{options.name}" if options.name else "")
    path = options.out / f"{name}.json"
    rows = read(path, {"rows": []})["rows"]
    how, place = Proving(), place_of(runtime_from({}), options.threads)
    settings = {"visits": how.visits, "processes": how.processes, "threads": options.threads}
    for source in itertools.cycle(find_models(options.models)):
        if len(rows) >= options.proofs:
            break
        contender = Contender(source.runnable(folder), place)
        pairs = [TrialPair(contender, contender)] * min(_BATCH, options.proofs - len(rows))
        for trial in try_out(pairs, visits=how.visits, processes=how.processes):
            if not isinstance(trial, Trial):
                raise trial
            proof = proof_of(trial)
            ends = [end / proof.before_ms for end in proof.ci95_ms]
            rows.append({"model": source.name, "saving": proof.saving_ms / proof.before_ms, "ci95": ends})
        excluding = [row for row in rows if not row["ci95"][0] <= 0 <= row["ci95"][1]]
        found = {
            **settings,
            "models": Counter(row["model"] for row in rows),
            "proofs": len(rows),
            "exclude_zero": len(excluding),
            "save_3_percent": sum(row["ci95"][0] >= _FINDING for row in rows),
            "half_width": statistics.median((row["ci95"][1] - row["ci95"][0]) / 2 for row in rows),
            "rows": rows,
        }
        write(path, found, f"{len(excluding)} of {len(rows)} proofs exclude zero")


def _tried(before: ModelSource, after: ModelSource, options: argparse.Namespace) -> dict[str, Any]:
    begun = time.monotonic()
    found = gate(before, after, threads=options.threads, minimum_effect=options.minimum_effect)
    return {
        "minimum_effect": options.minimum_effect,
        "verdict": str(found.verdict),
        "ratio": found.levels.difference.ratio,
        "ratio_ci95": found.ratio_ci95,
        "processes": found.processes,
        "wall_s": time.monotonic() - begun,
    }


# Copies that are slower. ---------------------------------------------------------------------------------------------


_ROWS, _PAGE = 64, 1 << 10
"""Extent of the matrices that are multiplied and turned, and elements of a unit of memory that is read and written."""


def _products(count: int) -> Iterator[NodeProto]:
    """More work: products of matrices."""
    yield helper.make_node("Expand", ["more_number", "more_square"], ["more_0"])
    for step in range(count):
        yield helper.make_node("MatMul", [f"more_{step}", "more_weight"], [f"more_{step + 1}"])


def _layers(count: int) -> Iterator[NodeProto]:
    """More layers: additions of one number."""
    yield helper.make_node("Reshape", ["more_number", "more_flat"], ["more_0"])
    for step in range(count):
        yield helper.make_node("Add", [f"more_{step}", "more_one"], [f"more_{step + 1}"])


def _turns(count: int) -> Iterator[NodeProto]:
    """Worse layout: a matrix is turned again and again, and read as rows in between."""
    yield helper.make_node("Expand", ["more_number", "more_wide"], ["more_0"])
    for step in range(count):
        yield helper.make_node("Transpose", [f"more_{step}"], [f"more_turned_{step}"], perm=[1, 0])
        yield helper.make_node("Reshape", [f"more_turned_{step}", "more_wide"], [f"more_{step + 1}"])


def _traffic(count: int) -> Iterator[NodeProto]:
    """More memory: one large array is written, changed and read."""
    yield helper.make_node("Expand", ["more_number", "more_pages"], ["more_there"])
    yield helper.make_node("Add", ["more_there", "more_one"], ["more_changed"])
    yield helper.make_node("ReduceMax", ["more_changed"], [f"more_{count}"], keepdims=0)


WAYS = {"products": _products, "layers": _layers, "layout": _turns, "traffic": _traffic}
"""Ways to be slower: each returns nodes that compute ``more_<count>`` from ``more_number``."""


def slowed(old: Path, new: Path, way: str, share: float, threads: int) -> None:
    """Write a copy that takes about so much longer, between one that takes much longer and one with a single step."""
    steps, much = 1, 0.0
    while much < _CLEAR:
        steps = max(steps + 1, round(steps * min(8.0, 1.2 * _CLEAR / max(much, 1e-3))))
        _add(old, new, way, steps)
        much = ratio(old, new, threads) - 1
    much, _ = _injected(old, new, threads, _FEW)
    _add(old, new, way, 1)
    least, _ = _injected(old, new, threads, _FEW)
    _add(old, new, way, max(1, round(1 + (steps - 1) * (share - least) / (much - least))))


def _add(old: Path, new: Path, way: str, count: int) -> None:
    """Write a model with so many more steps, whose result is one more output."""
    model = onnx.load(old)
    graph = model.graph
    known = {initializer.name for initializer in graph.initializer}
    first = next(value for value in graph.input if value.name not in known)
    weight = np.random.default_rng(0).standard_normal((_ROWS, _ROWS)) / math.sqrt(_ROWS)
    arrays = {"flat": [-1], "zero": [0], "one": np.ones(1, np.float32), "weight": weight.astype(np.float32)}
    arrays |= {"square": [_ROWS, _ROWS], "wide": [_ROWS, 4 * _ROWS], "pages": [count, _PAGE]}
    nodes = [
        helper.make_node("Reshape", [first.name, "more_flat"], ["more_row"]),
        helper.make_node("Gather", ["more_row", "more_zero"], ["more_first"]),
        helper.make_node("Cast", ["more_first"], ["more_number"], to=onnx.TensorProto.FLOAT),
        *WAYS[way](count),
    ]
    read_names = {name for node in nodes for name in node.input}
    graph.node.extend(nodes)
    graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), f"more_{name}")
        for name, array in arrays.items()
        if f"more_{name}" in read_names
    )
    graph.output.append(helper.make_tensor_value_info(f"more_{count}", onnx.TensorProto.FLOAT, None))
    onnx.save(model, new)


def ratio(old: str | Path, new: str | Path, threads: int, *, first: int = 0) -> float:
    """Return the time of one file relative to another, both run in turn in this process.

    Args:
        old: A model.
        new: A slower one with the same inputs.
        threads: Of the runtime. The time is that of the processor with one, else wall time.
        first: Which is loaded and run first: 0 the old one, 1 the new one.
    """
    clock = time.process_time_ns if threads == 1 else time.perf_counter_ns
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    paths = (new, old) if first else (old, new)
    sessions = [ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]) for path in paths]
    feeds = {}
    for value in sessions[0].get_inputs():
        shape = [extent if isinstance(extent, int) else 1 for extent in value.shape]
        element = _ELEMENTS[value.type.removeprefix("tensor(").removesuffix(")")]
        feeds[value.name] = np.ones(shape, element)
    bound = [_bound(session, feeds) for session in sessions]
    taken: list[list[int]] = [[], []]
    loops = 1
    for visit in range(_VISITS + 2):
        for times, session, binding in zip(taken, sessions, bound, strict=True):
            begun = clock()
            for _ in range(loops):
                session.run_with_iobinding(binding)
            times.append(clock() - begun)
        if visit < 2:  # the first visits are cold, and only tell how many executions are long enough
            loops = max(1, _VISIT_NS // max(min(taken[0][-1], taken[1][-1]), 1)) if visit else 1
            taken = [[], []]
    before, after = reversed(taken) if first else taken
    return float(np.median(after) / np.median(before))


def _bound(session: ort.InferenceSession, feeds: dict[str, Any]) -> Any:
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return binding


if __name__ == "__main__":
    main()
