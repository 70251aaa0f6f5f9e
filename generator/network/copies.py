"""Networks for a rotation: a head of one copy of a brick's executed graph, and a tail of several more.

What the tail takes longer than the head is the time of the further copies alone: without the cost of a call, of cold
inputs, or of the first write to a result, which both have alike. Each copy has weights of its own, of other values:
runtimes share packed weights between nodes where the packed bytes are equal (ONNX Runtime does), and the copies would
then read warm what a model reads cold. Activations are as warm as in a running model: every input is written just
before by an Identity, and where the brick's first output has the type and shape of one of its inputs the copies form
a chain, so that an operator that a model runs in place runs in place here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from .network import Network

__all__ = ["chain_input", "copied", "distinct", "exposed", "ordinary", "renamed", "written"]

Array = npt.NDArray[Any]

_WRITTEN = "@in:"
"""Prefix of the values that the Identity nodes write."""


def copied(network: Network, copies: int, *, chained: str | None = None) -> Network:
    """A network of so many copies of another, with own weights each, which read the same inputs.

    Args:
        network: One copy, in the form that the runtime executes.
        copies: At least 1. The outputs of the last copy are the network's.
        chained: An input that every copy after the first reads from the first output of the copy before instead.
    """
    assert network.model is not None  # noqa: S101  # a brick, never a file
    source = network.model
    model = onnx.ModelProto()
    model.CopyFrom(source)
    del model.graph.node[:], model.graph.initializer[:], model.graph.output[:], model.graph.value_info[:]
    weights: dict[str, Array] = {}
    inputs = [value.name for value in source.graph.input]
    for name in inputs:
        model.graph.node.append(helper.make_node("Identity", [name], [_WRITTEN + name]))
    previous: dict[str, str] = {}
    for copy in range(copies):
        names = {name: _WRITTEN + name for name in inputs}
        if chained is not None and copy:
            names[chained] = previous[source.graph.output[0].name]
        for tensor in source.graph.initializer:
            names[tensor.name] = own = f"{tensor.name}@{copy}"
            twin = model.graph.initializer.add()
            twin.CopyFrom(tensor)
            twin.name = own
            if tensor.name in network.weights:
                weights[own] = distinct(network.weights[tensor.name], copy)
        for node in source.graph.node:
            for value in node.output:
                if value:
                    names[value] = f"{value}@{copy}"
        for node in source.graph.node:
            model.graph.node.append(renamed(node, names))
        previous = names
    for value in source.graph.output:
        result = model.graph.output.add()
        result.CopyFrom(value)
        result.name = previous[value.name]
    return replace(
        network,
        model=model,
        weights=weights,
        outputs=tuple(value.name for value in model.graph.output),
        as_is=True,
        shared=True,
    )


def exposed(network: Network) -> frozenset[str]:
    """What each copy of a network of copies gives out, though only the last copy's values are the network's outputs.

    A runtime that leaves out what nothing reads would have all other copies compute less than a model does.
    """
    if not network.shared or network.model is None:
        return frozenset()
    given = {_own_name(name) for name in network.outputs}
    values = (value for node in network.model.graph.node for value in node.output if value)
    return frozenset(value for value in values if _own_name(value) in given)


def written(network: Network) -> frozenset[str]:
    """What the Identity nodes before the copies of a network of copies write: a runtime must really do so."""
    if not network.shared or network.model is None:
        return frozenset()
    values = (value for node in network.model.graph.node for value in node.output)
    return frozenset(value for value in values if value.startswith(_WRITTEN))


def chain_input(network: Network, result: Array) -> str | None:
    """The input that a chain of copies may feed with the first output; None where no input is like it.

    Args:
        network: One copy.
        result: Its first output.
    """
    assert network.model is not None  # noqa: S101  # a brick, never a file
    outputs = {value.name for value in network.model.graph.output[1:]}
    for name, array in network.feeds.items():
        if array.shape == result.shape and array.dtype == result.dtype and name not in outputs:
            return name
    return None


def ordinary(values: Array) -> bool:
    """Whether values are such as a chain may hand on: finite, and none so small that arithmetic on it is slow."""
    if values.dtype.kind != "f":
        return values.dtype.kind in "iub"
    size = np.abs(values)
    tiny = np.finfo(values.dtype).tiny
    return bool(np.isfinite(size).all() and not ((size > 0) & (size < tiny)).any())


def _own_name(value: str) -> str:
    """The name that a copy's value has in the brick."""
    return value.rpartition("@")[0] or value


def distinct(array: Array, copy: int) -> Array:
    """The values in memory of their own, turned by as many places as the number of the copy says.

    Turned values keep their distribution and their range, whatever they mean.
    """
    return np.roll(array.reshape(-1), copy).reshape(array.shape) if copy else array.copy()


def renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """A node with its values renamed, those that its bodies capture included."""
    twin = onnx.NodeProto()
    twin.CopyFrom(node)
    twin.ClearField("name")
    _rename(twin, names)
    return twin


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    node.input[:] = [names.get(value, value) for value in node.input]
    node.output[:] = [names.get(value, value) for value in node.output]
    for body in _bodies(node):
        inside = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
        inside.update(value for inner in body.node for value in inner.output)
        outer = {name: own for name, own in names.items() if name not in inside}
        for inner in body.node:
            _rename(inner, outer)
        for value in body.output:
            value.name = outer.get(value.name, value.name)


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs
