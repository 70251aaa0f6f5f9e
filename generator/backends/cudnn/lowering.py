"""From an operation graph to a graph of the library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....errors import BackendError
from .operations import Operation, OperationGraph, Role, Tensor

__all__ = ["DTYPES", "lower"]

DTYPES: Mapping[str, str] = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BFLOAT16"}
"""Precision of all tensors in memory to the library's name of it; sums and values in between are of float32."""


def lower(graph: OperationGraph, *, dtype: str, channels_last: bool, **target: Any) -> Any:
    """Build and validate the library's graph.

    Args:
        graph: A brick.
        dtype: One of ``DTYPES``: of all tensors in memory.
        channels_last: Whether images, and the weights of convolutions, have their channels fastest in memory.
        **target: What the graph is for: ``device_property`` or ``handle`` of the library's graph class.

    Returns:
        A validated ``cudnn.pygraph``; it has the tensors that are no virtual ones under their names.

    Raises:
        BackendError: The library infers other dimensions than the translation has.
        Exception: Whatever the library raises for a graph that it does not support.
    """
    import cudnn

    single, memory = cudnn.data_type.FLOAT, getattr(cudnn.data_type, DTYPES[dtype])
    built = cudnn.pygraph(io_data_type=memory, intermediate_data_type=single, compute_data_type=single, **target)
    found: dict[str, Any] = {}
    for name, tensor in graph.of(Role.INPUT, Role.WEIGHT, Role.SCALAR):
        found[name] = _declared(built, name, tensor, single if tensor.role is Role.SCALAR else memory, channels_last)
    for operation in graph.operations:
        written = graph.tensors[operation.output]
        result = found[operation.output] = _applied(built, operation, found, written.shape)
        if written.role is Role.OUTPUT:
            strides = written.strides(channels_last=channels_last)
            result.set_output(True).set_data_type(memory).set_dim(list(written.shape)).set_stride(list(strides))
            result.set_name(operation.output)
    built.validate()
    for operation in graph.operations:
        inferred, expected = tuple(found[operation.output].get_dim()), graph.tensors[operation.output].shape
        if inferred != expected:
            raise BackendError(f"cuDNN infers {inferred} for {operation.kind}, where {expected} is expected")
    return built


def _declared(built: Any, name: str, tensor: Tensor, kind: Any, channels_last: bool) -> Any:  # noqa: FBT001
    return built.tensor(
        name=name,
        dim=list(tensor.shape),
        stride=list(tensor.strides(channels_last=channels_last)),
        data_type=kind,
        is_pass_by_value=tensor.role is Role.SCALAR,
    )


def _applied(built: Any, operation: Operation, found: Mapping[str, Any], shape: tuple[int, ...]) -> Any:
    import cudnn

    inputs = {port: found[name] for port, name in operation.inputs.items()}
    settings = dict(operation.settings)
    if operation.kind == "reduction":
        settings["mode"] = getattr(cudnn.reduction_mode, settings["mode"])
        settings["out_dims"] = list(shape)
    if operation.kind in {"layernorm", "rmsnorm"}:
        settings["norm_forward_phase"] = cudnn.norm_forward_phase.INFERENCE
    if operation.kind == "sdpa":
        settings["generate_stats"] = False
    result = getattr(built, operation.kind)(**inputs, **settings)
    return result[0] if isinstance(result, (list, tuple)) else result
