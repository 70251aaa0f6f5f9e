"""The prover accepts what holds for every input, and refuses what holds for some, also after one change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.analyzer.rewriting.evaluation import DEFINED
from dlbricks.analyzer.rewriting.prover import Prover, Verdict
from dlbricks.analyzer.rewriting.recording import Values
from dlbricks.analyzer.rewriting.rewrite import Rewrite, RewriteGraph
from dlbricks.bricks.operators import OPERATORS
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

SIZES = (8, 9, 4, 1, 11)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def decided(
    old: str, new: str, *, inputs: str = "float[8,16] x", outputs: str = "float[8,16] y", opset: int = 17,
    **weights: np.ndarray,
) -> Verdict:  # fmt: skip
    """Decide whether nodes compute ``y`` as others do; ``n`` is a dynamic dimension."""
    head = f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]> model ({inputs}) => ({outputs})'
    model, other = (onnx.parser.parse_model(f"{head} {{ {nodes} }}") for nodes in (old, new))
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(own), name) for name, own in weights.items())
    graph = RewriteGraph(model)
    feeds = [feeds_of(model, seed, size) for seed, size in ((0, SIZES[0]), (1, SIZES[0]))]
    others = [feeds_of(model, 2, size) for size in SIZES[1:]] if "n" in inputs.split("[")[1] else []
    nodes = list(other.graph.node)
    made = {name for node in nodes for name in node.output}
    names = {name: graph.fresh("new") for name in made if name not in {value.name for value in other.graph.output}}
    for node in nodes:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    read = {name for node in nodes for name in node.input}
    constants = {graph.fresh("constant"): name for name in read & weights.keys()}
    for node in nodes:
        node.input[:] = [next((fresh for fresh, own in constants.items() if own == name), name) for name in node.input]
    written = {fresh: np.asarray(weights[name]) for fresh, name in constants.items()}
    values = Values(graph, feeds, others)
    return Prover(values, {}).prove(Rewrite("test: one", tuple(graph.wanted), tuple(nodes), written))


def feeds_of(model: onnx.ModelProto, seed: int, size: int) -> dict[str, np.ndarray]:
    generator, feeds = np.random.default_rng(seed), {}
    for value in model.graph.input:
        shape = [dim.dim_value if dim.HasField("dim_value") else size for dim in value.type.tensor_type.shape.dim]
        kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        made = generator.integers(0, 4, shape) if kind.kind in "iub" else generator.standard_normal(shape)
        feeds[value.name] = made.astype(kind)
    return feeds


W = random(16, 16)
ALGEBRA: Mapping[str, tuple[str, str, Mapping[str, np.ndarray]]] = {
    "a sum in another order": ("a = Add(x, b) y = MatMul(a, w)", "p = MatMul(x, w) q = MatMul(b, w) y = Add(p, q)",
                               {"w": W, "b": random(16)}),
    "moves there and back": ("t = Transpose(x) u = Tanh(t) y = Transpose(u)", "y = Tanh(x)", {}),
    "an unknown function moved behind a transposition": (
        "t = Transpose(x) u = Selu(t) y = Transpose(u)", "y = Selu(x)", {}),
    "a mean as a product": ("m = ReduceMean<axes = [1]>(x) y = Add(m, x)", "p = MatMul(x, w) y = Add(p, x)",
                            {"w": np.full((16, 16), 1 / 16, np.float32)}),
    "a composite operator by its definition": (
        ("m = ReduceMean<axes = [1]>(x) c = Sub(x, m) q = Mul(c, c) v = ReduceMean<axes = [1]>(q) f = Add(v, e)"
        " s = Sqrt(f) y = Div(c, s)"), "y = LayerNormalization<axis = 1, epsilon = 0.001>(x, one)",
        {"e": np.float32(0.001), "one": np.ones(16, np.float32)}),
    "a relu as a maximum": ("y = Max(x, z)", "y = Relu(x)", {"z": np.float32(0)}),
    "a branch that is taken": (
        ("y = If(c) <then_branch = t () => (float[8,16] g) {g = Tanh(x)}, else_branch = e () => (float[8,16] g)"
        " {g = Exp(x)}>"), "y = Tanh(x)", {"c": np.array(True)}),
}  # fmt: skip
"""By name: old nodes, new nodes, constants."""


@pytest.mark.parametrize("name", ALGEBRA)
def test_what_follows_from_algebra_holds(name: str):
    old, new, weights = ALGEBRA[name]

    assert decided(old, new, **weights).reason in {"algebra", "all numbers"}  # of one variable the cheaper one decides


WRONG: Mapping[str, tuple[str, str, Mapping[str, np.ndarray]]] = {
    "a clip that acts rarely": ("y = Clip(x, l, h)", "y = Identity(x)", {"l": np.float32(-50), "h": np.float32(50)}),
    "a floor under a positive number": ("q = Mul(x, x) y = Max(q, e)", "y = Mul(x, x)", {"e": np.float32(1e-10)}),
    "a small weight": ("m = MatMul(x, w) s = Mul(m, k) y = Add(x, s)", "y = Identity(x)",
                       {"w": W, "k": np.full(16, 1e-6, np.float32)}),
    "an epsilon": ("q = Mul(x, x) m = ReduceMean<axes = [1]>(q) a = Add(m, e) r = Sqrt(a) y = Div(x, r)",
                   "q = Mul(x, x) m = ReduceMean<axes = [1]>(q) r = Sqrt(m) y = Div(x, r)", {"e": np.float32(1e-8)}),
    "a mask of large negative numbers": (
        "a = Add(x, m) y = Softmax<axis = 1>(a)", "y = Softmax<axis = 1>(x)",
        {"m": np.where(np.arange(16) < 8, -100, 0).astype(np.float32)}),
    "an imputed NaN": ("n = IsNaN(x) y = Where(n, z, x)", "y = Identity(x)", {"z": np.float32(0)}),
    "a Where as a product, which infinities survive": (
        "n = IsNaN(x) y = Where(n, z, x)", "n = IsNaN(x) k = Not(n) f = Cast<to = 1>(k) y = Mul(x, f)",
        {"z": np.float32(0)}),
    "equal quotients of integers": ("i = Cast<to = 7>(x) d = Div(i, k) y = Cast<to = 1>(d)",
                                    "z = Mul(x, o) y = Identity(z)", {"k": np.array(65536), "o": np.float32(0)}),
    "a narrower type": ("d = Cast<to = 11>(x) s = Add(d, o) t = Sub(s, o) y = Cast<to = 1>(t)", "y = Identity(x)",
                        {"o": np.array(1e8)}),
    "a rounding to half": ("h = Cast<to = 10>(x) y = Cast<to = 1>(h)", "y = Identity(x)", {}),
    "differences of squares": ("d = Sub(x, c) y = Mul(d, d)",
                               "p = Mul(x, x) q = Mul(x, c) t = Mul(q, two) s = Sub(p, t) e = Mul(c, c) y = Add(s, e)",
                               {"c": random(16) + 300, "two": np.float32(2)}),
    "a shrink as nothing": ("y = Shrink<lambd = 6.0, bias = 0.0>(x)", "z = Sub(x, x) y = Identity(z)", {}),
    "an operator that wraps": ("b = Cast<to = 3>(x) s = Add(b, b) y = Cast<to = 1>(s)",
                               "b = Cast<to = 3>(x) f = Cast<to = 1>(b) y = Add(f, f)", {}),
    "nearly low rank": ("y = MatMul(x, w)", "p = MatMul(x, u) y = MatMul(p, v)",
                        {"u": W[:, :8], "v": random(8, 16, seed=1), "w": W[:, :8] @ random(8, 16, seed=1) + 1e-6 * W}),
    "a variance with another divisor": (
        "m = ReduceMean<axes = [1]>(x) c = Sub(x, m) q = Mul(c, c) v = ReduceSum(q, a) u = Div(v, n) y = Div(c, u)",
        "m = ReduceMean<axes = [1]>(x) c = Sub(x, m) q = Mul(c, c) u = ReduceMean<axes = [1]>(q) y = Div(c, u)",
        {"a": np.array([1]), "n": np.float32(15)}),
}  # fmt: skip


AB = "float[8,16] a, float[8,16] b"
DYNAMIC = "float[n,16] x"
IJ = "int64[8,16] i, int64[8,16] j"
ZEROS = {"z": np.array([0]), "z0": np.array(0), "o0": np.array(1)}
FOUND: Mapping[str, tuple[str, str, str, str, Mapping[str, np.ndarray]]] = {
    "a number of elements that contents decide": (
        "float[8,16] x", "float[8,16] y", ("q = NonZero(x) s = Shape(q) g = Gather(s, o0) f = Cast<to = 1>(g)"
        " y = Mul(x, f)"),
        "y = Mul(x, k)", {**ZEROS, "k": np.float32(128)}),
    "a slice of positions": (
        "float[n,16] x", "float[m,k] y", ("s = Shape(x) n = Gather(s, z0) r = Range(z0, n, o0) c = Slice(r, z, k, z)"
        " y = Gather(x, c)"), "y = Identity(x)", {**ZEROS, "k": np.array([64])}),
    "rows from beyond the sizes that are tried": (
        "float[n,16] x", "float[m,k] y", "t = Slice(x, a, e, z) y = Concat<axis = 0>(x, t)", "y = Identity(x)",
        {**ZEROS, "a": np.array([100]), "e": np.array([2**63 - 1])}),
    "a squeeze of one row": ("float[n,16] x", "float[m,k] y", "y = Squeeze(x)", "y = Identity(x)", {}),
    "indices that only the old nodes accept": (
        "float[8,16] x, int64[2] i", "float[2,16] y", "c = Concat<axis = 0>(x, x) y = Gather(c, i)",
        "y = Gather(x, i)", {}),
    "not less": (AB, "bool[8,16] y", "l = Less(a, b) y = Not(l)", "y = GreaterOrEqual(a, b)", {}),
    "equal infinities": (AB, "bool[8,16] y", "y = Equal(a, b)", "d = Sub(a, b) y = Equal(d, z)", {"z": np.float32(0)}),
    "a NaN in a small value": ("float[1,3] x", "float[1,3] y", "y = Sub(x, x)", "y = Identity(z)",
                               {"z": np.zeros((1, 3), np.float32)}),
    "an infinity of another sign": ("float[8,16] x", "float[8,16] y", "s = Sub(z, x) y = Div(o, s)",
                                    "d = Div(o, x) y = Neg(d)", {"z": np.float32(0), "o": np.float32(1)}),
    "a product of small probabilities": (
        "float[8,16] a, float[8,16] b", "float[8,16] y", ("s = Softmax<axis = 1>(a) t = Softmax<axis = 1>(b) p = Log(s)"
        " q = Log(t) y = Add(p, q)"), "s = Softmax<axis = 1>(a) t = Softmax<axis = 1>(b) p = Mul(s, t) y = Log(p)", {}),
    "a pole at a constant": ("float[8,16] x", "float[8,16] y", "y = Identity(x)",
                             "d = Sub(x, c) p = Mul(x, d) y = Div(p, d)", {"c": np.float32(0.7)}),
    "another small epsilon": (
        "float[8,16] x", "float[8,16] y", "d = Sub(x, c) q = Mul(d, d) a = Add(q, e) y = Log(a)",
        "d = Sub(x, c) q = Mul(d, d) a = Add(q, f) y = Log(a)",
        {"c": np.float32(0.7), "e": np.float32(1e-20), "f": np.float32(1e-30)}),
    "a peak between two numbers of bfloat16": (
        "float[8,16] x", "float[8,16] y", "y = Identity(x)",
        "d = Sub(x, c) a = Abs(d) b = Mul(a, k) e = Sub(o, b) r = Relu(e) y = Add(x, r)",
        {"c": np.float32(1.002), "k": np.float32(1000), "o": np.float32(1)}),
    "differences of close vectors": (
        AB, "float[8,16] y", "d = Sub(a, b) y = Mul(d, d)",
        "p = Mul(a, a) q = Mul(b, b) r = Mul(a, b) s = Add(r, r) t = Add(p, q) y = Sub(t, s)", {}),
    "integers beyond the mantissa": (IJ, "float[8,16] y", "d = Sub(i, j) y = Cast<to = 1>(d)",
                                     "a = Cast<to = 1>(i) b = Cast<to = 1>(j) y = Sub(a, b)", {}),
    "differences that overflow": (IJ, "bool[8,16] y", "y = Less(i, j)", "d = Sub(i, j) y = Less(d, z)",
                                  {"z": np.array(0)}),
    "one of many biases": (
        "float[1,50000] x", "int64[1] y", "s = Add(x, w) y = ArgMax<axis = 1, keepdims = 0>(s)",
        "s = Add(x, v) y = ArgMax<axis = 1, keepdims = 0>(s)",
        {"w": random(50000), "v": random(50000) + np.float32(3e-5) * (np.arange(50000) == 77)}),
    "a slice of a new value": (
        DYNAMIC, "float[m,k] y", "y = Identity(x)", "t = Identity(x) y = Slice(t, z, k, z)",
        {"z": np.array([0]), "k": np.array([64])}),
    "a slice in a branch": (
        DYNAMIC, "float[m,k] y",
        ("y = If(c) <then_branch = t () => (float[q,r] g) {u = Neg(x) g = Slice(u, z, k, z)}, else_branch = e () =>"
         " (float[q,r] h) {h = Exp(x)}>"), "y = Neg(x)",
        {"c": np.array(True), "z": np.array([0]), "k": np.array([64])}),
    "a table that a size chooses from": (
        DYNAMIC, "float[m,k] y", "y = Identity(x)", "s = Shape(x) n = Gather(s, z0) g = Gather(t, n) y = Mul(x, g)",
        {"z0": np.array(0), "t": np.where(np.arange(3000) == 10, 5, 1).astype(np.float32)}),
    "computed axes of a reduction": (
        "float[8,16] x, bool[1] b", "float[8,16] y",
        "k = Cast<to = 7>(b) r = ReduceSum<keepdims = 0>(x, k) s = Shape(r) f = Cast<to = 1>(s) y = Mul(x, f)",
        "y = Mul(x, c)", {"c": np.float32(8)}),
    "a variance as a difference behind a power": (
        "float[8,16] x", "float[8,1] y", ("p = Pow(x, e) m = ReduceMean<axes = [1]>(p) d = Sub(p, m) q = Mul(d, d)"
        " y = ReduceMean<axes = [1]>(q)"), ("p = Pow(x, e) m = ReduceMean<axes = [1]>(p) q = Mul(p, p)"
        " r = ReduceMean<axes = [1]>(q) s = Mul(m, m) y = Sub(r, s)"), {"e": np.float32(1.7)}),
    "integers under rare conditions": (
        "int64[4,4] i, int64[4,4] j, float[4,4] u, float[4,4] v", "int64[4,4] y",
        " ".join((*(f"c{k} = Less({name}, b{k})" for k, name in enumerate("uvuvuvuv")), "d0 = And(c0, c1)",
                  *(f"d{k} = And(d{k - 1}, c{k + 1})" for k in range(1, 7)), "y = Where(d6, j, i)")),
        "y = Identity(i)", {f"b{k}": np.float32(k / 10 - 3) for k in range(8)}),
    "a pole that is no constant": (
        "float[8,16] x", "float[8,16] y", "y = Identity(x)",
        "a = Mul(x, k) t = Sub(a, c) p = Mul(x, t) y = Div(p, t)", {"k": np.float32(2), "c": np.float32(14)}),
    "a column that is not read": (
        "float[8,1000] x", "float[8,16] y", "s = Slice(x, a, b, o) y = MatMul(s, w)", "y = MatMul(x, u)",
        {"a": np.array([0]), "b": np.array([999]), "o": np.array([1]), "w": random(999, 16),
         "u": np.concatenate([random(999, 16), np.zeros((1, 16), np.float32)])}),
    "a sum that overflows": (
        "int32[60000] i", "int64 y", "c = Cast<to = 7>(i) y = ReduceSum<keepdims = 0>(c)",
        "r = ReduceSum<keepdims = 0>(i) y = Cast<to = 7>(r)", {}),
    "a wave that is zero on bfloat16": (
        "float[8,16] x", "float[8,16] y", "y = Identity(x)",
        "c = Clip(x, l, h) p = Mul(c, k) s = Sin(p) g = Sub(s, f) r = Relu(g) y = Add(x, r)",
        {"l": np.float32(1), "h": np.float32(2), "k": np.float32(128 * np.pi), "f": np.float32(0.5)}),
}  # fmt: skip
"""What adversaries found to be accepted: inputs, outputs, old and new nodes, constants."""


@pytest.mark.parametrize("name", FOUND)
def test_what_an_adversary_found_is_refused(name: str):
    inputs, outputs, old, new, weights = FOUND[name]

    verdict = decided(old, new, inputs=inputs, outputs=outputs, **weights)

    assert not verdict.reason
    assert verdict.refusal


@pytest.mark.parametrize("name", WRONG)
def test_what_holds_for_some_inputs_is_refused(name: str):
    old, new, weights = WRONG[name]

    verdict = decided(old, new, **weights)

    assert not verdict.reason
    assert verdict.refusal


def test_what_holds_for_one_place_is_not_known_of_a_place_that_reads_other_values():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> model (float[8,16] x) => (float[8,16] y) {
            p = Tanh(x) q = Tanh(x) v = Mul(p, q) r = Tanh(x) s = Exp(x) w = Mul(r, s) y = Add(v, w)
        }"""
    )
    graph = RewriteGraph(model)
    prover = Prover(Values(graph, [feeds_of(model, 0, 8)]), {})
    squares = [Rewrite("test: square", (name,), (helper.make_node("Mul", [read, read], [name]),), {})
               for name, read in (("v", "p"), ("w", "r"))]  # fmt: skip

    verdicts = [prover.prove(square) for square in squares]

    assert [bool(verdict.reason) for verdict in verdicts] == [True, False]


