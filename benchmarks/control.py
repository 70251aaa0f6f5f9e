"""Control flow: estimates of models with If, Loop and Scan beside what they take (docs/control-flow.md).

    python benchmarks/control.py [--graphs NAME ...] [--visits N] [--processes N] [--out DIR]

Four models with seeded weights, as such models are: a speech detector whose graph sits in an If on the sampling rate,
an LSTM cell that a Scan takes over time steps, a decoder that feeds its own tokens back in a Loop, and one that does so
for four beams with attention to what an encoder of 16 MiB made. For each graph that is cut, one run visits the bricks
and the models in turn. Beside every estimate stands

* the raw sum of its bricks, and the same with every brick as cold as weights are that an inference reads once: what
  weights that iterations share make of it;
* what the operators of control flow take by themselves, and slices and stacks around them.

Written under ``--out``: ``control.json`` and ``control.md``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import blocks
import numpy as np
import onnx
from dlbricks import Estimate, estimate, generate, run
from dlbricks.db import Store, Subject
from dlbricks.models import ModelSource, find_models
from dlbricks.models.control.choices import Choice
from facts import number, percent, provenance, share, write
from onnx import numpy_helper

_GRAPHS = ("source", "fused", "runtime")

_LSTM = """
<ir_version: 8, opset_import: ["" : 16]>
lstm (float[48,1,64] x, float[1,128] h0, float[1,128] c0, float[64,512] W, float[128,512] R, float[512] B)
    => (float[1,128] h, float[1,128] c, float[48,1,128] y) {
    h, c, y = Scan<num_scan_inputs = 1, body = cell (float[1,128] hp, float[1,128] cp, float[1,64] xt)
        => (float[1,128] hn, float[1,128] cn, float[1,128] yt) {
        a = MatMul(xt, W)
        r = MatMul(hp, R)
        s = Add(a, r)
        gates = Add(s, B)
        gi, go, gf, gc = Split<axis = 1>(gates)
        i = Sigmoid(gi)
        o = Sigmoid(go)
        f = Sigmoid(gf)
        z = Tanh(gc)
        kept = Mul(f, cp)
        added = Mul(i, z)
        cn = Add(kept, added)
        t = Tanh(cn)
        hn = Mul(o, t)
        yt = Identity(hn)
    }>(h0, c0, x)
}
"""

_GREEDY = """
<ir_version: 8, opset_import: ["" : 16]>
greedy (int64[1] start, float[1,128] state, int64 trips, bool go, float[1000,128] E, float[128,128] U,
    float[128,128] Q, float[128,512] M, float[512,128] N, float[128,1000] L) => (float[1,128] end, int64[24,1] tokens) {
    last, end, tokens = Loop<body = step (int64 trip, bool goes, int64[1] token, float[1,128] h)
        => (bool on, int64[1] next, float[1,128] hn, int64[1] kept) {
        on = Identity(goes)
        e = Gather<axis = 0>(E, token)
        u = MatMul(e, U)
        q = MatMul(h, Q)
        s = Add(u, q)
        a = Tanh(s)
        m = MatMul(a, M)
        r = Relu(m)
        n = MatMul(r, N)
        hn = Add(n, a)
        logits = MatMul(hn, L)
        next = ArgMax<axis = 1, keepdims = 0>(logits)
        kept = Identity(next)
    }>(trips, go, start, state)
}
"""

_BEAMS = """
<ir_version: 8, opset_import: ["" : 16]>
beams (float[64,512] x, int64[4] start, float[4,128] state, int64 trips, bool go, float[512,2048] A, float[2048,512] B,
    float[512,2048] C, float[2048,512] D, float[512,128] K, float[512,128] V, float[1000,128] E, float[128,128] U,
    float[128,128] Q, float[128,512] M, float[512,128] N, float[128,1000] L)
    => (float[4,128] end, int64[12,4] tokens) {
    a0 = MatMul(x, A)
    a1 = Relu(a0)
    a2 = MatMul(a1, B)
    a3 = Add(a2, x)
    b0 = MatMul(a3, C)
    b1 = Relu(b0)
    b2 = MatMul(b1, D)
    memory = Add(b2, a3)
    k = MatMul(memory, K)
    keys = Transpose<perm = [1, 0]>(k)
    values = MatMul(memory, V)
    last, end, tokens = Loop<body = step (int64 trip, bool goes, int64[4] token, float[4,128] h)
        => (bool on, int64[4] next, float[4,128] hn, int64[4] kept) {
        on = Identity(goes)
        e = Gather<axis = 0>(E, token)
        u = MatMul(e, U)
        s = Add(u, h)
        q = MatMul(s, Q)
        scores = MatMul(q, keys)
        p = Softmax<axis = 1>(scores)
        read = MatMul(p, values)
        a = Add(read, s)
        m = MatMul(a, M)
        r = Relu(m)
        n = MatMul(r, N)
        hn = Add(n, a)
        logits = MatMul(hn, L)
        next = ArgMax<axis = 1, keepdims = 0>(logits)
        kept = Identity(next)
    }>(trips, go, start, state)
}
"""


def main() -> None:
    """Write the models, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", default=list(_GRAPHS), choices=_GRAPHS)
    parser.add_argument("--visits", type=int, default=48)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dlbricks-control-") as place:
        folder = Path(place)
        sources = models(folder)
        with Store.open(folder / "control.db") as store:
            rows: list[dict[str, Any]] = []
            for graph in options.graphs:
                rows += _measured(sources, store, folder / graph, graph, options)
            (stack,), (system,) = {one["stack"] for one in rows}, {one["system"] for one in rows}
            facts = provenance(store, system, stack)
    result = {**facts, "visits": options.visits, "processes": options.processes, "models": rows}
    write(options.out, "control", result, report(result))


