"""A network with its matrix products in eight bits, by ONNX Runtime's own dynamic quantizer.

Weights become signed bytes once, activations unsigned bytes anew in each execution; everything else stays as it is.
Convolutions stay as they are, too: the runtime's ConvInteger is slower than its Conv.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import onnx

from ....errors import BackendError
from ....models.names import is_standard, plain_domain
from ...network.network import Network
from .stored import take_weights

__all__ = ["quantised_network"]

_OPERATORS = ("MatMul", "Gemm")
"""What is quantized. Conv is not: ConvInteger is up to five times slower than Conv in float32, and never faster."""

_SMALLEST_OPSET = 11
"""DynamicQuantizeLinear came with it."""

_PREPARED = ("onnx.quant.pre_process", "onnxruntime.quant")
"""Keeps the quantizer from asking for a preparation: it would optimise the model, which the session does afterwards."""


def quantised_network(network: Network) -> Network:
    """Quantize the weights of matrix products.

    Args:
        network: A brick, or a whole model.

    Returns:
        The network itself where it has no product with constant weights.

    Raises:
        BackendError: The quantizer failed, or the weights do not fit into one protobuf.
    """
    if not _can_be_quantised(network.structure()):
        return network
    model = network.self_contained() if network.model is not None else onnx.load(str(network.path))
    key, value = _PREPARED
    model.metadata_props.add(key=key, value=value)
    _forget_types_of_weights(model)
    with tempfile.TemporaryDirectory(prefix="dlbricks-quantised-") as place:
        target = Path(place) / "quantised.onnx"
        _quantise(model, target)
        quantised = onnx.load(str(target), load_external_data=False)
        weights = take_weights(quantised, place)
    return replace(network, model=quantised, path=None, weights=weights, file_bytes=0)


def _can_be_quantised(model: onnx.ModelProto) -> bool:
    opset = next((entry.version for entry in model.opset_import if not plain_domain(entry.domain)), 0)
    floats = {tensor.name for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT}
    return opset >= _SMALLEST_OPSET and any(
        node.op_type in _OPERATORS and is_standard(node) and node.input[1] in floats for node in model.graph.node
    )


def _forget_types_of_weights(model: onnx.ModelProto) -> None:
    """Drop the types that a model states of its initializers beside these, as PyTorch's exporter does.

    The quantizer transposes the weights of a Gemm under their own name, and then finds that they have another shape.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.value_info if value.name not in weights]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)


def _quantise(model: onnx.ModelProto, target: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    try:
        with _silence():
            quantize_dynamic(
                model,
                target,
                op_types_to_quantize=list(_OPERATORS),
                weight_type=QuantType.QInt8,
                use_external_data_format=True,
            )
    except MemoryError:
        raise
    except Exception as error:  # the quantizer raises whatever its parts raise
        text = " ".join(str(error).split())[:300] or type(error).__name__
        raise BackendError(f"ONNX Runtime's quantizer failed: {text}") from error


@contextmanager
def _silence() -> Iterator[None]:
    """The quantizer writes to the root logger, which would be given a handler for it."""
    root, handler, before = logging.getLogger(), logging.NullHandler(), logging.root.manager.disable
    root.addHandler(handler)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
        root.removeHandler(handler)
