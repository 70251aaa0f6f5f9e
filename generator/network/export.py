"""Bricks and models as self-contained ONNX files, for any other tool: with seeded weights, or as people deploy them."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ...bricks.suite.brick import Brick
from ...errors import BackendError, UsageError
from ...models import ModelSource
from ...models.reader import read_full
from ...models.subgraphs import attribute_of, attributes_of, drop_unread, reads
from ...models.user_inputs import NOTHING_GIVEN
from ...models.zoo import open_structure
from .network import export_network, export_open_network, synthetic_network

if TYPE_CHECKING:
    import onnx_graphsurgeon as gs

# Files as people deploy them, by ONNX Runtime's tools: attention as one operator, weights of products in four bits.
#
# What they make of a file is what a runtime finds there: operators of its own domain (``com.microsoft``), which become
# layers and bricks like any others.


# Attention that exporters spell out in decoders, as ONNX's own operator (Attention, opset 23).
#
# softmax(scale Q K^T + mask) V over heads, where queries and keys may have been turned by their positions before, one
# key may serve several queries (Expand), and a cache of keys and values may be in front of the new ones (Concat): all
# of that is one operator. ONNX Runtime's optimiser for transformers knows older spellings alone.


_OPSET = 23
"""The first with Attention."""

_UNCHANGED = frozenset({
    "Abs", "Add", "And", "Cast", "Concat", "Constant", "ConstantOfShape", "Cos", "Div", "Equal", "Erf", "Exp", "Expand",
    "Gather", "GatherND", "Gelu", "Gemm", "Greater", "Identity", "LayerNormalization", "Less", "LessOrEqual", "Log",
    "MatMul", "Max", "Min", "Mul", "Neg", "Not", "Or", "Pow", "Range", "Reciprocal", "ReduceMean", "ReduceSum", "Relu",
    "Reshape", "ScatterND", "Shape", "Sigmoid", "Sin", "Slice", "Softmax", "Split", "Sqrt", "Squeeze", "Sub", "Tanh",
    "Transpose", "Trilu", "Unsqueeze", "Where",
})  # fmt: skip
"""Operators that mean the same from opset 18 to 23."""

_SINCE = 18

_RANK = 4

_HEADS = 1
"""The axis of the heads."""


class _GraphIndex:
    """Looks operators up in a graph."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._makers = {value: node for node in graph.node for value in node.output if value}
        self.readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in graph.node:
            for name in set(reads(node)):
                self.readers[name].append(node)
            if node.op_type == "Constant" and (tensor := attribute_of(node, "value")) is not None:
                self._constants[node.output[0]] = tensor
        self.outputs = {value.name for value in graph.output}

    def maker(self, value: str, operator: str) -> onnx.NodeProto | None:
        """Return the node that computes a value, if its operator is one of these."""
        node = self._makers.get(value)
        return node if node is not None and node.op_type == operator and not node.domain else None

    def alone(self, value: str) -> bool:
        """Return True if exactly one operator reads a value and it is no output."""
        return len(self.readers[value]) == 1 and value not in self.outputs

    def number(self, value: str) -> float | None:
        """Return the number of a constant with one element."""
        tensor = self._constants.get(value)
        array = None if tensor is None else numpy_helper.to_array(tensor)
        return float(array.item()) if array is not None and array.size == 1 else None


