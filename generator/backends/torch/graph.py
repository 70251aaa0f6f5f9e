"""A network as a graph of PyTorch's functions.

It is executed once, node by node, by functions of ``operators`` whose calls are recorded. So every shape is
known, and everything that no input decides is computed ahead. What an operator takes as a number (the target of a
Reshape, the axes of a reduction) is read from the value that it has then, even where an input of the network gives
it: inputs never change.
"""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, inliner, numpy_helper
from torch import fx

from ....errors import BackendError, UnsupportedBrick
from ....models.names import is_standard, plain_domain
from ....models.subgraphs import reads
from ...network.network import Network
from ..wording import Wording
from .operators.call import Call
from .operators.generation import GENERATORS
from .operators.registry import operators
from .recorder import Recorder
from .types import tensor_of, type_of

__all__ = ["Translated", "meaning", "translated"]

_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose", "ConvInteger"})
_WITHOUT_PLACE = frozenset({"MatMul", "Gemm", "Einsum", "Softmax", "LayerNormalization", "RMSNormalization"})
"""Read no images: where one of them reads an input of four axes, no model would have it with its channels last."""

_GENERATED = "<eval_with_key>"
"""What PyTorch calls the file of a graph's code."""

_WORDING = Wording(
    "PyTorch",
    unsupported=re.compile(r"not implemented|not supported|unsupported|is only implemented|expected \w+ dtype", re.I),
)


@dataclass(frozen=True, slots=True, eq=False)
class Translated:
    """A network in PyTorch.

    Attributes:
        module: Straight-line code; takes the inputs, gives a tuple of the outputs.
        inputs: Values of the inputs.
        types: ONNX's number of each output's type; 0 where the network does not state it.
    """

    module: fx.GraphModule
    inputs: tuple[torch.Tensor, ...]
    types: tuple[int, ...]


def translated(network: Network, *, float_type: torch.dtype, device: str, channels_last: bool) -> Translated:
    """Translate a network.

    Args:
        network: A brick, or a whole model with its file.
        float_type: What float32 is computed in.
        device: Where.
        channels_last: Whether images and the weights of convolutions have their channels last in memory.

    Raises:
        UnsupportedBrick: An operator, an attribute or a type of it cannot be expressed; the message names it.
        BackendError: PyTorch failed in an operator.
        MemoryError: There was not enough memory.
    """
    model = _read(network.path) if network.model is None else network.model
    if model.functions:
        model = inliner.inline_local_functions(model)
    recorder = Recorder()
    weights = {tensor.name: _array(tensor, network.weights) for tensor in model.graph.initializer}
    images = _images(model.graph) if channels_last else frozenset()
    place = partial(_placed, float_type=float_type, device=device, images=images)
    values: dict[str, torch.Tensor | None] = {name: place(name, array) for name, array in weights.items()}
    inputs = []
    with torch.inference_mode():
        for name, array in network.feeds.items():
            tensor = place(name, array)
            recorder.input(tensor)
            inputs.append(tensor)
            values[name] = tensor
        opset = next((entry.version for entry in model.opset_import if not plain_domain(entry.domain)), 1)
        walk = _Walk(recorder, opset, float_type, device)
        with recorder:
            outputs = walk.run(model.graph, values, network.outputs)
    module = recorder.finish(outputs)
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.output}
    return Translated(module, tuple(inputs), tuple(types.get(name, 0) for name in network.outputs))