def test_a_random_operator_is_never_the_same():
    assert not decided("r = RandomUniformLike(x) y = Add(x, r)", "r = RandomUniformLike(x) y = Add(r, x)").reason


@pytest.mark.parametrize(("op", "holds"), [("Sigmoid", True), ("Relu", True), ("Abs", False), ("Gelu", False)])
def test_only_functions_that_never_fall_commute_with_a_maximum(op: str, holds: bool):
    op = f"com.microsoft.{op}" if op == "Gelu" else op
    verdict = decided(
        f"s = {op}(x) y = GlobalMaxPool(s)", f"m = GlobalMaxPool(x) y = {op}(m)",
        inputs="float[1,4,6,6] x", outputs="float[1,4,1,1] y",
    )  # fmt: skip

    assert bool(verdict.reason) == holds


DYNAMIC = {"inputs": "float[n,16] x"}


@pytest.mark.parametrize(
    ("old", "new", "weights"),
    [
        ("y = Slice(x, zero, k, zero)", "y = Identity(x)", {"k": np.array([64])}),
        ("s = Shape(x) r = Gather(s, zero) m = Min(r, k) y = Slice(x, zero, m, zero)", "y = Identity(x)",
         {"k": np.array([64])}),
        ("y = Reshape(x, s)", "y = Reshape(x, t)", {"s": np.array([-1, 4]), "t": np.array([32, 4])}),
    ],
    ids=["a slice longer than the sizes that were tried", "the least of two sizes", "a size that was written down"],
)  # fmt: skip
def test_sizes_of_a_dynamic_model_are_no_facts(old: str, new: str, weights: Mapping[str, np.ndarray]):
    assert not decided(old, new, zero=np.array([0]), **DYNAMIC, outputs="float[m,k] y", **weights).reason


