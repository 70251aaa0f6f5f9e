"""Products as cuBLAS is given them: what they mean, column by column, beside ONNX's own reference."""

from __future__ import annotations

import numpy as np
import pytest
from dlbricks.errors import UnsupportedBrick
from dlbricks.generator.backends.cublas.problem import Matrix, ProductProblem, added, problem_of
from dlbricks.generator.backends.library import computed_in, described, values_of
from dlbricks.generator.measurement.agreement import difference
from dlbricks.generator.network.network import Network, synthetic_network
from onnx.reference import ReferenceEvaluator

PRODUCTS = [
    "(float[3,4] x, float[4,5] w0) => (float[3,5] y) { y = MatMul(x, w0) }",
    "(float[2,3,4] x, float[4,5] w0) => (float[2,3,5] y) { y = MatMul(x, w0) }",
    "(float[2,6,3,4] x, float[2,6,4,5] z) => (float[2,6,3,5] y) { y = MatMul(x, z) }",
    "(float[3,4] x, float[2,4,5] z) => (float[2,3,5] y) { y = MatMul(x, z) }",
    "(float[2,3,4] x, float[1,4,5] w0) => (float[2,3,5] y) { y = MatMul(x, w0) }",
    "(float[4] x, float[2,4,5] z) => (float[2,5] y) { y = MatMul(x, z) }",
    "(float[2,3,4] x, float[4] z) => (float[2,3] y) { y = MatMul(x, z) }",
    "(float[4] x, float[4] z) => (float y) { y = MatMul(x, z) }",
    "(float[3,4] x, float[4,5] w0, float[5] w1) => (float[3,5] y) { y = Gemm(x, w0, w1) }",
    "(float[4,3] x, float[5,4] w0) => (float[3,5] y) { y = Gemm<transA=1, transB=1, alpha=0.5>(x, w0) }",
    "(float[3,4] x, float[4,5] w0, float[1,5] w1) => (float[3,5] y) { y = Gemm<beta=0.5>(x, w0, w1) }",
    "(float[3,4] x, float[5,4] w0, float[3,1] w1) => (float[3,5] y) { y = Gemm<transB=1, beta=2.0>(x, w0, w1) }",
    "(float[3,4] x, float[4,5] w0, float w1) => (float[3,5] y) { y = Gemm(x, w0, w1) }",
    "(float[3,4] x, float[4,5] w0, float[3,5] z) => (float[3,5] y) { y = Gemm<beta=0.25>(x, w0, z) }",
    "(float[3,4] x, float[4,5] w0, float[3,5] z) => (float[3,5] y) { y = Gemm<beta=0.0>(x, w0, z) }",
    "(float[3,4] x) => (float[3,3] y) { y = Gemm<transB=1>(x, x) }",
    "(float[2,3,4] x, float[4,5] w0, float[5] w1) => (float[2,3,5] y) { a = MatMul(x, w0) y = Add(w1, a) }",
    "(float[2,3,4] x, float[2,4,5] z, float[5] b) => (float[2,3,5] y) { a = MatMul(x, z) y = Add(a, b) }",
    (
        "(float[2,3,4] x, float[4,5] w0, float[2,3,5] z) => (float[2,3,5] y)"
        "{ a = MatMul(x, w0) b = Add(a, z) y = Relu(b) }"
    ),
    (
        "(float[3,4] x, float[4,5] w0, float[5] w1) => (float[3,5] y)"
        '{ a = Gemm(x, w0, w1) y = Gelu<approximate="tanh">(a) }'
    ),
]

REFUSED = {
    "(float[3,4] x) => (float[3,4] y) { y = Relu(x) }": "Relu is no matrix product",
    "(float[2,1,3,4] x, float[1,6,4,5] z) => (float[2,6,3,5] y) { y = MatMul(x, z) }": "a part of its batch",
    "(float[3,4] x, float[4,5] w0) => (float[3,5] y) { a = MatMul(x, w0) y = Gelu(a) }": "Gelu is exact",
    "(float[3,4] x, float[4,5] w0) => (float[3,5] y) { a = MatMul(x, w0) y = Tanh(a) }": "Tanh behind a product",
    "(float[3,4] x, float[4,5] w0) => (float[3,5] a, float[3,5] y) { a = MatMul(x, w0) y = Relu(a) }": "other outputs",
    "(float[3,4] x, float[4,5] w0, float[3,1] z) => (float[3,5] y) { a = MatMul(x, w0) y = Add(a, z) }": "per column",
    "(float[3,0] x, float[0,5] w0) => (float[3,5] y) { y = MatMul(x, w0) }": "MatMul of nothing",
}