@dataclass(frozen=True, slots=True, eq=False)
class _Walk:
    """Executes nodes in order, and records what they call.

    Attributes:
        recorder: Records.
        opset: Version of ONNX's own operator set.
        float_type: What float32 is computed in.
        device: Where.
    """

    recorder: Recorder
    opset: int
    float_type: torch.dtype
    device: str

    def run(
        self, graph: onnx.GraphProto, values: dict[str, torch.Tensor | None], outputs: Sequence[str]
    ) -> list[torch.Tensor]:
        """Values of the outputs. Those that nothing reads any more are dropped on the way."""
        left = _readers(graph, outputs)
        for node in graph.node:
            inputs = [values[name] if name else None for name in node.input]
            wanted = tuple(bool(name) and left.get(name, 0) > 0 for name in node.output)
            results = self._execute(node, inputs, wanted, values)
            values.update((name, value) for name, value in zip(node.output, results, strict=False) if left.get(name))
            for name in reads(node):
                left[name] -= 1
                if not left[name]:
                    values.pop(name, None)
        missing = [name for name in outputs if values.get(name) is None]
        if missing:
            raise BackendError(f"output {missing[0]} of the network is not computed")
        return [values[name] for name in outputs]

    def _execute(
        self,
        node: onnx.NodeProto,
        inputs: list[torch.Tensor | None],
        wanted: tuple[bool, ...],
        outer: Mapping[str, torch.Tensor | None],
    ) -> Sequence[torch.Tensor]:
        if node.op_type == "Constant" and is_standard(node):
            return (tensor_of(_constant(node), self.float_type, self.device),)
        function = operators().get(node.op_type) if is_standard(node) else None
        if function is None:
            raise UnsupportedBrick(f"PyTorch has no {f'{node.domain}.' if node.domain else ''}{node.op_type}")
        constant = tuple(value is None or self.recorder.is_constant(value) for value in inputs)
        call = Call(
            op_type=node.op_type,
            opset=self.opset,
            attributes={attribute.name: _attribute(attribute) for attribute in node.attribute},
            wanted=wanted,
            constant=constant,
            dtype_of=partial(type_of, float_type=self.float_type),
            body=lambda graph, given: self._body(graph, given, outer),
        )
        self.recorder.label = node.op_type
        self.recorder.generating = node.op_type in GENERATORS and not (constant and all(constant))
        try:
            result = function(call, *inputs)
        except Exception as error:  # PyTorch's exceptions share no base class
            raise meaning(error, node.op_type) from error
        self.recorder.generating = False
        return result if isinstance(result, tuple | list) else (result,)

    def _body(
        self, graph: onnx.GraphProto, given: Sequence[torch.Tensor], outer: Mapping[str, torch.Tensor | None]
    ) -> list[torch.Tensor]:
        values = dict(outer)
        for tensor in graph.initializer:
            values[tensor.name] = tensor_of(numpy_helper.to_array(tensor), self.float_type, self.device)
        values.update(zip((value.name for value in graph.input), given, strict=True))
        return self.run(graph, values, [value.name for value in graph.output])


def meaning(error: Exception, operator: str = "") -> Exception:
    """What an exception of PyTorch means; ``operator`` is found in its traceback where it is not given."""
    where = operator or _failing(error.__traceback__) or "the network"
    return _WORDING.meaning(error, where=where, unsupported=isinstance(error, NotImplementedError))


def _failing(traceback: TracebackType | None) -> str:
    """The operator whose line of a graph's code an exception came from; empty where it came from no graph."""
    found = ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename.startswith(_GENERATED):
            line = linecache.getline(code.co_filename, traceback.tb_lineno)
            found = re.sub(r"_\d+$", "", line.partition("=")[0].strip())
        traceback = traceback.tb_next
    return found


def _read(path: Path | None) -> onnx.ModelProto:
    try:
        return onnx.load(str(path))
    except Exception as error:  # protobuf's and the file system's
        raise BackendError(f"{path} cannot be read: {' '.join(str(error).split())}") from error


def _array(tensor: onnx.TensorProto, weights: Mapping[str, Any]) -> Any:
    return weights[tensor.name] if tensor.name in weights else numpy_helper.to_array(tensor)


def _placed(name: str, array: Any, *, float_type: torch.dtype, device: str, images: frozenset[str]) -> torch.Tensor:
    tensor = tensor_of(array, float_type, device)
    if name in images and tensor.ndim == 4:
        return tensor.to(memory_format=torch.channels_last)
    return tensor


def _images(graph: onnx.GraphProto) -> frozenset[str]:
    """Inputs and weights that have their channels last where they have four axes.

    What an Identity gives is what it reads.
    """
    weights = {tensor.name for tensor in graph.initializer}
    found = {value.name for value in graph.input} - weights
    same: dict[str, str] = {}
    filters: set[str] = set()
    for node in graph.node:
        reads = [same.get(name, name) for name in node.input]
        if node.op_type == "Identity":
            same[node.output[0]] = reads[0]
        elif node.op_type in _WITHOUT_PLACE:
            found.difference_update(reads)
        elif node.op_type in _CONVOLUTIONS:
            filters.add(reads[1])
    return frozenset(found | filters)


def _readers(graph: onnx.GraphProto, outputs: Iterable[str]) -> dict[str, int]:
    """How often each value is read; outputs once more than that."""
    left = dict.fromkeys(outputs, 1)
    for node in graph.node:
        for name in reads(node):
            left[name] = left.get(name, 0) + 1
    return left


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value


def _constant(node: onnx.NodeProto) -> Any:
    (attribute,) = node.attribute
    value = _attribute(attribute)
    if attribute.name == "value":
        return numpy_helper.to_array(value)
    types = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if attribute.name not in types:
        raise UnsupportedBrick(f"PyTorch has no Constant with {attribute.name}")
    return np.array(value, dtype=types[attribute.name])
