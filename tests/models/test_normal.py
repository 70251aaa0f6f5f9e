"""The normal form: one kind of constant, names checked, subgraphs without payloads, same results."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from dlbricks.errors import BrokenModel, UnsupportedModel
from dlbricks.models.normal import normalise
from dlbricks.models.skeleton import is_weight
from onnx import ModelProto, TensorProto, helper, numpy_helper


def parse(body: str, *, opset: int = 17, ir: int = 8, functions: str = "") -> ModelProto:
    text = f'<ir_version: {ir}, opset_import: ["": {opset}, "local": 1]> {body} {functions}'
    return onnx.parser.parse_model(text)


def values(model: ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def weights(model: ModelProto) -> dict[str, tuple[int, list[int]]]:
    return {
        value.name: (value.type.tensor_type.elem_type, [dim.dim_value for dim in value.type.tensor_type.shape.dim])
        for value in model.graph.input
        if is_weight(value)
    }


def operators(model: ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def sparse(values: list[float], indices: object, dims: list[int], name: str = "w") -> onnx.SparseTensorProto:
    """A sparse constant; its indices are those of a flat array, or of each axis."""
    held = numpy_helper.from_array(np.array(values, np.float32), name)
    return helper.make_sparse_tensor(held, numpy_helper.from_array(np.array(indices, np.int64), "i"), dims)


def constant_model(attribute: str, value: object, dtype: int) -> ModelProto:
    constant = helper.make_node("Constant", [], ["c"], **{attribute: value})
    outputs = [helper.make_tensor_value_info("y", dtype, None)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    nodes = [constant, helper.make_node("Identity", ["c"], ["y"])]
    return helper.make_model(helper.make_graph(nodes, "g", [x], outputs))


@pytest.mark.parametrize(
    ("attribute", "value", "expected"),
    [
        ("value", numpy_helper.from_array(np.arange(6, dtype=np.int8).reshape(2, 3)), np.arange(6).reshape(2, 3)),
        ("value", helper.make_tensor("", TensorProto.FLOAT16, [2], [1.5, -2.0]), np.array([1.5, -2.0])),
        ("value", helper.make_tensor("", TensorProto.BOOL, [2], [True, False]), np.array([True, False])),
        ("value", helper.make_tensor("", TensorProto.STRING, [2], [b"a", b"b"]), np.array(["a", "b"], object)),
        ("value_int", 7, np.array(7)),
        ("value_ints", [7, -8], np.array([7, -8])),
        ("value_float", 1.5, np.array(1.5)),
        ("value_floats", [1.5, 2.5], np.array([1.5, 2.5])),
        ("value_string", b"text", np.array("text", object)),
        ("value_strings", [b"a", b"bc"], np.array(["a", "bc"], object)),
        ("sparse_value", sparse([5.0, 6.0], [1, 5], [2, 3]), np.array([[0, 5, 0], [0, 0, 6]])),
        ("sparse_value", sparse([5.0, 6.0], [[0, 1], [1, 2]], [2, 3]), np.array([[0, 5, 0], [0, 0, 6]])),
    ],
)
def test_forms_of_constant(attribute: str, value: object, expected: np.ndarray) -> None:
    normal = normalise(constant_model(attribute, value, TensorProto.FLOAT))
    (found,) = values(normal.model).values()
    np.testing.assert_array_equal(found, expected)
    assert found.shape == expected.shape
    assert operators(normal.model) == ["Identity"]
    assert normal.model.graph.initializer[0].raw_data or found.dtype == object


@pytest.mark.parametrize(
    ("attribute", "value", "dtype", "nbytes"),
    [
        ("value", numpy_helper.from_array(np.ones((5, 500), np.int8)), TensorProto.INT8, 2500),
        ("value_ints", list(range(2500)), TensorProto.INT64, 20000),
        ("value_floats", [1.0] * 2500, TensorProto.FLOAT, 10000),
    ],
)
def test_large_constants_become_weights(attribute: str, value: object, dtype: int, nbytes: int) -> None:
    normal = normalise(constant_model(attribute, value, dtype))
    shape = [5, 500] if attribute == "value" else [2500]
    assert weights(normal.model) == {"c": (dtype, shape)}
    assert normal.weight_bytes == nbytes
    assert len(normal.model.SerializeToString()) < 300


def test_large_sparse_constant() -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [50, 50]) for name in "xy")
    held = [sparse([5.0], [9], [50, 50])]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], sparse_initializer=held)
    normal = normalise(helper.make_model(graph))
    assert weights(normal.model) == {"w": (TensorProto.FLOAT, [50, 50])}
    assert normal.weight_bytes == 4 + 8  # what the file holds, not what it stands for


@pytest.mark.parametrize(("dtype", "count"), [(TensorProto.INT4, 5), (TensorProto.UINT4, 1), (TensorProto.INT32, 7)])
def test_constant_of_shape_repeats_its_value(dtype: int, count: int) -> None:
    shape = numpy_helper.from_array(np.array([count]), "s")
    node = helper.make_node("ConstantOfShape", ["s"], ["y"], value=helper.make_tensor("", dtype, [1], [3]))
    y = helper.make_tensor_value_info("y", dtype, [count])
    normal = normalise(helper.make_model(helper.make_graph([node], "g", [], [y], [shape])))
    np.testing.assert_array_equal(values(normal.model)["y"].astype(int), [3] * count)
    assert list(values(normal.model)) == ["y"]  # the shape has no reader any more


def test_constant_of_shape_forms() -> None:
    model = parse("""g (float[2, 3] x, int64[2] s) => (float[2, 3] y, float a, float b)
        <int64[2] s = {2, 3}, int64[0] e = {}>
        {
          k = Constant <value_ints = [40, 40]> ()
          filled = ConstantOfShape <value = float[1] {0.5}> (s)
          zero = ConstantOfShape (e)
          large = ConstantOfShape (k)
          shape = Shape (x)
          dynamic = ConstantOfShape (shape)
          p = Add (filled, x)
          q = Add (p, dynamic)
          y = Add (q, zero)
          a = ReduceMean (large)
          b = ReduceMean (dynamic)
        }""")
    normal = normalise(model)
    assert operators(normal.model) == ["Shape", "ConstantOfShape", "Add", "Add", "Add", "ReduceMean", "ReduceMean"]
    kept = values(normal.model)
    assert sorted(kept) == ["filled", "zero"]
    np.testing.assert_array_equal(kept["filled"], np.full((2, 3), 0.5))
    assert kept["zero"].shape == ()
    assert weights(normal.model) == {"large": (TensorProto.FLOAT, [40, 40])}
    # Initializers win over graph inputs of the same name.
    assert [value.name for value in normal.model.graph.input] == ["x", "large"]
    assert normal.weight_bytes == 16 + 0 + 16 + 24 + 4 + 6400
    onnx.checker.check_model(normal.model)


def test_an_input_cannot_pose_as_a_weight() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    model.graph.input[0].metadata_props.add(key="role", value="weight")
    assert weights(normalise(model).model) == {}


def test_other_spelling_of_the_domain() -> None:
    model = parse("g (float[2] x) => (float[2] y) { c = Constant <value_float = 1.0> () y = Add (x, c) }")
    for node in model.graph.node:
        node.domain = "ai.onnx"
    model.opset_import.add(domain="ai.onnx", version=17)
    normal = normalise(model).model
    assert [(o.domain, o.version) for o in normal.opset_import] == [("", 17), ("local", 1)]
    assert [(node.domain, node.op_type) for node in normal.graph.node] == [("", "Add")]
    del model.opset_import[0]
    assert normalise(model).model.opset_import[-1].domain == ""


def test_nodes_of_an_unsorted_file_are_put_in_order() -> None:
    normal = normalise(parse("g (float[2] x) => (float[2] y) { y = Relu (z) z = Tanh (w) w = Abs (x) }")).model

    assert operators(normal) == ["Abs", "Tanh", "Relu"]


# ---------------------------------------------------------------------- broken models


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{ y = Relu (z) z = Relu (y) }", "reads 'z', which nothing before it defines"),
        ("{ y = Relu (nowhere) }", r"Relu \(of y\) reads 'nowhere'"),
        ("{ z = Relu (x) z = Tanh (x) y = Relu (z) }", "'z' is defined twice"),
        ("{ x = Relu (x) y = Relu (x) }", "'x' is defined twice"),
        ("{ z = Relu (x) }", "graph output 'y' is made by no node"),
        ("{ c = Constant () y = Add (x, c) }", "Constant 'c' has no value"),
        ('{ "" = Constant <value_float = 1.0> () y = Relu (x) }', r"Constant \(of \) has no output"),
        ("{ s = Constant <value_float = 1.0> () y = ConstantOfShape (s) }", "wants a list of int64"),
        ("{ s = Constant <value_ints = [-1]> () y = ConstantOfShape (s) }", "negative dimension"),
        ("{ s = Constant <value_ints = [1]> () y = ConstantOfShape <value = float[2] {1, 2}> (s) }", "not one element"),
        ("{ y = nodomain.Relu (x) }", "domain 'nodomain', whose opset the model does not state"),
        (
            """{ c = Cast <to = 9> (x) y = If (c) <then_branch = a () => (float[2] p) { p = Relu (nowhere) },
            else_branch = b () => (float[2] q) { q = Relu (x) }> }""",
            "reads 'nowhere'",
        ),
        (
            """{ c = Cast <to = 9> (x) y = If (c) <then_branch = a () => (float[2] p) { r = Relu (x) },
            else_branch = b () => (float[2] q) { q = Relu (x) }> }""",
            "subgraph output 'p' is made by no node",
        ),
    ],
)
def test_broken(body: str, message: str) -> None:
    with pytest.raises(BrokenModel, match=message):
        normalise(parse(f"g (float[2] x) => (float[2] y) {body}"))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (TensorProto(name="w", dims=[3], data_type=1, raw_data=b"1234"), "should hold 12 bytes, but holds 4"),
        (TensorProto(name="w", dims=[3], data_type=1, float_data=[1.0]), "'w' .* are broken"),
        (TensorProto(name="w", dims=[3], data_type=1), "'w' .* are broken"),
        (TensorProto(name="w", dims=[3], data_type=8, string_data=[b""]), "should hold 3 strings, but holds 1"),
        (TensorProto(name="w", dims=[3], data_type=0), "unknown element type 0"),
        (TensorProto(name="w", dims=[3], data_type=99), "unknown element type 99"),
        (TensorProto(name="w", dims=[0, -1], data_type=1), "negative dimension"),
        (TensorProto(dims=[0], data_type=1), "has no name"),
        (TensorProto(name="w", dims=[3], data_type=1, data_location=1), "names no file"),
    ],
)
def test_broken_initializer(tensor: TensorProto, message: str) -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    model.graph.initializer.append(tensor)
    with pytest.raises(BrokenModel, match=message):
        normalise(model)


# ---------------------------------------------------------------------- functions


def test_functions_are_inlined() -> None:
    model = parse(
        "g (float[2] x) => (float[2] y) { z = local.outer (x) y = local.outer (z) }",
        functions="""
        <domain: "local", opset_import: ["": 17, "local": 1]> outer (a) => (b) { c = local.inner (a) b = Relu (c) }
        <domain: "local", opset_import: ["": 17]> inner (a) => (b)
        { k = Constant <value_float = 2.0> () b = Mul (a, k) }
        """,
    )
    normal = normalise(model)
    assert operators(normal.model) == ["Mul", "Relu", "Mul", "Relu"]
    assert normal.weight_bytes == 8  # each call has its own
    assert not normal.model.functions


@pytest.mark.parametrize(("opset", "fine"), [(14, True), (12, False)])
def test_function_of_another_opset(opset: int, fine: bool) -> None:
    # ReduceSum has its axes as an input since 13; nothing changed between 14 and 17 for these two.
    model = parse(
        "g (float[2] x) => (float[2] y) { y = local.f (x) }",
        functions=f"""<domain: "local", opset_import: ["": {opset}]> f (a) => (b)
        {{ c = ReduceSum {"" if fine else "<axes = [0]>"} (a) b = Relu (c) }}""",
    )
    normal = normalise(model)
    assert operators(normal.model) == ["ReduceSum", "Relu"]
    if not fine:
        assert len(normal.model.graph.node[0].input) == 2  # converted: the axes are an input now


def test_function_that_calls_itself() -> None:
    model = parse(
        "g (float[2] x) => (float[2] y) { y = local.f (x) }",
        functions="""<domain: "local", opset_import: ["local": 1]> f (a) => (b) { b = local.g (a) }
        <domain: "local", opset_import: ["local": 1]> g (a) => (b) { b = local.f (a) }""",
    )
    with pytest.raises(BrokenModel, match="'f' calls itself"):
        normalise(model)


def test_functions_that_explode() -> None:
    functions = "".join(
        f"""<domain: "local", opset_import: ["local": 1]> f{n} (a) => (b)
        {{ c = local.f{n + 1} (a) b = local.f{n + 1} (c) }}"""
        for n in range(40)
    )
    functions += '<domain: "local", opset_import: ["": 17]> f40 (a) => (b) { b = Relu (a) }'
    model = parse("g (float[2] x) => (float[2] y) { y = local.f0 (x) }", functions=functions)
    with pytest.raises(UnsupportedModel, match="expand to 1099511627776 nodes"):
        normalise(model)


# ---------------------------------------------------------------------- subgraphs

RNG = np.random.default_rng(0)


def branch(name: str, constants: dict[str, np.ndarray], nodes: list, output: str, *, as_nodes: bool) -> onnx.GraphProto:
    tensors = [numpy_helper.from_array(array, key) for key, array in constants.items()]
    made = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in tensors] if as_nodes else []
    out = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    return helper.make_graph([*made, *nodes], name, [], [out], [] if as_nodes else tensors)


@pytest.mark.parametrize("as_nodes", [False, True])
def test_subgraph_constants_become_weights_of_the_model(as_nodes: bool) -> None:
    arrays = {
        "then": RNG.random((2, 1000), np.float32),
        "else": RNG.random((2, 1000), np.float32),
        "nested": RNG.random((2, 1000), np.float32),
        "small": np.float32([3.0]),
    }
    inner = branch("i", {"n": arrays["nested"]}, [helper.make_node("Mul", ["x", "n"], ["r"])], "r", as_nodes=as_nodes)
    handed = branch("h", {"w": arrays["else"]}, [], "w", as_nodes=as_nodes)
    then = branch(
        "t",
        {"w": arrays["then"], "k": arrays["small"]},
        [
            helper.make_node("Add", ["x", "w"], ["p"]),
            helper.make_node("If", ["c"], ["q"], then_branch=inner, else_branch=inner),
            helper.make_node("Sub", ["p", "q"], ["pq"]),
            helper.make_node("Mul", ["pq", "k"], ["r1"]),
        ],
        "r1",
        as_nodes=as_nodes,
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 1000])
    c = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 1000])
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=handed)
    graph = helper.make_graph([node], "g", [x, c], [y])
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    expected = source.SerializeToString()
    normal = normalise(source)
    # `w` is defined by both branches, and handed out by one; `n` is defined twice too: none may keep its name.
    assert len(weights(normal.model)) == 4
    assert normal.weight_bytes == 4 * 8000 + 4
    assert len(normal.model.SerializeToString()) < 2000
    onnx.checker.check_model(normal.model)
    found = weights_by_use(normal.model, arrays)
    for condition in (True, False):
        feeds = {"x": RNG.random((2, 1000), np.float32), "c": np.array(condition)}
        session = ort.InferenceSession(normal.model.SerializeToString())
        np.testing.assert_array_equal(
            session.run(None, {**feeds, **found})[0], ort.InferenceSession(expected).run(None, feeds)[0]
        )


def weights_by_use(model: ModelProto, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Which array each hoisted weight stands for, read from the node that uses it."""
    found = {}
    then, other = (attribute.g for attribute in model.graph.node[0].attribute)
    if then.output[0].name != "r1":
        then, other = other, then
    found[next(n for n in then.node if n.op_type == "Add").input[1]] = arrays["then"]
    for attribute in next(n for n in then.node if n.op_type == "If").attribute:
        found[attribute.g.node[0].input[1]] = arrays["nested"]
    assert [n.op_type for n in other.node] == ["Identity"]
    found[other.node[0].input[0]] = arrays["else"]
    return found