def test_products_of_sizes_are_followed():
    old = "s = Shape(x) r = Gather(s, zero) c = Concat<axis = 0>(r, two, eight) t = Reshape(x, c)"
    old += " u = Tanh(t) y = Reshape(u, e)"
    new = "y = Tanh(x)"
    constants = {"zero": [0], "two": [2], "eight": [8], "e": [-1, 16]}

    assert decided(
        old, new, **DYNAMIC, outputs="float[n,16] y", **{k: np.array(v) for k, v in constants.items()}
    ).reason


@st.composite
def chains(draw: st.DrawFn) -> tuple[str, dict[str, np.ndarray], Sequence[tuple[str, str]]]:
    """A chain of operators with constants, and changes that make another function of it."""
    lines, changes, value = list[str](), list[tuple[str, str]](), "x"
    for number in range(draw(st.integers(2, 5))):
        made = f"v{number}"
        kind = draw(st.sampled_from(["Add", "Mul", "MatMul", "LeakyRelu", "Softmax", "Tanh"]))
        match kind:
            case "Add" | "Mul":
                lines.append(f"{made} = {kind}({value}, k{number % 2})")
                changes.append((f"({value}, k{number % 2})", f"({value}, j)"))
            case "MatMul":
                lines.append(f"{made} = MatMul({value}, w)")
                changes.append((f"MatMul({value}, w)", f"MatMul({value}, u)"))
            case "LeakyRelu":
                lines.append(f"{made} = LeakyRelu<alpha = 0.1>({value})")
                changes.append((f"<alpha = 0.1>({value})", f"<alpha = 0.1001>({value})"))
            case "Softmax":
                lines.append(f"{made} = Softmax<axis = 1>({value})")
                changes.append((f"<axis = 1>({value})", f"<axis = 0>({value})"))
            case _:
                lines.append(f"{made} = Tanh({value})")
                changes.append((f"Tanh({value})", f"Erf({value})"))
        value = made
    nodes = " ".join(lines)
    nodes = nodes[: nodes.rindex(value)] + "y" + nodes[nodes.rindex(value) + len(value) :]
    changed = W.copy()
    changed[3, 4] += 1e-5
    weights = {"k0": random(16), "k1": random(16, seed=1), "j": random(16) * np.float32(1.00001), "w": W, "u": changed}
    return nodes, weights, changes


