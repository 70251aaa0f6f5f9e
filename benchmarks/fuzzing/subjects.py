"""Intact models, a suite and a database: what cases are damaged copies of."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

__all__ = ["CANARY", "Subjects", "prepare"]

CANARY = b"a secret that no model may read, 0123456789abcdef\n"

_HEAD = '<ir_version: 8, opset_import: ["": 17]>'
_TEXTS = {
    "branches": """g (float[N,4,16,16] x) => (float[N,4,16,16] y) {
        a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a) c = Conv<pads=[1,1,1,1]>(b, w) d = Sigmoid(b) e = Add(c, d)
        y = Relu(e)
    }""",
    "shapes": """g (float[B,S,8] x) => (float[B,S,2,4] y) {
        s = Shape(x) b = Gather(s, zero) bs = Unsqueeze(b, axes) l = Slice(s, one, two)
        t = Concat<axis=0>(bs, l, rest) y = Reshape(x, t)
    }""",
    "loop": """g (float[2,3] x, int64 n) => (float[2,3] y, float[K,2,3] z) {
        y, z = Loop(n, "", x) <body = b (int64 i, bool c, float[2,3] v) => (bool d, float[2,3] u, float[2,3] t) {
            d = Identity(c) u = Add(v, x) t = Relu(u)
        }>
    }""",
    "counted": """g (float[2,3] x) => (float[2,3] y) {
        y = Loop(five, "", x) <body = b (int64 i, bool c, float[2,3] v) => (bool d, float[2,3] u) {
            d = Identity(c)
            u = If(d) <then_branch = t () => (float[2,3] p) { p = Add(v, x) },
                       else_branch = e () => (float[2,3] q) { q = Neg(v) }>
        }>
    }""",
    "scan": """g (float[2] h, float[6,2] x) => (float[2] y, float[6,2] s) {
        y, s = Scan<num_scan_inputs=1, body = b (float[2] k, float[2] e) => (float[2] u, float[2] t) {
            u = Add(k, e) t = Relu(u)
        }>(h, x)
    }""",
    "choice": """g (float[4,8] x, int64 sr) => (float[4,8] y) {
        c = Equal(sr, five) h = Relu(x)
        y = If(c) <then_branch = a () => (float[4,8] p) { p = Sigmoid(h) },
                   else_branch = b () => (float[4,8] q) { k = Neg(h) q = Exp(k) }>
    }""",
    "quantised": """g (float[1,16] x) => (float[1,16] y) {
        q = QuantizeLinear(x, scale, point) d = DequantizeLinear(q, scale, point) m = MatMul(d, m16) y = Softmax(m)
    }""",
    "sequence": """g (float[4,2] x) => (float[4,2] y) {
        parts = SplitToSequence<axis=0>(x) n = SequenceLength(parts) y = ConcatFromSequence<axis=0, new_axis=0>(parts)
    }""",
    "recurrent": """g (float[5,1,8] x) => (float[5,1,1,4] y) { y = LSTM<hidden_size=4>(x, lw, lr) }""",
}
_ARRAYS = {
    "w": np.full((4, 4, 3, 3), 0.1, np.float32),
    "zero": np.array(0),
    "axes": np.array([0]),
    "one": np.array([1]),
    "two": np.array([2]),
    "rest": np.array([2, 4]),
    "five": np.array(5),
    "scale": np.array(0.1, np.float32),
    "point": np.array(3, np.int8),
    "m16": np.full((16, 16), 0.1, np.float32),
    "lw": np.full((1, 16, 8), 0.1, np.float32),
    "lr": np.full((1, 16, 4), 0.1, np.float32),
}


@dataclass(frozen=True, slots=True)
class Subjects:
    """What there is to damage.

    Attributes:
        models: ONNX files; external data lies beside them.
        suite: A suite of bricks of some of them.
        database: With measurements of that suite.
    """

    models: tuple[Path, ...]
    suite: Path
    database: Path


def prepare(folder: Path, *, corpus: bool = False) -> Subjects:
    """Make the subjects; the suite is measured for a second.

    Args:
        folder: Empty.
        corpus: Also take the models that come with the onnx wheel.
    """
    models = folder / "models"
    models.mkdir(parents=True)
    for name, text in _TEXTS.items():
        model = parser.parse_model(_HEAD + text)
        read = {value for node in _all_nodes(model.graph) for value in node.input}
        constants = [numpy_helper.from_array(array, label) for label, array in _ARRAYS.items() if label in read]
        model.graph.initializer.extend(constants)
        onnx.save(model, models / f"{name}.onnx")
    onnx.save(_external(), models / "external.onnx")
    (models / "weights.bin").write_bytes(bytes(4 * 64 * 64))
    onnx.save(_functions(), models / "functions.onnx")
    onnx.save(_nested(25), models / "nested.onnx")
    if corpus:
        data = Path(onnx.__file__).parent / "backend" / "test" / "data"
        for number, path in enumerate(sorted(data.rglob("model.onnx"))):
            if path.stat().st_size < 1 << 20:
                shutil.copyfile(path, models / f"wheel{number}.onnx")
    suite, database = folder / "suite", folder / "kept.db"
    named = [str(models / f"{name}.onnx") for name in ("branches", "quantised")]
    _call("generate", *named, "-g", "2", "--annotate", "-o", str(suite))
    _call("run", str(suite), "--with", named[0], "--budget", "1s", "--db", str(database))
    _call("estimate", *named, "--db", str(database))  # which keeps records
    return Subjects(tuple(sorted(models.glob("*.onnx"))), suite, database)


def _call(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dlbricks", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"DLBRICKS_LOCK_WAIT": "300"},
    )
    if done.returncode not in {0, 3}:  # 3: a second does not suffice for everything
        raise RuntimeError(f"dlbricks {' '.join(arguments)}: {done.stderr}")


def _all_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    found = list(graph.node)
    for node in graph.node:
        for attribute in node.attribute:
            found += _all_nodes(attribute.g) if attribute.HasField("g") else []
    return found


def _external() -> onnx.ModelProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[64, 64], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="weights.bin")
    value: Callable[[str, list[int]], onnx.ValueInfoProto] = lambda name, shape: helper.make_tensor_value_info(  # noqa: E731
        name, TensorProto.FLOAT, shape
    )
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", [value("x", [1, 64])], [value("y", [1, 64])], [tensor])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _functions() -> onnx.ModelProto:
    text = """<ir_version: 8, opset_import: ["": 17, "local": 1]>
    g (float[4] x) => (float[4] y) { a = local.twice(x) y = local.twice(a) }
    <domain: "local", opset_import: ["": 17, "local": 1]> twice (v) => (u) { k = local.once(v) u = local.once(k) }
    <domain: "local", opset_import: ["": 17]> once (v) => (u) { u = Neg(v) }"""
    return parser.parse_model(text)


def _nested(depth: int) -> onnx.ModelProto:
    """An If in an If in an If."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["v0"])], "b", [], [info("v0", TensorProto.FLOAT, [2])])
    for level in range(1, depth):
        other = helper.make_graph(
            [helper.make_node("Abs", ["x"], [f"o{level}"])], "o", [], [info(f"o{level}", TensorProto.FLOAT, [2])]
        )
        node = helper.make_node("If", ["c"], [f"v{level}"], then_branch=graph, else_branch=other)
        graph = helper.make_graph([node], "b", [], [info(f"v{level}", TensorProto.FLOAT, [2])])
    graph.input.extend([info("x", TensorProto.FLOAT, [2]), info("c", TensorProto.BOOL, [])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
