"""The layout of what a brick reads and gives: that which it is computed in, as between the layers of a model.

OpenVINO computes convolutions and what is around them with channels last. A model changes the layout at its own ends; a
brick that is compiled alone does so at each of its ends, in memory of its own, which takes longer than many a brick.

A convolution writes a sum over the value that it adds. Where that is the result of a brick, it is copied out, twice,
which takes longer than the convolution; in a model the next layer reads it where it is, and so does an operator here
that takes one element.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import openvino

__all__ = ["Edges", "changed_edges", "copied_outputs", "reading_one_of", "with_edges"]

_CHANNELS_LAST: Mapping[str, tuple[str, str]] = {"acdb": ("NCHW", "NHWC"), "acdeb": ("NCDHW", "NDHWC")}
"""OpenVINO's word for a layout to what it is called at the edges of a model: as in ONNX, and with channels last."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Inputs and outputs that have their channels last, by index, each with its layout as OpenVINO spells it."""

    inputs: Mapping[int, str]
    outputs: Mapping[int, str]

    def __bool__(self) -> bool:
        return bool(self.inputs or self.outputs)

    def taken(self, index: int, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """An input in ONNX's layout as the network takes it."""
        return np.moveaxis(array, 1, -1) if index in self.inputs else array

    def given(self, index: int, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """An output as the network gives it in ONNX's layout."""
        return np.moveaxis(array, -1, 1) if index in self.outputs else array


def changed_edges(compiled: openvino.CompiledModel) -> Edges:
    """The edges whose layout a compiled model changes, to or from channels last, before or after all else."""
    executed = compiled.get_runtime_model()
    inputs, outputs = {}, {}
    places = {port.get_node().get_friendly_name(): index for index, port in enumerate(compiled.inputs)}
    for parameter in executed.get_parameters():
        found = {_layout(reader) if _kind(reader) == "Reorder" else "" for reader in _readers(parameter)}
        if len(found) == 1 and (layout := found.pop()) in _CHANNELS_LAST:
            inputs[places[parameter.get_friendly_name()]] = layout
    for index, result in enumerate(executed.get_results()):
        change = result.input_value(0).get_node()
        layout = _layout(change.input_value(0).get_node()) if _kind(change) == "Reorder" else ""
        if layout in _CHANNELS_LAST:
            outputs[index] = layout
    return Edges(inputs, outputs)


def with_edges(model: openvino.Model, edges: Edges) -> openvino.Model:
    """A model that takes and gives values in a layout; it is not to be used afterwards."""
    from openvino import Layout
    from openvino.preprocess import PrePostProcessor

    made = PrePostProcessor(model)
    infos: Sequence[tuple[Any, str]] = (
        *((made.input(index), layout) for index, layout in edges.inputs.items()),
        *((made.output(index), layout) for index, layout in edges.outputs.items()),
    )
    for info, layout in infos:
        first, last = _CHANNELS_LAST[layout]
        info.model().set_layout(Layout(first))
        info.tensor().set_layout(Layout(last))
    return made.build()


def copied_outputs(compiled: openvino.CompiledModel, edges: Edges) -> frozenset[int]:
    """Outputs in a layout of ``edges`` that are copied out of the memory of a value that a convolution wrote over.

    Args:
        compiled: A model as ``with_edges`` made it.
        edges: What it was made with.
    """
    found = set()
    for index, result in enumerate(compiled.get_runtime_model().get_results()):
        kinds = []
        operator = result.input_value(0).get_node()
        while index in edges.outputs and (kind := _kind(operator)) in {"Reorder", "Transpose"}:
            kinds.append(kind)
            operator = operator.input_value(0).get_node()
        if "Transpose" in kinds and _kind(operator) == "Convolution":
            found.add(index)
    return frozenset(found)


def reading_one_of(model: openvino.Model, outputs: frozenset[int]) -> openvino.Model:
    """A model as ``with_edges`` made it that gives of some outputs the first element only."""
    from openvino import Model, opset8

    results = []
    for index, result in enumerate(model.get_results()):
        value = result.input_value(0)
        if index in outputs:
            inner = value.get_node()  # what changes the layout stands behind what is computed
            value = inner.input_value(0) if inner.get_type_name() == "Transpose" else value
            rank = len(value.get_partial_shape())
            zeros, ones = (opset8.constant([number] * rank) for number in (0, 1))
            value = opset8.slice(value, zeros, ones, ones, opset8.constant([*range(rank)])).output(0)
        results.append(value)
    return Model(results, model.get_parameters())


def _readers(operator: openvino.Node) -> Iterator[openvino.Node]:
    return (port.get_node() for output in operator.outputs() for port in output.get_target_inputs())


def _kind(operator: openvino.Node) -> str:
    return str(operator.get_rt_info()["layerType"].astype(str))


def _layout(operator: openvino.Node) -> str:
    return str(operator.get_rt_info()["outputLayouts"].astype(str))