def test_names_within_subgraphs_may_repeat_those_around_them() -> None:
    model = parse("""g (float[2] x, bool c) => (float[2] y) {
        t = Relu (x)
        y = If (c) <
            then_branch = a () => (float[2] r) { t = Tanh (x) r = Relu (t) },
            else_branch = b () => (float[2] q) { q = Neg (t) }>
    }""")
    assert operators(normalise(model).model) == ["Relu", "If"]


def test_keeping_the_weights() -> None:
    model = parse(
        """g (float[2, 1000] x) => (float[2, 1000] y)
        {
          s = Constant <value_ints = [2, 1000]> ()
          k = ConstantOfShape <value = float[1] {0.5}> (s)
          one = Constant <value_float = 1.0> ()
          p = Add (x, k)
          q = Add (p, w)
          y = Mul (q, one)
        }""".replace("(float[2, 1000] x)", "(float[2, 1000] x, float[2, 1000] w)")
    )
    array = RNG.random((2, 1000), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(array, "w"))
    data = model.SerializeToString()
    normal = normalise(model, keep_weights=True)
    assert operators(normal.model) == ["ConstantOfShape", "Add", "Add", "Mul"]
    assert not weights(normal.model)
    feeds = {"x": RNG.random((2, 1000), np.float32)}
    np.testing.assert_array_equal(
        ort.InferenceSession(normal.model.SerializeToString()).run(None, feeds)[0],
        ort.InferenceSession(data).run(None, feeds)[0],
    )


def test_function_of_an_opset_without_its_operator() -> None:
    model = parse(
        "g (float[2] x) => (float[2] y) { y = local.f (x) }",
        functions='<domain: "local", opset_import: ["": 5]> f (a) => (b) { b = Erf (a) }',  # there since opset 9
    )
    with pytest.raises(UnsupportedModel, match="functions cannot be inlined"):
        normalise(model)
