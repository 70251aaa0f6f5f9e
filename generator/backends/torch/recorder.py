"""Records which functions of PyTorch a piece of code calls on tensors, as a graph.

What is recorded is the call as it was written (``torch.conv2d``, not the kernels below it), so that running the graph
costs what a hand-written PyTorch program would. Calls that no input of the graph decides are not recorded: their
results are constants.
"""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ["Recorder"]

_FACTORIES = frozenset({torch.zeros, torch.ones, torch.full, torch.arange, torch.eye, torch.randn, torch.rand})
"""Make tensors of numbers alone."""


class Recorder(TorchFunctionMode):  # type: ignore[misc]  # PyTorch is not typed here
    """Records while it is active (``with recorder:``); tensors are real, and all calls are executed.

    Attributes:
        label: Names what is recorded from now on.
        generating: Whether tensors that are made of numbers alone are recorded, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.label = ""
        self.generating = False
        self._graph = fx.Graph()
        self._nodes = WeakTensorKeyDictionary()
        self._constants: dict[str, torch.Tensor] = {}

    def input(self, tensor: torch.Tensor) -> None:
        """Declare the next input of the graph."""
        self._nodes[tensor] = self._graph.placeholder(f"input_{len(self._nodes)}")

    def is_constant(self, tensor: torch.Tensor) -> bool:
        """Whether no input of the graph decides a tensor."""
        node = self._nodes.get(tensor)
        return node is None or node.op == "get_attr"

    def finish(self, outputs: Iterable[torch.Tensor]) -> fx.GraphModule:
        """What was recorded, with its constants as plain attributes, which are found faster than buffers."""
        self._graph.output(tuple(self._node(tensor) for tensor in outputs))
        module = fx.GraphModule(self._constants, self._graph, "Network")
        for name, tensor in self._constants.items():
            delattr(module, name)
            module.__dict__[name] = tensor
        return module

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        result = func(*args, **named)
        found: list[torch.Tensor] = []
        map_aggregate((args, dict(named)), lambda value: _collect(value, found))
        decided = any(not self.is_constant(tensor) for tensor in found)
        if not decided and not (self.generating and func in _FACTORIES):
            return result
        results = result if isinstance(result, tuple | list) else (result,)
        fresh = [value for value in results if isinstance(value, torch.Tensor)]
        if not fresh or any(value is tensor for value in fresh for tensor in found):
            return result  # a number, or a call that changes nothing (to the type that a tensor has already)
        self._record(func, args, named, result)
        return result

    def _record(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        own = map_aggregate(args, self._node)
        named = map_aggregate(dict(kwargs), self._node)
        node = self._graph.create_node("call_function", func, own, named, self.label)
        if isinstance(result, torch.Tensor):
            self._nodes[result] = node
            return
        for place, value in enumerate(result):
            self._nodes[value] = self._graph.create_node(
                "call_function", operator.getitem, (node, place), {}, self.label
            )

    def _node(self, value: Any) -> Any:
        """The node of a tensor; other values as they are."""
        if not isinstance(value, torch.Tensor):
            return value
        node = self._nodes.get(value)
        if node is None:
            name = f"constant_{len(self._constants)}"
            self._constants[name] = value
            node = self._nodes[value] = self._graph.create_node("get_attr", name)
        return node


def _collect(value: Any, found: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        found.append(value)
    return value