def join_attention(model: onnx.ModelProto) -> int:
    """Replace every attention of several operators by one operator, in place; return their number.

    A model stays unchanged if one of its operators changed its meaning before opset 23.
    """
    opset = next((entry for entry in model.opset_import if entry.domain in {"", "ai.onnx"}), None)
    op_types = {node.op_type for node in model.graph.node if not node.domain}
    if opset is None or opset.version < _SINCE or (opset.version < _OPSET and op_types - _UNCHANGED):
        return 0
    reader = _GraphIndex(model.graph)
    attentions: dict[str, onnx.NodeProto] = {}
    gone: set[str] = set()
    for softmax in (node for node in model.graph.node if node.op_type == "Softmax" and not node.domain):
        replacement = _joined(reader, softmax)
        if replacement is not None:
            node, removed = replacement
            attentions[node.output[0]] = node
            gone |= removed
    if attentions:
        nodes = [attentions.get(node.output[0], node) for node in model.graph.node if node.output[0] not in gone]
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        drop_unread(model.graph)
        opset.version = max(opset.version, _OPSET)
        model.ir_version = max(model.ir_version, 10)
    return len(attentions)


def _joined(reader: _GraphIndex, softmax: onnx.NodeProto) -> tuple[onnx.NodeProto, set[str]] | None:
    """Return the attention operator around a Softmax and the outputs it replaces; None without an attention."""
    weighted = next(iter(reader.readers[softmax.output[0]]), None)
    total = reader.maker(softmax.input[0], "Add")
    axis = attribute_of(softmax, "axis", -1)
    if weighted is None or axis not in {-1, _RANK - 1} or not reader.alone(softmax.output[0]):
        return None
    if weighted.op_type != "MatMul" or weighted.input[0] != softmax.output[0]:
        return None
    sums = [(softmax.input[0], "")] if total is None else [tuple(total.input), tuple(reversed(total.input))]
    for scaled, mask in sums:
        scores = _scores(reader, scaled)
        turned = None if scores is None else reader.maker(scores[0].input[1], "Transpose")
        if scores is None or turned is None or list(attribute_of(turned, "perm", ())) != [0, 1, 3, 2]:
            continue
        product, scale, removed = scores
        keys, values = _concatenated(reader, turned.input[0]), _concatenated(reader, weighted.input[1])
        between = {*removed, softmax.input[0], turned.output[0]}
        if bool(keys[1]) != bool(values[1]) or not all(map(reader.alone, between)):
            return None
        inputs, outputs = [product.input[0], keys[0], values[0], mask], [weighted.output[0]]
        if keys[1]:
            inputs += [keys[1], values[1]]
            outputs += [keys[2], values[2]]
        node = helper.make_node("Attention", inputs, outputs, name=f"{outputs[0]}/attention", scale=scale)
        return node, {*between, softmax.output[0], *keys[3], *values[3]}
    return None


def _scores(reader: _GraphIndex, value: str) -> tuple[onnx.NodeProto, float, list[str]] | None:
    """Return the product behind a value, its factor, and the values between them."""
    scale, removed = 1.0, []
    while True:
        removed.append(value)
        product = reader.maker(value, "MatMul")
        if product is not None:
            return product, scale, removed
        node = reader.maker(value, "Mul") or reader.maker(value, "Div")
        factor = None if node is None else reader.number(node.input[1])
        if node is None or not factor:
            return None
        scale *= factor if node.op_type == "Mul" else 1 / factor
        value = node.input[0]


def _concatenated(reader: _GraphIndex, value: str) -> tuple[str, str, str, list[str]]:
    """Return the source of keys or values, before they are repeated for several queries."""
    removed: list[str] = []
    reshaped = reader.maker(value, "Reshape")
    expanded = None if reshaped is None else reader.maker(reshaped.input[0], "Expand")
    wider = None if expanded is None else reader.maker(expanded.input[0], "Unsqueeze")
    if reshaped is not None and expanded is not None and wider is not None:
        repeated = [reshaped.output[0], expanded.output[0], wider.output[0]]
        if reader.number(wider.input[1]) == _HEADS + 1 and all(map(reader.alone, repeated)):
            removed += repeated
            value = wider.input[0]
    cached = reader.maker(value, "Concat")
    axis = attribute_of(cached, "axis", 0) if cached is not None else 0
    if cached is None or len(cached.input) != 2 or axis not in {-2, _RANK - 2} or len(reader.readers[value]) != 1:
        return value, "", "", removed
    return cached.input[1], cached.input[0], value, [*removed, value]