def _matrices(matrix: Matrix, flat: np.ndarray, batch: int) -> np.ndarray:
    """Batch, rows, columns as the product reads them, of elements that lie column by column."""
    size = flat.itemsize
    found = np.lib.stride_tricks.as_strided(
        flat, (batch, matrix.rows, matrix.columns), (matrix.stride * size, size, matrix.rows * size)
    )
    return found.swapaxes(1, 2) if matrix.transposed else found


def _executed(problem: ProductProblem, network: Network) -> np.ndarray:
    """The result as it lies in memory, by what the description says."""
    flat = {name: np.ascontiguousarray(array).reshape(-1) for name, array in values_of(network).items()}
    left, right = (_matrices(each, flat[each.value], problem.batch) for each in (problem.left, problem.right))
    assert left.shape[2] == right.shape[1] == problem.depth
    found = problem.alpha * (left @ right)
    if problem.addend is not None:
        fixed = problem.addend.value not in network.feeds
        array, beta = added(problem, problem.addend, values_of(network)[problem.addend.value], fixed=fixed)
        if beta:
            found = found + beta * _matrices(problem.result, array.reshape(-1), problem.batch)
        else:
            assert array.shape == (problem.result.rows,)
            found = found + array[:, None]
    if problem.activation == "relu":
        found = np.maximum(found, 0)
    if problem.activation == "gelu":
        found = 0.5 * found * (1 + np.tanh(np.sqrt(2 / np.pi) * (found + 0.044715 * found**3)))
    return np.asarray(found.swapaxes(1, 2)).reshape(-1)


@pytest.mark.parametrize("text", PRODUCTS)
def test_a_product_is_described_as_onnx_means_it(text, skeleton_of):
    network = synthetic_network(skeleton_of(text), seed=3)

    found = _executed(problem_of(described(network)), network)

    expected = np.asarray(ReferenceEvaluator(network.self_contained()).run(None, dict(network.feeds))[0])
    assert difference(found.reshape(expected.shape), expected) < 1e-5


def test_one_matrix_for_a_whole_batch_is_one_product_of_more_rows(skeleton_of):
    network = synthetic_network(skeleton_of(PRODUCTS[1]))

    found = problem_of(described(network))

    assert (found.batch, found.result.rows, found.result.columns, found.depth) == (1, 5, 6, 4)
    assert found.is_plain


@pytest.mark.parametrize(("text", "reason"), REFUSED.items())
def test_what_is_no_product_of_the_library_is_refused(text, reason, skeleton_of):
    network = synthetic_network(skeleton_of(text))

    with pytest.raises(UnsupportedBrick, match=reason):
        problem_of(described(network))


def test_a_bias_that_would_have_to_be_changed_in_each_execution_is_refused(skeleton_of):
    text = "(float[3,4] x, float[4,5] w0, float[5] z) => (float[3,5] y) { y = Gemm<beta=0.5>(x, w0, z) }"
    network = synthetic_network(skeleton_of(text))
    problem = problem_of(described(network))
    assert problem.addend is not None

    with pytest.raises(UnsupportedBrick, match="a bias that is an input"):
        added(problem, problem.addend, network.feeds["z"], fixed=False)


def test_float32_is_computed_in_the_precision_of_the_settings_and_nothing_else(skeleton_of):
    single, half = (
        synthetic_network(skeleton_of(f"({kind}[3,4] x, {kind}[4,5] w0) => ({kind}[3,5] y) {{ y = MatMul(x, w0) }}"))
        for kind in ("float", "float16")
    )

    assert computed_in(single, "bfloat16", "cuBLAS") == "bfloat16"
    assert computed_in(half, "bfloat16", "cuBLAS") == "float16"