@settings(max_examples=15, deadline=None)
@given(chains(), st.data())
def test_a_graph_is_itself_and_no_longer_after_one_change(
    chain: tuple[str, dict[str, np.ndarray], Sequence[tuple[str, str]]], data: st.DataObject
):
    nodes, weights, changes = chain
    before, after = data.draw(st.sampled_from(changes))

    assert decided(nodes, nodes, **weights).reason
    assert not decided(nodes, nodes.replace(before, after, 1), **weights).reason


def test_every_operator_that_is_defined_has_a_row():
    assert {*DEFINED} <= {name for _, name in OPERATORS}


CODES, TABLE = np.arange(5), random(5, 4, seed=2)
NOTHING = np.zeros((1, 4), np.float32)
ONE_OF = "u = Unsqueeze(x, last) e = Equal(u, codes) f = Cast<to = 1>(e) y = MatMul(f, w)"
ONE_HOT = "h = OneHot(x, depth, ends) y = MatMul(h, w)"
ROWS_OF = "c = Clip(x, low, high) i = Sub(c, low) y = Gather(t, i)"
BETWEEN = {"low": np.array(-1), "high": np.array(5), "t": np.concatenate([NOTHING, TABLE, NOTHING])}
LAST = {"last": np.array([-1]), "codes": CODES, "w": TABLE}
HOT = {"depth": np.array(5), "ends": np.array([0, 1], np.float32), "w": TABLE, "low": np.array(-6)}
LOOKUPS: Mapping[str, tuple[str, str, Mapping[str, np.ndarray]]] = {
    "a code among others, and a product": (ONE_OF, ROWS_OF, {**LAST, **BETWEEN}),
    "a vector of a one and zeros, which takes codes from the end": (
        ONE_HOT, ROWS_OF, {**BETWEEN, **HOT, "t": np.concatenate([NOTHING, TABLE, TABLE, NOTHING])}),
    "a function of rows": ("g = Gather(w, x) s = Mul(g, g) y = Tanh(s)", "y = Gather(t, x)",
                           {"w": TABLE, "t": np.tanh(TABLE * TABLE)}),
}  # fmt: skip


