"""Files as people deploy them, by ONNX Runtime's tools: attention as one operator, weights of products in four bits.

What they make of a file is what a runtime finds there: operators of its own domain (``com.microsoft``), which become
layers and bricks like any others.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from ...errors import BackendError
from .attention import drop_unread, join_attention

__all__ = ["ATTENTION", "WEIGHTS", "with_attention", "with_weights"]

ATTENTION = ("Attention", "MultiHeadAttention", "GroupQueryAttention", "PackedAttention", "SparseAttention")
"""Operators that are attention as a whole."""

WEIGHTS = ("int4", "int8")
"""What weights of products may be stored in."""

_KINDS = ("gpt2", "bert", "qwen3", "gpt_neox", "phi", "t5", "bart", "clip")
"""Families of models that the runtime's optimiser knows: each looks for attention in another spelling."""

_BLOCK = 32
"""Weights that share a scale, the optimiser's and most exporters' choice."""

_MICROSOFT = "com.microsoft"


def with_attention(data: bytes) -> bytes:
    """A model whose attention is one operator: as the runtime's optimiser for transformers makes it, else ONNX's own.

    What the optimiser does not know, such as keys that serve several queries behind a cache, becomes ONNX's own
    Attention (``attention``).

    The optimiser must be told the family of a model. Each is tried, and the one that fuses most attention is taken. It
    runs in a process of its own: it adds to Python's search path, and leaves temporary folders behind until that ends.

    Args:
        data: The model, with its weights.

    Raises:
        BackendError: There is none in it.
    """
    with tempfile.TemporaryDirectory(prefix="dlbricks-fused-") as folder:
        given, made = Path(folder) / "given.onnx", Path(folder) / "made.onnx"
        given.write_bytes(data)
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__, str(given), str(made)], capture_output=True, text=True, check=False
        )
        if done.returncode or not made.exists():
            raise BackendError(
                f"the runtime's optimiser for transformers fails: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
            )
        if made.stat().st_size:
            return made.read_bytes()
    model = onnx.load_from_string(data)
    if not join_attention(model):
        raise BackendError(
            "neither the runtime's optimiser for transformers nor dlbricks finds attention in it",
            remedy="leave --fuse-attention out",
        )
    return bytes(model.SerializeToString(deterministic=True))


def main(given: str, made: str) -> None:
    """Write what the optimiser makes of a file, as the family as which it fuses most; an empty file where that is none.

    Raises:
        BackendError: It fails over it as each of the families.
    """
    from onnxruntime.transformers.optimizer import optimize_model

    best, most = b"", 0
    failed: dict[str, Exception] = {}
    for kind in _KINDS:
        try:
            fused = optimize_model(onnx.load(given), model_type=kind, opt_level=0).model
        except Exception as error:  # noqa: BLE001  # a pattern of another family that is there in part raises anything
            failed[kind] = error
            continue
        found = sum(node.op_type in ATTENTION for node in fused.graph.node)
        if found > most:
            best, most = _stated(fused), found
    if len(failed) == len(_KINDS):
        raise BackendError("; ".join(f"as {kind}: {error!r:.100}" for kind, error in failed.items()))
    Path(made).write_bytes(best)


def with_weights(data: bytes, kind: str) -> bytes:
    """A model whose products read weights of few bits (``MatMulNBits``), in blocks that share a scale.

    The quantizer looks at MatMul with a constant right side alone. A Gemm, as exporters write the products of GPT-2,
    becomes a MatMul and an Add first, and a constant that is transposed before it is read, as an embedding that is the
    last product as well, is transposed in the file.

    Args:
        data: The model, with its weights.
        kind: One of ``WEIGHTS``.

    Raises:
        BackendError: It has no products with constant weights.
    """
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    logging.getLogger(MatMulNBitsQuantizer.__module__).setLevel(logging.WARNING)  # it names every node
    bits = int(kind.removeprefix("int"))
    plain = onnx.load_from_string(data)
    _spell_products(plain.graph)
    quantizer = MatMulNBitsQuantizer(plain, bits=bits, block_size=_BLOCK, is_symmetric=True)
    quantizer.process()
    model: onnx.ModelProto = quantizer.model.model
    if not any(node.op_type == "MatMulNBits" for node in model.graph.node):
        raise BackendError("it has no products with constant weights", remedy="leave --weights out")
    return _stated(model)


def _spell_products(graph: onnx.GraphProto) -> None:
    """Write products with constant weights as MatMul, in place; what is constant is stored as it is read."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    nodes = []
    for node in graph.node:
        given = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
        if node.op_type == "Transpose" and _is_matrix(constants.get(node.input[0])):
            if list(given.get("perm", [1, 0])) == [1, 0]:
                constants[node.output[0]] = _transposed(graph, constants[node.input[0]], node.output[0])
            else:
                nodes.append(node)
        elif node.op_type == "Gemm" and _is_matrix(constants.get(node.input[1])) and _is_plain(given):
            nodes += _as_product(graph, node, constants[node.input[1]], turned=bool(given.get("transB")))
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    drop_unread(graph)


def _is_matrix(tensor: onnx.TensorProto | None) -> bool:
    return tensor is not None and len(tensor.dims) == 2


def _is_plain(given: Mapping[str, object]) -> bool:
    """Whether a Gemm with these attributes is a product and a sum."""
    return not given.get("transA") and given.get("alpha", 1.0) == given.get("beta", 1.0) == 1.0


def _transposed(graph: onnx.GraphProto, tensor: onnx.TensorProto, name: str) -> onnx.TensorProto:
    """Add a constant to a graph: another one's transpose."""
    turned = numpy_helper.from_array(np.ascontiguousarray(numpy_helper.to_array(tensor).T), name)
    graph.initializer.append(turned)
    return turned


def _as_product(
    graph: onnx.GraphProto, node: onnx.NodeProto, weight: onnx.TensorProto, *, turned: bool
) -> Iterator[onnx.NodeProto]:
    """A Gemm as MatMul, and an Add where it has a bias."""
    name = f"{node.output[0]}/weight" if turned else weight.name
    if turned:
        _transposed(graph, weight, name)
    bias = [value for value in node.input[2:] if value]
    product = f"{node.output[0]}/product" if bias else node.output[0]
    yield onnx.helper.make_node("MatMul", [node.input[0], name], [product], name=f"{node.output[0]}/product")
    if bias:
        yield onnx.helper.make_node("Add", [product, *bias], [node.output[0]], name=f"{node.output[0]}/bias")


def _stated(model: onnx.ModelProto) -> bytes:
    """The file, which says that it has operators of the runtime's own: that tools leave out."""
    if all(entry.domain != _MICROSOFT for entry in model.opset_import):
        model.opset_import.add(domain=_MICROSOFT, version=1)
    return bytes(model.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
