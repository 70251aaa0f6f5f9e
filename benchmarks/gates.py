"""Count right decisions of the gate: a model against a copy, and against a copy that is slower by a known share.

    python benchmarks/gates.py [--model minilm_l6] [--tries 20] [--threads 1] [--loops 0 2] [--slower 0.12]
    python benchmarks/gates.py --curve --tries 5 [--models FILE ...] [--shares 0 0.02 0.03 0.05 0.13] [--loops 0 2]
    python benchmarks/gates.py --proofs 200 [--models squeezenet ...] [--threads 1] [--name NAME]

The slower copy computes an additional chain of products of its first input, so long that it takes at least ``--slower``
more. The result contains this share, by CPU time in one process before the tries. Each try calls ``dlbricks.gate``
with a minimum effect of 5 %. It fails if ``compare --fail-on slower`` would end with exit code 4. Written under
``--out``: ``gates-t<threads>.json``.

With ``--curve`` several models are compared with copies that are slower by each of some shares, 0 for equal ones,
under default settings: how often a difference is found, how wrong its size is, and how often equal copies look slower.
Written: ``power-t<threads>.json``; a later call adds to it, so that a curve may grow over days.

With ``--proofs`` models are compared with themselves as often in all, like in the proof of a finding. At most 5 % of
the intervals may exclude zero. Written: ``equal-t<threads>[-<name>].json``; a later call adds to it.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from busy import busy
from dlbricks import gate
from dlbricks.analyzer.findings.proof import Proving, proof_of
from dlbricks.db.values import runtime_from
from dlbricks.generator.machine.system import probe_system
from dlbricks.generator.measurement.trial import Contender, Trial, TrialPair, place_of, try_out
from dlbricks.models import ModelSource, find_models
from figures import parser, read, write
from onnx import helper, numpy_helper

_ELEMENTS = {"float": np.float32, "double": np.float64, "int64": np.int64, "int32": np.int32, "bool": np.bool_}
"""Element types of inputs, as the runtime calls them."""

_SIDE = 64
_BATCH = 10
_SMALL = ("squeezenet", "mobilenet_v2", "shufflenet", "minilm_l6", "levit_128", "resnet18")
"""Models of a few milliseconds, and of several families."""

_RATIO_VISITS, _RATIO_NS = 30, 20_000_000
"""Visits of each file that tell how much slower a copy is, and nanoseconds of one."""

_FRESH = 8
"""Processes that tell how much slower a copy is."""

_MINIMUM = 0.05
_FINDING = 0.03
"""Share of a model that a finding must save."""


def main() -> None:
    """Try, print and write."""
    arguments = parser(__doc__)
    arguments.add_argument("--model", default="minilm_l6")
    arguments.add_argument("--tries", type=int, default=20)
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--loops", type=int, nargs="+", default=[0, 2])
    arguments.add_argument("--slower", type=float, default=0.12)
    arguments.add_argument("--curve", action="store_true")
    arguments.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.03])
    arguments.add_argument("--proofs", type=int, default=0)
    arguments.add_argument("--models", nargs="+", default=_SMALL, help="of the proofs")
    arguments.add_argument("--name", default="", help="distinguishes several runs of proofs")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="dlbricks-gates-") as name:
        if options.proofs:
            equal(options, Path(name))
        elif options.curve:
            curve(options, Path(name))
        else:
            experiment(options, Path(name))


def experiment(options: argparse.Namespace, folder: Path) -> None:
    """Try equal and slower copies alternately."""
    (source,) = find_models([options.model])
    old = folder / "old.onnx"
    onnx.save(onnx.load(source.runnable(folder).path), old)
    copy, slow = folder / "copy.onnx", folder / "slow.onnx"
    copy.write_bytes(old.read_bytes())
    injected = slowed(old, slow, options.slower)
    before, equal, slower = find_models([old, copy, slow])
    rows = []
    for loops in options.loops:
        with busy(loops):
            for number in range(options.tries):
                for kind, after in (("equal", equal), ("slower", slower)):
                    rows.append({"loops": loops, "kind": kind, "number": number, **_tried(before, after, options)})
    result = {"model": options.model, "threads": options.threads, "injected": injected, "tries": rows}
    right = sum(row["failed"] == (row["kind"] == "slower") for row in rows)
    write(options.out / f"gates-t{options.threads}.json", result, f"{right} of {len(rows)} decisions are right")


def curve(options: argparse.Namespace, folder: Path) -> None:
    """Compare models with copies that are slower by known shares; the file is written after each try."""
    path = options.out / f"power-t{options.threads}.json"
    cpu = probe_system().cpu
    earlier = read(path, {"cpu": cpu, "rows": []})
    if earlier.get("cpu") != cpu:
        raise SystemExit(f"{path} is of {earlier.get('cpu', 'an unknown processor')}: give another --out")
    rows: list[dict[str, Any]] = earlier["rows"]
    pairs = []
    for number, source in enumerate(find_models(options.models)):
        old = folder / f"{number}.onnx"
        onnx.save(onnx.load(source.runnable(folder).path), old)
        for share in options.shares:
            new = folder / f"{number}-{share}.onnx"
            injected = _slowed_by(old, new, share)
            pairs.append((source.name, share, injected, *find_models([old, new])))
    for number, loops in itertools.product(range(options.tries), options.loops):
        with busy(loops):
            for name, share, injected, before, after in pairs:
                tried = _tried(before, after, options, minimum_effect=None)
                rows.append({"model": name, "share": share, "injected": injected, "loops": loops, **tried})
                write(path, {"cpu": cpu, "threads": options.threads, "rows": rows}, _told(rows[-1], number))


def _slowed_by(old: Path, new: Path, share: float) -> float:
    """Write a copy that takes about so much longer; return its additional share, the mean of fresh processes."""
    if not share:
        new.write_bytes(old.read_bytes())
        return 0.0
    slowed(old, new, share)
    command = [sys.executable, "-c", "import gates, sys; print(gates._ratio(*sys.argv[1:]))", str(old), str(new)]
    there = Path(__file__).parent
    ratios = [float(subprocess.check_output(command, cwd=there, text=True)) for _ in range(_FRESH)]
    return statistics.fmean(ratios) - 1


def _told(row: dict[str, Any], number: int) -> str:
    low, high = row["ratio_ci95"]
    return (
        f"{number} {row['model']}, {row['loops']} loops: {row['injected']:+.2%} reads {row['ratio'] - 1:+.2%} "
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


def _tried(
    before: ModelSource, after: ModelSource, options: argparse.Namespace, minimum_effect: float | None = _MINIMUM
) -> dict[str, Any]:
    begun = time.monotonic()
    given = {} if minimum_effect is None else {"minimum_effect": minimum_effect}
    found = gate(before, after, threads=options.threads, **given)
    seen = found.levels.difference
    return {
        "failed": found.blind or str(found.verdict) == "SLOWER",
        "verdict": str(found.verdict),
        "ratio": seen.ratio,
        "ratio_ci95": seen.ci95,
        "processes": found.processes,
        "wall_s": time.monotonic() - begun,
    }


def slowed(source: Path, target: Path, share: float) -> float:
    """Write a copy that takes at least so much longer; return its additional share."""
    products = 1
    while True:
        model = onnx.load(source)
        _add_products(model, products)
        onnx.save(model, target)
        found = _ratio(source, target) - 1
        if found >= share:
            return found
        products = max(products + 1, round(products * min(2.0, share / max(found, 1e-3))))


def _add_products(model: onnx.ModelProto, count: int) -> None:
    graph = model.graph
    known = {initializer.name for initializer in graph.initializer}
    first = next(value for value in graph.input if value.name not in known)
    weight = np.random.default_rng(0).standard_normal((_SIDE, _SIDE)).astype(np.float32) / np.sqrt(_SIDE)
    arrays = {"flat": [-1], "zero": [0], "side": [_SIDE, _SIDE]}
    graph.initializer.append(numpy_helper.from_array(weight.astype(np.float32), "more_weight"))
    for name, values in arrays.items():
        graph.initializer.append(numpy_helper.from_array(np.array(values, dtype=np.int64), f"more_{name}"))
    steps = (helper.make_node("MatMul", [f"more_{step}", "more_weight"], [f"more_{step + 1}"]) for step in range(count))
    graph.node.extend([
        helper.make_node("Reshape", [first.name, "more_flat"], ["more_row"]),
        helper.make_node("Gather", ["more_row", "more_zero"], ["more_first"]),
        helper.make_node("Cast", ["more_first"], ["more_number"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Expand", ["more_number", "more_side"], ["more_0"]),
        *steps,
    ])  # fmt: skip
    graph.output.append(helper.make_tensor_value_info(f"more_{count}", onnx.TensorProto.FLOAT, [_SIDE, _SIDE]))


def _ratio(old: Path, new: Path) -> float:
    """Return the CPU time of one file relative to another, both run alternately in this process."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    sessions = [ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]) for path in (old, new)]
    feeds = {}
    for value in sessions[0].get_inputs():
        shape = [extent if isinstance(extent, int) else 1 for extent in value.shape]
        element = _ELEMENTS[value.type.removeprefix("tensor(").removesuffix(")")]
        feeds[value.name] = np.ones(shape, element)
    bound = [_bound(session, feeds) for session in sessions]
    taken: list[list[int]] = [[], []]
    loops = 1
    for visit in range(_RATIO_VISITS + 1):
        for times, session, binding in zip(taken, sessions, bound, strict=True):
            begun = time.process_time_ns()
            for _ in range(loops):
                session.run_with_iobinding(binding)
            times.append(time.process_time_ns() - begun)
        if not visit:  # the first visit only tells how many executions are long enough
            loops = max(1, _RATIO_NS // max(times[-1], 1))
            taken = [[], []]
    return float(np.median(taken[1]) / np.median(taken[0]))


def _bound(session: ort.InferenceSession, feeds: dict[str, Any]) -> Any:
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return binding


if __name__ == "__main__":
    main()