ATTENTION = ("Attention", "MultiHeadAttention", "GroupQueryAttention", "PackedAttention", "SparseAttention")
"""Operators that are attention as a whole."""

WEIGHTS = ("int4", "int8")
"""Storage formats for the weights of products."""

_KINDS = ("gpt2", "bert", "qwen3", "gpt_neox", "phi", "t5", "bart", "clip")
"""Families of models that the runtime's optimiser knows: each looks for attention in another spelling."""

_BLOCK = 32
"""Weights that share a scale, the optimiser's and most exporters' choice."""

_MICROSOFT = "com.microsoft"


def with_attention(data: bytes) -> bytes:
    """Return the model with every attention as one operator.

    The runtime's optimiser for transformers comes first. Attention that it does not know, for example grouped queries
    behind a cache, becomes ONNX's Attention (``join_attention``).

    The optimiser needs the family of a model. Each family is tried, and the result with most fused attention is used.
    It runs in a separate process, because it changes Python's search path and leaves temporary folders.

    Raises:
        BackendError: The model has no attention.
    """
    with tempfile.TemporaryDirectory(prefix="dlbricks-fused-") as folder:
        file, target = Path(folder) / "given.onnx", Path(folder) / "made.onnx"
        file.write_bytes(data)
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__, str(file), str(target)], capture_output=True, text=True, check=False
        )
        if done.returncode or not target.exists():
            raise BackendError(
                f"the runtime's optimiser for transformers fails: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
            )
        if target.stat().st_size:
            return target.read_bytes()
    model = onnx.load_from_string(data)
    if not join_attention(model):
        raise BackendError(
            "neither the runtime's optimiser for transformers nor dlbricks finds attention in it",
            remedy="leave --fuse-attention out",
        )
    return bytes(model.SerializeToString(deterministic=True))


def main(file: str, target: str) -> None:
    """Write the optimised file of the family that fuses most; an empty file if no family fuses anything.

    Raises:
        BackendError: The optimiser fails with every family.
    """
    from onnxruntime.transformers.optimizer import optimize_model

    best, most = b"", 0
    failed: dict[str, Exception] = {}
    for kind in _KINDS:
        try:
            fused = optimize_model(onnx.load(file), model_type=kind, opt_level=0).model
        except Exception as error:  # noqa: BLE001  # a pattern of another family that is there in part raises anything
            failed[kind] = error
            continue
        count = sum(node.op_type in ATTENTION for node in fused.graph.node)
        if count > most:
            best, most = _stated(fused), count
    if len(failed) == len(_KINDS):
        raise BackendError("; ".join(f"as {kind}: {error!r:.100}" for kind, error in failed.items()))
    Path(target).write_bytes(best)


def with_weights(data: bytes, kind: str) -> bytes:
    """Return the model with weights of few bits (``MatMulNBits``), in blocks that share a scale.

    The quantizer knows only MatMul with a constant right side. A Gemm (GPT-2) becomes a MatMul and an Add first. A
    constant behind a Transpose, such as an embedding that is also the last product, is transposed in the file.

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
    """Write products with constant weights as MatMul, in place; constants are stored as they are read."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    nodes = []
    for node in graph.node:
        attributes = attributes_of(node)
        if node.op_type == "Transpose" and _is_matrix(constants.get(node.input[0])):
            if list(attributes.get("perm", [1, 0])) == [1, 0]:
                constants[node.output[0]] = _transposed(graph, constants[node.input[0]], node.output[0])
            else:
                nodes.append(node)
        elif node.op_type == "Gemm" and _is_matrix(constants.get(node.input[1])) and _is_plain(attributes):
            nodes += _as_product(graph, node, constants[node.input[1]], turned=bool(attributes.get("transB")))
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    drop_unread(graph)