def models(folder: Path) -> list[ModelSource]:
    """The models, each with its course.

    Args:
        folder: Where their files are written.
    """
    sys.path.append(str(blocks.TOP / "tests" / "plugins"))
    from speech import speech_detector

    made: Mapping[str, Callable[[], onnx.ModelProto]] = {
        "detector": speech_detector,
        "lstm": lambda: _with_weights(_LSTM),
        "greedy": lambda: _with_weights(_GREEDY, trips=24),
        "beams": lambda: _with_weights(_BEAMS, trips=12),
    }
    for name, make in made.items():
        onnx.save(make(), folder / f"{name}.onnx")
    return find_models([folder / f"{name}.onnx" for name in made], control=[Choice("", "then")])


def _with_weights(text: str, trips: int = 0) -> onnx.ModelProto:
    """A model from its text: inputs whose names are capitals are seeded weights, ``trips`` and ``go`` are constants."""
    model = onnx.parser.parse_model(text)
    draws = np.random.default_rng(0)
    inputs = list(model.graph.input)
    del model.graph.input[:]
    for value in inputs:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if value.name.isupper():
            array = draws.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[0]))
        elif value.name in {"trips", "go"}:
            array = np.array(trips, np.int64) if value.name == "trips" else np.ones((), np.bool_)
        else:
            model.graph.input.append(value)
            continue
        model.graph.initializer.append(numpy_helper.from_array(array, value.name))
    onnx.checker.check_model(model, full_check=True)
    return model


def _measured(
    sources: Sequence[ModelSource], store: Store, folder: Path, graph: str, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Estimates beside measured latency, of bricks of one graph and models that were visited in turn."""
    made = generate(sources, granularity=1, graph=graph, out=folder)
    if made.suite is None:
        raise SystemExit("no model can be decomposed")
    done = run(
        made.suite, store=store, models=sources, visits=options.visits, processes=options.processes, again=("all",)
    )
    found = estimate(sources, store=store, graph=graph, stack=done.stack, system=done.system)
    return [_row(one, store, graph) for one in found]


def _row(found: Estimate, store: Store, graph: str) -> dict[str, Any]:
    cold = {
        one.key: one.latency_ns / 1e6
        for one in store.measurements(
            subject=Subject.BRICK, keys={part.key for part in found.sequences}, stack=found.stack, cache=found.level
        )
    }
    as_cold = [cold.get(part.key) for part in found.sequences]
    return {
        "model": found.name, "graph": graph, "system": found.system, "stack": found.stack, "level": found.level,
        "control": [
            {
                "name": flow.name, "operator": flow.op_type, "how": str(flow.how), "course": flow.course,
                "times": flow.times, "layers": flow.layers, "reason": flow.reason,
                "own_ms": own.own_ms, "moved_ms": own.moved_ms,
            }
            for flow, own in zip(found.control, found.framing, strict=True)
        ],
        "estimate_ms": found.estimate_ms, "measured_ms": found.measured_ms, "ratio": found.ratio,
        "ratio_ci95": found.ratio_ci95, "paired": found.paired, "disturbed": found.disturbed,
        "sequential_ms": found.sequential_ms,
        "as_cold_ms": None if None in as_cold else sum(one for one in as_cold if one is not None),
        "warm": sum(part.cache not in {None, found.level} for part in found.sequences),
        "sequences": len(found.sequences),
        "quiet": found.quiet,
        "coverage": found.coverage and found.coverage.sequences,
        "reason": found.error or "; ".join(one.reason for one in found.missing[:1]),
    }  # fmt: skip


def report(result: Mapping[str, Any]) -> str:
    """The table as Markdown."""
    versions = " ".join(f"{name} {version}" for name, version in result["stack"]["versions"].items())
    lines = ["# Control flow\n", "Written by `benchmarks/control.py` (docs/control-flow.md).\n"]
    lines += [
        f"One thread, {versions}, {result['date']}, {result['visits']} visits of each, bricks and models in turn.\n"
    ]
    lines += ["*As cold*: the raw sum if no iteration found its weights warm. *Itself*: operators of control flow"]
    lines += ["beyond their bodies, and slices and stacks around them, as far as they are bricks by themselves.\n"]
    lines += ["| model | graph | measured ms | estimate ms | ratio | 95 % | raw sum | as cold | itself | disturbed |"]
    lines += ["|---|---|---:|---:|---:|---|---:|---:|---:|---|"]
    for row in result["models"]:
        itself = [one[name] for one in row["control"] for name in ("own_ms", "moved_ms") if one[name] is not None]
        cells = [
            row["model"], row["graph"], number(row["measured_ms"]), number(row["estimate_ms"]), number(row["ratio"]),
            " to ".join(map(number, row["ratio_ci95"] or ())), number(row["sequential_ms"]),
            number(row["as_cold_ms"]), number(sum(itself) if itself else None),
            {True: "yes", False: "no", None: ""}[row["disturbed"]],
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    for graph in dict.fromkeys(row["graph"] for row in result["models"]):
        known = [row for row in result["models"] if row["graph"] == graph and row["ratio"] is not None]
        errors = [abs(row["ratio"] - 1) for row in known]
        if errors:
            text = f"\n`{graph}`: median error {percent(statistics.median(errors))}, worst {percent(max(errors))}"
            quiet = [row["quiet"] for row in known if row["quiet"] is not None]
            text += f", {percent(share(sum(quiet), len(quiet)))} of the bricks' visits quiet." if quiet else "."
            lines.append(text)
    reasons = [f"- {row['model']}, {row['graph']}: {row['reason']}" for row in result["models"] if row["reason"]]
    if reasons:
        lines += ["\nNot estimated:\n", *reasons]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