def looked_up(old: str, new: str, weights: Mapping[str, np.ndarray], rows: str = "6") -> Verdict:
    return decided(old, new, inputs=f"int64[{rows}] x", outputs=f"float[{rows},4] y", **weights)


@pytest.mark.parametrize("rows", ["6", "n"])
@pytest.mark.parametrize("name", LOOKUPS)
def test_functions_of_one_integer_are_compared_on_all_of_its_values(name: str, rows: str):
    assert looked_up(*LOOKUPS[name], rows) == Verdict("all values")


@pytest.mark.parametrize("row", range(len(BETWEEN["t"])))
def test_a_wrong_row_is_found(row: int):
    table = BETWEEN["t"].copy()
    table[row, 2] += 1e-3

    assert not looked_up(ONE_OF, ROWS_OF, {**LAST, **BETWEEN, "t": table}).reason


@pytest.mark.parametrize(
    ("old", "new", "weights"),
    [
        (ONE_OF, "y = Gather(w, x)", LAST),
        (ONE_OF, ROWS_OF, {**LAST, "low": np.array(0), "high": np.array(4), "t": TABLE}),
        (ONE_HOT, ROWS_OF, {**BETWEEN, **HOT, "low": np.array(-1)}),
        ("u = Unsqueeze(x, last) e = Equal(u, rare) f = Cast<to = 1>(e) y = Mul(f, ones)",
         "u = Unsqueeze(x, last) z = Sub(u, u) f = Cast<to = 1>(z) y = Mul(f, ones)",
         {**LAST, "rare": np.array(4096), "ones": np.ones(4, np.float32)}),
        ("m = Mod(x, five) y = Gather(w, m)", "y = Gather(t, x)",
         {"five": np.array(5), "w": TABLE, "t": np.concatenate([TABLE, TABLE])}),
        ("u = Unsqueeze(x, last) e = Equal(u, five) f = Cast<to = 1>(e) g = Sub(f, ones) y = Mul(g, big)",
         "u = Unsqueeze(x, last) e = Equal(u, five) y = Where(e, some, less)",
         {"last": np.array([-1]), "five": np.array([[5]]), "ones": np.ones(4, np.float32), "big": np.float32(1e9),
          "some": np.full(4, 1e3, np.float32), "less": np.full(4, -1e9, np.float32)}),
        ("g = Gather(w, x) m = ReduceMax<axes = [0]>(g) y = Sub(g, m)", "y = Gather(t, x)",
         {"w": TABLE, "t": TABLE - TABLE.max(0)}),
    ],
    ids=["unknown codes fail", "unknown codes as the last one", "codes from the end", "a rare code", "a remainder",
         "a small number beside large ones", "all rows at once"],
)  # fmt: skip
def test_what_differs_for_a_value_is_refused(old: str, new: str, weights: Mapping[str, np.ndarray]):
    assert not looked_up(old, new, weights).reason


