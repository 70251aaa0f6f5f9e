"""Cost formulas against brute-force counts, and their coverage of ONNX's operators."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx.defs
import pytest
from dlbricks.bricks.encoding import encode_array
from dlbricks.bricks.layer import Cost, Operand, Role, TensorType
from dlbricks.bricks.operators import OPERATORS
from dlbricks.bricks.work import layer_cost
from hypothesis import given
from hypothesis import strategies as st

WITHOUT_FORMULA = {
    "control flow: the trip count is data": {"Scan", "SequenceMap"},
    "no tensor in or out": {
        "ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt",
        "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength", "SplitToSequence",
    },
    "text and files: the work is in the data": {
        "ImageDecoder", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer",
    },
    "computes a constant": {"MelWeightMatrix"},
}  # fmt: skip


def activation(*shape: int, dtype: str = "float", name: str = "x") -> Operand:
    return Operand(name, TensorType(dtype, shape), Role.ACTIVATION)


def weight(*shape: int, dtype: str = "float", name: str = "w") -> Operand:
    return Operand(name, TensorType(dtype, shape), Role.WEIGHT)


def constant(values: list[float] | list[int], dtype: str = "int64") -> Operand:
    array = np.array(values, dtype=np.float32 if dtype == "float" else dtype)
    return Operand("c", TensorType(dtype, array.shape), Role.CONSTANT, encode_array(array))


ABSENT = Operand("", None, Role.ABSENT)


def cost(op: str, operands: list[Operand], *shapes: tuple[int, ...], domain: str = "", **attributes: object) -> Cost:
    node = onnx.helper.make_node(
        op, [o.value for o in operands], [f"y{i}" for i in range(len(shapes))], domain=domain, **attributes
    )
    found = layer_cost(node, operands, [TensorType("float", shape) for shape in shapes])
    assert found is not None
    return found


def test_every_onnx_operator_has_a_formula_or_a_reason() -> None:
    standard = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    excused = set().union(*WITHOUT_FORMULA.values())
    covered = {name for (domain, name), row in OPERATORS.items() if not domain and (row.work or row.each)}
    assert standard - covered == excused & standard
    assert not excused & covered


def test_every_formula_states_itself() -> None:
    for key, row in OPERATORS.items():
        assert row.work is None or (row.work.__doc__ or "").strip(), key


@given(
    batch=st.integers(1, 2), groups=st.integers(1, 3), channels=st.integers(1, 2), filters=st.integers(1, 2),
    size=st.integers(4, 7), kernel=st.integers(1, 3), stride=st.integers(1, 2), dilation=st.integers(1, 2),
    bias=st.booleans(),
)  # fmt: skip
def test_conv_counts_what_a_loop_nest_counts(
    batch: int, groups: int, channels: int, filters: int, size: int, kernel: int, stride: int, dilation: int, bias: bool
) -> None:
    extent = (kernel - 1) * dilation + 1
    if extent > size:
        return
    out = (size - extent) // stride + 1
    macs = 0
    for _ in itertools.product(range(batch), range(groups * filters), range(out), range(out)):
        for _ in itertools.product(range(channels), range(kernel), range(kernel)):
            macs += 1
    operands = [activation(batch, groups * channels, size, size), weight(groups * filters, channels, kernel, kernel)]
    operands += [weight(groups * filters, name="b")] if bias else []
    shape = (batch, groups * filters, out, out)
    found = cost("Conv", operands, shape, group=groups, strides=[stride] * 2, dilations=[dilation] * 2)
    n = batch * groups * filters * out * out
    assert found.macs == macs
    assert found.additions == (n if bias else 0)
    assert found.output_bytes == 4 * n
    assert found.input_bytes == 4 * batch * groups * channels * size * size


@given(st.data())
def test_matmul_counts_what_numpy_multiplies(data: st.DataObject) -> None:
    m, k, n = (data.draw(st.integers(1, 4)) for _ in range(3))
    batch = data.draw(st.lists(st.integers(1, 3), max_size=2))
    left = data.draw(st.sampled_from([(k,), (m, k), (*batch, m, k)]))
    right = data.draw(st.sampled_from([(k,), (k, n), (*batch, k, n)]))
    out = np.matmul(np.zeros(left), np.zeros(right)).shape
    found = cost("MatMul", [activation(*left), activation(*right, name="y")], out)
    assert found.macs == int(np.matmul(np.ones(left), np.ones(right)).sum())


@pytest.mark.parametrize(
    ("equation", "shapes", "out", "macs"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)], (2, 4), 24),
        ("bij,bjk", [(5, 2, 3), (5, 3, 4)], (5, 2, 4), 120),  # implicit output keeps i and k only: b, j are summed
        ("...ij,...jk->...ik", [(5, 2, 3), (3, 4)], (5, 2, 4), 120),
        ("bhqd,bhkd->bhqk", [(1, 2, 3, 4), (1, 2, 5, 4)], (1, 2, 3, 5), 120),
        ("i,j->ij", [(3,), (4,)], (3, 4), 0),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]], out: tuple[int, ...], macs: int) -> None:
    operands = [activation(*shape, name=f"x{i}") for i, shape in enumerate(shapes)]
    found = cost("Einsum", operands, out, equation=equation)
    assert found.macs == macs
    if not macs:
        assert found.multiplications == 12


def test_attention_of_4d_and_packed_inputs_agree() -> None:
    b, h, s, d = 2, 3, 5, 4
    per_head = [activation(b, h, s, d, name=name) for name in "qkv"]
    packed = [activation(b, s, h * d, name=name) for name in "qkv"]
    one = cost("Attention", per_head, (b, h, s, d))
    other = cost("Attention", packed, (b, s, h * d), q_num_heads=h, kv_num_heads=h)
    assert one == other
    assert one.macs == 2 * b * h * s * s * d
    fused = cost("MultiHeadAttention", packed, (b, s, h * d), domain="com.microsoft", num_heads=h)
    assert fused == one


def test_fused_attention_is_projection_plus_attention() -> None:
    b, s, width, heads = 2, 5, 12, 3
    found = cost(
        "Attention", [activation(b, s, width), weight(width, 3 * width), weight(3 * width, name="b")],
        (b, s, width), domain="com.microsoft", num_heads=heads,
    )  # fmt: skip
    assert found.macs == b * s * width * 3 * width + 2 * b * s * s * width


STATISTICS = [activation(1, 4, 3, 3), *(weight(4, name=name) for name in "sbmv")]
BLOCKED = [activation(1, 16, 8, 8), weight(32, 16, 3, 3), weight(32, name="b")]
ROW, ZERO = activation(5), constant([0.0], "float")


@pytest.mark.parametrize(
    ("op", "operands", "out", "attributes", "counts"),
    [
        ("Gemm", [activation(3, 5), weight(5, 7), weight(7, name="b")], (3, 7), {"alpha": 0.5},
         {"macs": 105, "additions": 21, "multiplications": 21, "weight_bytes": 4 * (35 + 7)}),
        ("Gemm", [activation(5, 3), weight(5, 7)], (3, 7), {"transA": 1}, {"macs": 105}),
        ("ConvTranspose", [activation(1, 4, 3, 3), weight(4, 5, 2, 2)], (1, 10, 4, 4), {"group": 2, "strides": [1, 1]},
         {"macs": 4 * 3 * 3 * 5 * 2 * 2}),  # each input scatters into the filters of its group
        ("LSTM", [activation(3, 2, 5), weight(1, 16, 5), weight(1, 16, 4, name="r")], (3, 1, 2, 4), {"hidden_size": 4},
         {"macs": 3 * 2 * 4 * 4 * (5 + 4), "exponentials": 5 * 3 * 2 * 4}),
        ("RNN", [activation(3, 2, 5), weight(1, 4, 5), weight(1, 4, 4, name="r")], (3, 1, 2, 4), {"hidden_size": 4},
         {"macs": 3 * 2 * 4 * (5 + 4), "exponentials": 3 * 2 * 4}),
        ("Hardmax", [activation(3, 4)], (3, 4), {}, {"comparisons": 12}),
        ("ReduceL1", [activation(3, 4)], (3, 1), {}, {"comparisons": 12, "additions": 12}),
        ("ReduceL2", [activation(3, 4)], (3, 1), {}, {"multiplications": 12, "additions": 12, "divisions": 3}),
        ("DFT", [activation(1, 8, 2), ABSENT, constant([1])], (1, 8, 2), {}, {"multiplications": 48, "additions": 72}),
        ("Einsum", [activation(3, 4)], (3,), {"equation": "ij->i"}, {"additions": 12}),
        ("BatchNormalization", STATISTICS, (1, 4, 3, 3), {},
         {"macs": 0, "multiplications": 40, "additions": 44, "divisions": 8, "weight_bytes": 64}),
        ("MaxPool", [activation(1, 2, 4, 4)], (1, 2, 2, 2), {"kernel_shape": [2, 2], "strides": [2, 2]},
         {"comparisons": 32}),  # whole windows
        ("AveragePool", [activation(1, 2, 4, 4)], (1, 2, 1, 1), {"kernel_shape": [9, 9], "ceil_mode": 1},
         {"additions": 32, "divisions": 2}),  # the window ends at the input
        ("GlobalAveragePool", [activation(1, 2, 4, 4)], (1, 2, 1, 1), {}, {"additions": 32, "divisions": 2}),
        ("Pow", [activation(2, 3), constant([2.0], "float")], (2, 3), {}, {"multiplications": 6}),
        ("Pow", [activation(2, 3), constant([3.0], "float")], (2, 3), {}, {"multiplications": 12}),
        ("Pow", [activation(2, 3), constant([0.5], "float")], (2, 3), {}, {"divisions": 6, "exponentials": 0}),
        ("Pow", [activation(2, 3), constant([0.37], "float")], (2, 3), {}, {"exponentials": 6}),
        ("Clip", [ROW, ZERO], (5,), {}, {"comparisons": 5}),  # the bounds that are given
        ("Clip", [ROW, ABSENT, ZERO], (5,), {}, {"comparisons": 5}),
        ("Clip", [ROW], (5,), {"min": 0.0, "max": 6.0}, {"comparisons": 10}),
        ("Mul", [activation(8), activation(8)], (8,), {}, {"input_bytes": 32}),  # of one value that feeds two slots
        ("Mul", [activation(8), activation(8, name="y")], (8,), {}, {"input_bytes": 64}),
        ("Transpose", [activation(2, 3)], (3, 2), {"perm": [1, 0]},
         {"input_bytes": 24, "output_bytes": 24, "flops": 0}),  # movement has bytes but no work
        ("Conv", BLOCKED, (1, 32, 8, 8), {"domain": "com.microsoft.nchwc", "activation": "Relu"},
         {"macs": 32 * 64 * 16 * 9, "comparisons": 32 * 64}),  # as ONNX Runtime blocks it
    ],
)  # fmt: skip
def test_counts(
    op: str, operands: list[Operand], out: tuple[int, ...], attributes: dict[str, object], counts: dict[str, int]
) -> None:
    found = cost(op, operands, out, **attributes)
    assert {name: getattr(found, name) for name in counts} == counts


def test_skip_layer_normalization_adds_its_skip() -> None:
    n = 2 * 3 * 8
    data = [activation(2, 3, 8), activation(2, 3, 8, name="s"), weight(8), weight(8, name="b")]
    skipped = cost("SkipLayerNormalization", data, (2, 3, 8), domain="com.microsoft")
    plain = cost("LayerNormalization", [data[0], *data[2:]], (2, 3, 8))
    assert skipped.additions == plain.additions + n
    assert skipped.multiplications == plain.multiplications


@pytest.mark.parametrize(
    ("op", "domain", "operands", "attributes"),
    [
        ("Unheard", "org.example", [activation(3)], {}),
        ("Loop", "", [activation(3)], {}),
        ("MaxPool", "", [activation(1, 1, 4, 4)], {}),  # no kernel_shape
        ("Conv", "", [activation(1, 1, 4, 4), Operand("w", None, Role.WEIGHT)], {}),
        ("RoiAlign", "", [activation(1, 1, 4, 4), activation(2, 4, name="r"), activation(2, name="i")], {}),
        ("FusedConv", "com.microsoft", [activation(1, 1, 4, 4), weight(1, 1, 1, 1)], {"activation": "Unheard"}),
        ("Attention", "com.microsoft", [activation(2, 3)], {"num_heads": 0}),
    ],
)
def test_unknown_is_none_and_never_zero(
    op: str, domain: str, operands: list[Operand], attributes: dict[str, object]
) -> None:
    node = onnx.helper.make_node(op, [o.value for o in operands], ["y"], domain=domain, **attributes)
    assert layer_cost(node, operands, [TensorType("float", (1, 1, 4, 4))]) is None


def test_unknown_output_type_is_none() -> None:
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    assert layer_cost(node, [activation(3)], [None]) is None
    node = onnx.helper.make_node("Reshape", ["x", "s"], ["y"])
    assert layer_cost(node, [activation(3), constant([3])], [None]) is None