def _is_matrix(tensor: onnx.TensorProto | None) -> bool:
    return tensor is not None and len(tensor.dims) == 2


def _is_plain(attributes: Mapping[str, object]) -> bool:
    """Return True if a Gemm with these attributes is a product and a sum."""
    return not attributes.get("transA") and attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1.0


def _transposed(graph: onnx.GraphProto, tensor: onnx.TensorProto, name: str) -> onnx.TensorProto:
    """Add a constant to a graph: another one's transpose."""
    turned = numpy_helper.from_array(np.ascontiguousarray(numpy_helper.to_array(tensor).T), name)
    graph.initializer.append(turned)
    return turned


def _as_product(
    graph: onnx.GraphProto, node: onnx.NodeProto, weight: onnx.TensorProto, *, turned: bool
) -> Iterator[onnx.NodeProto]:
    """Return a Gemm as MatMul, with an Add for its bias."""
    name = f"{node.output[0]}/weight" if turned else weight.name
    if turned:
        _transposed(graph, weight, name)
    bias = [value for value in node.input[2:] if value]
    product = f"{node.output[0]}/product" if bias else node.output[0]
    yield onnx.helper.make_node("MatMul", [node.input[0], name], [product], name=f"{node.output[0]}/product")
    if bias:
        yield onnx.helper.make_node("Add", [product, *bias], [node.output[0]], name=f"{node.output[0]}/bias")