UNSOUND: Mapping[str, tuple[str, str, str, str, Mapping[str, np.ndarray]]] = {
    "a size among the codes": ("int64[n] x", "float[n] y", "s = Shape(x) e = Equal(x, s) y = Cast<to = 1>(e)",
                               "e = Equal(x, c) y = Cast<to = 1>(e)", {"c": np.array([8])}),
    "a size in a quotient": (
        "int64[n] x", "float[n] y",
        "s = Shape(x) e = Equal(x, c) i = Cast<to = 7>(e) m = Mul(i, s) d = Div(m, h) y = Cast<to = 1>(d)",
        "e = Equal(x, c) i = Cast<to = 7>(e) m = Mul(i, z) y = Cast<to = 1>(m)",
        {"c": np.array([3]), "h": np.array([100]), "z": np.array([0])}),
    "sizes as a table": ("float[n,2,2,2] z, int64[6] x", "float[6] y",
                         "s = Shape(z) g = Gather(s, x) d = Div(g, h) y = Cast<to = 1>(d)", "y = Gather(t, x)",
                         {"h": np.array(100), "t": np.zeros(4, np.float32)}),
    "a cast that wraps": ("uint64[6] x", "float[6] y", "c = Cast<to = 7>(x) e = Less(c, m) y = Cast<to = 1>(e)",
                          "c = Cast<to = 7>(x) e = Less(c, m) f = Cast<to = 1>(e) y = Mul(f, z)",
                          {"m": np.array(-5), "z": np.float32(0)}),
    "a product of sizes in 32 bits": (
        "int64[n] x", "int64[n] y", "s = Shape(x) m = Mul(s, k) i = Cast<to = 6>(m) j = Cast<to = 7>(i) y = Add(x, j)",
        "s = Shape(x) m = Mul(s, k) y = Add(x, m)", {"k": np.array([190_000_000])}),
    "a random mask of constants": (
        "int64[6] x", "float[6,4] y", "r = Dropout<seed = 7>(ones, half, tr) g = Gather(w, x) y = Mul(g, r)",
        "g = Gather(w, x) y = Mul(g, k)",
        {"w": TABLE, "ones": np.ones(4, np.float32), "half": np.float32(0.5), "tr": np.array(True),
         "k": np.array([0, 2, 0, 0], np.float32)}),
    "a lookup of nothing": (
        "int64[6] x", "float[6,4] y",
        ("u = Unsqueeze(x, last) e = Expand(u, sh) g = Gather(t, e) p = MatMul(g, o) q = Equal(u, c)"
         " f = Cast<to = 1>(q) y = Add(p, f)"),
        "u = Unsqueeze(x, last) z = Equal(u, d) f = Cast<to = 1>(z) y = Mul(f, zz)",
        {**LAST, "sh": np.array([6, 0]), "t": np.zeros(5, np.float32), "o": np.zeros((0, 4), np.float32),
         "c": np.array(1000), "d": np.array(0), "zz": np.zeros(4, np.float32)}),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSOUND)
def test_what_an_adversary_found_of_lookups_is_refused(name: str):
    inputs, outputs, old, new, weights = UNSOUND[name]

    assert not decided(old, new, inputs=inputs, outputs=outputs, **weights).reason
