"""Layers of a model that compute something together, found by their structure and their constants."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from ...bricks.constants import decode_constant
from ...bricks.graph.graph import ModelGraph
from ...bricks.layer import Layer, LayerState, Operand, Role
from ...bricks.operators import DEQUANTIZE

__all__ = ["ELEMENTWISE", "Array", "Match", "View"]

Array = npt.NDArray[Any]

ELEMENTWISE = frozenset(
    {"Abs", "Ceil", "Clip", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log",
     "Neg", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Softplus", "Sqrt", "Tanh"}
)  # fmt: skip
"""Operators of one input that treat every element by itself."""


@dataclass(frozen=True, slots=True)
class Match:
    """Layers that compute something together.

    Attributes:
        layers: Their indices, ascending.
        value: What they make.
        reads: What they make it of, in an order that the rewrite knows.
        form: Which of several forms they have.
        broken_by: Layers or outputs beyond them that read a value in their midst, by name.
        numbers: Constants that the rewrite needs, by name.
        twin: For repeated work: the value that already holds the same.
    """

    layers: tuple[int, ...]
    value: str
    reads: tuple[str, ...]
    form: str = ""
    broken_by: tuple[str, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    twin: str = ""


class View:
    """A model's graph as patterns see it: only what is computed at inference counts.

    Args:
        graph: The model's own graph.
        contents: Returns what a large constant holds, by its name, None where that is not known.
    """

    def __init__(self, graph: ModelGraph, contents: Callable[[str], Array | None] | None = None) -> None:
        self.graph = graph
        self._contents = contents
        self._outputs = frozenset(graph.outputs)

    def live(self, *operators: str) -> Iterator[Layer]:
        """Live layers with one of these operators of ONNX's own, in the model's order."""
        for index in self.graph.live:
            layer = self.graph.layers[index]
            if layer.op_type in operators and not layer.domain:
                yield layer

    def maker(self, value: str, *operators: str) -> Layer | None:
        """The live layer that makes a value; None where there is none, or it has another operator."""
        index = self.graph.producer(value)
        if index is None:
            return None
        layer = self.graph.layers[index]
        fits = layer.state is LayerState.LIVE and not layer.domain and layer.op_type in operators
        return layer if fits else None

    def readers(self, value: str, *operators: str) -> list[Layer]:
        """The layers that read a value, of all operators where none is named."""
        found = [self.graph.layers[index] for index in self.graph.consumers(value)]
        return [one for one in found if not operators or (one.op_type in operators and not one.domain)]

    def is_output(self, value: str) -> bool:
        """Whether the model hands the value out."""
        return value in self._outputs

    def shape(self, value: str) -> tuple[int, ...] | None:
        """Its shape; None where it is not known."""
        found = self.graph.types.get(value)
        return None if found is None else found.shape

    def dtype(self, value: str) -> str | None:
        """Its element type; None where it is not known."""
        found = self.graph.types.get(value)
        return None if found is None else found.dtype

    def number(self, layer: Layer, slot: int) -> float | None:
        """The one number that a constant input holds, everywhere the same; None for anything else."""
        array = self.array(layer, slot)
        if array is None or not array.size or array.dtype.kind not in "fiu":
            return None
        first = float(array.flat[0])
        return first if bool((array == array.flat[0]).all()) else None

    def array(self, layer: Layer, slot: int) -> Array | None:
        """The values of a small constant input; None for anything else."""
        if slot >= len(layer.operands):
            return None
        operand = layer.operands[slot]
        if operand.role is not Role.CONSTANT or operand.data is None:
            return None
        return np.asarray(decode_constant(operand.data))

    def content(self, layer: Layer, slot: int) -> Array | None:
        """The values of a constant input, of a large one too where they are known; None for anything else."""
        operand = self.weight(layer, slot)
        if operand is None or operand.data is not None or self._contents is None:
            return self.array(layer, slot)
        return self._contents(operand.value)

    def weight(self, layer: Layer, slot: int) -> Operand | None:
        """A constant input, small or large; None for what is computed."""
        if slot >= len(layer.operands):
            return None
        operand = layer.operands[slot]
        return operand if operand.role in {Role.CONSTANT, Role.WEIGHT} else None

    def is_constant(self, layer: Layer) -> bool:
        """Whether a layer computes constants only; conversions of quantised weights may be left to the runtime."""
        reads = any(operand.role is Role.ACTIVATION for operand in layer.operands)
        live = layer.state is LayerState.LIVE and layer.op_type == DEQUANTIZE
        return layer.state is LayerState.FOLDED or (live and not reads)

    def attribute(self, layer: Layer, name: str) -> Any:
        """An attribute as the source has it; None where it is not given."""
        for attribute in layer.node.attribute:
            if attribute.name == name:
                return onnx.helper.get_attribute_value(attribute)
        return None

    def broken_by(self, layers: Collection[int], value: str) -> tuple[str, ...]:
        """What reads a value in the midst of some layers from beyond them.

        Args:
            layers: The layers.
            value: What they make together, which anybody may read.
        """
        found: dict[str, None] = {}
        for index in layers:
            for name in self.graph.layers[index].outputs:
                if not name or name == value:
                    continue
                if self.is_output(name):
                    found[f"output {name}"] = None
                for reader in self.graph.consumers(name):
                    if reader not in layers:
                        found[self.graph.layers[reader].name] = None
        return tuple(found)

    def match(
        self,
        layers: Iterable[int],
        value: str,
        reads: Iterable[str],
        *,
        form: str = "",
        numbers: Mapping[str, float] | None = None,
        twin: str = "",
    ) -> Match:
        """What was found, with what breaks it."""
        members = tuple(sorted(set(layers)))
        return Match(members, value, tuple(reads), form, self.broken_by(set(members), value), numbers or {}, twin)