def _stated(model: onnx.ModelProto) -> bytes:
    """Return the file with the runtime's operator set declared, which tools leave out."""
    if all(entry.domain != _MICROSOFT for entry in model.opset_import):
        model.opset_import.add(domain=_MICROSOFT, version=1)
    return bytes(model.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main(*sys.argv[1:])


def export_brick(brick: Brick, path: str | os.PathLike[str], *, seed: int = 0, inputs: Path | None = None) -> int:
    """Write a brick with the weights and in the form that the runner gives it.

    Args:
        brick: The brick.
        path: File to write; it appears complete or not at all.
        seed: Of the weights and inputs.
        inputs: npz file for the inputs that the runner gives it; None: it is not written.

    Returns:
        Bytes written.

    Raises:
        BackendError: It cannot be assembled, or is larger than a protobuf can be.
        OSError: The file cannot be written.
    """
    model = onnx.load_from_string(brick.model)
    if inputs is not None:
        with inputs.open("wb") as file:
            np.savez(file, **synthetic_network(model, seed=seed).feeds)  # type: ignore[arg-type]  # names of arrays
    return write_file(Path(path), export_network(model, seed))


def to_graphsurgeon(brick: Brick, *, seed: int = 0) -> gs.Graph:
    """Return a brick as a graph of ONNX GraphSurgeon, to edit it; ``export_brick`` writes the same network.

    Raises:
        BackendError: It cannot be assembled.

    Example:
        >>> graph = to_graphsurgeon(suite.brick(key))  # doctest: +SKIP
        >>> graph.nodes[0].attrs["group"] = 1  # doctest: +SKIP
        >>> onnx.save(onnx_graphsurgeon.export_onnx(graph.cleanup().toposort()), "edited.onnx")  # doctest: +SKIP
    """
    import onnx_graphsurgeon as gs

    return gs.import_onnx(onnx.load_from_string(export_network(onnx.load_from_string(brick.model), seed)))


def as_file(source: ModelSource, folder: Path) -> ModelSource:
    """Return a model as a file with weights: its own file, or for the zoo the result of ``models export``.

    Raises:
        ModelError: It cannot be read or bound.
        BackendError: It cannot be written.
        OSError: It cannot be written there.
    """
    if source.path is not None:
        return source
    path = folder / "original.onnx"
    export_model(source, path, force=True)
    return replace(source, path=path, zoo=None, batch=None, dims=())


def export_model(
    source: ModelSource,
    path: str | os.PathLike[str],
    *,
    seed: int = 0,
    force: bool = False,
    opened: bool = False,
    attention: bool = False,
    weights: str | None = None,
) -> int:
    """Write a model of the zoo with synthetic weights.

    Args:
        source: A model of the zoo (``find_models``).
        path: File to write; it appears complete or not at all.
        seed: Of the weights.
        force: Replace another file that is there.
        opened: Leave its lengths open, so that a loop can execute it; decoders with a cache only.
        attention: Make attention one operator (``with_attention``).
        weights: Storage format for the weights of products (``WEIGHTS``); None: unchanged.

    Returns:
        Bytes written.

    Raises:
        ModelError: The name is unknown, or the model cannot be bound or left open.
        BackendError: The model cannot be assembled, exceeds 2 GiB, or has no attention or product to change.
        UsageError: The path has another file.
        OSError: The file cannot be written.
    """
    path, source = Path(path), replace(source, given=NOTHING_GIVEN)  # a file takes any inputs
    if opened and source.zoo is not None:
        data = export_open_network(open_structure(source.zoo, batch=source.batch), seed)
    else:
        data = export_network(source.skeleton().model, seed)
    if attention:
        data = with_attention(data)
    if weights is not None:
        data = with_weights(data, weights)
    if not force and path.exists() and path.read_bytes() != data:
        raise UsageError(f"{path} exists already and is another file", remedy="name a new folder, or give --force")
    return write_file(path, data)


def write_file(path: Path, data: bytes) -> int:
    """Write a file that appears complete or not at all; the bytes written.

    A link stays, and the file that it leads to is written. A device or pipe is written as it is.

    Raises:
        OSError: It cannot be written.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        return path.write_bytes(data)
    path = path.resolve() if path.is_symlink() else path
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # the user knows no partial file
    finally:
        partial.unlink(missing_ok=True)
    return len(data)


def refuse_itself(source: ModelSource, path: Path) -> None:
    """Raise ``UsageError`` if a file to write is the model itself."""
    if source.path is not None and path.exists() and path.samefile(source.path):
        raise UsageError(f"{path} is the model itself, which stays as it is", remedy="name another file")


def annotate_model(
    source: ModelSource, notes: Mapping[str, Mapping[str, str]], path: str | os.PathLike[str], *, seed: int = 0
) -> int:
    """Write a model with notes in its nodes' metadata (``metadata_props``) and documentation (``doc_string``).

    A file keeps everything else, weights included; a model of the zoo gets synthetic weights.

    Args:
        source: The model.
        notes: By the name of a node's first output: names and values.
        path: File to write; it appears complete or not at all.
        seed: Of synthetic weights.

    Returns:
        The number of nodes with a note.

    Raises:
        ModelError: The model cannot be read.
        UsageError: The model has external weights and ``path`` is in another folder; or ``path`` is the model.
        BackendError: It is larger than a protobuf can be.
        OSError: The file cannot be written.
    """
    path = Path(path)
    if source.path is None or source.problem is not None:
        model = onnx.load_from_string(export_network(source.skeleton().model, seed))
    else:
        refuse_itself(source, path)
        model, _ = read_full(source.path)
        folder = source.path.parent
        beside = any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.graph.initializer)
        if beside and path.parent.resolve() != folder.resolve():
            raise UsageError(
                f"the weights of {source.name} lie in files beside it", remedy=f"write to {folder / path.name}"
            )
    count = 0
    for node in model.graph.node:
        node_notes = notes.get(next(iter(node.output), ""))
        if node_notes is None:
            continue
        count += 1
        for name, value in node_notes.items():
            node.metadata_props.add(key=f"dlbricks.{name}", value=value)
        note = "; ".join(f"{name} {value}" for name, value in node_notes.items())
        node.doc_string = f"{note}\n{node.doc_string}" if node.doc_string else note
    write_file(path, model.SerializeToString())
    return count
