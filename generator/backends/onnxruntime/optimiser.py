"""ONNX Runtime's optimiser: the operators that it makes, and how it names values in its blocked layout (NCHWc)."""

from __future__ import annotations

import re
from collections.abc import Iterable

import onnx

from ....bricks.graph.executed import Layouts
from ..optimiser import OptimiserTraits

__all__ = ["FROM_BLOCKED", "REORDERS", "TRAITS", "channels_last_values"]

_DOMAIN = "com.microsoft.nchwc"

FROM_BLOCKED = "ReorderOutput"
"""Brings a value out of the blocked layout."""

REORDERS = frozenset({"ReorderInput", FROM_BLOCKED})
"""Changes between the network's own layout and the blocked one."""

TRAITS = OptimiserTraits(
    layouts=Layouts(
        changes=frozenset(f"{_DOMAIN}.{name}" for name in REORDERS),
        domains=frozenset({_DOMAIN}),
        prefixes=("Nhwc",),
        flags=frozenset({"channels_last"}),
    ),
    transposing=frozenset(f"com.microsoft.{name}" for name in ("FusedGemm", "FusedMatMul", "TransposeMatMul")),
    prefixes=("Fused", "Nhwc"),
    blocked=re.compile(r"(?P<value>.+?)(?P<step>_bn|_mul)?_nchwc(_token_\d+)?"),
    summands=3,
    renamed=re.compile(r"(?P<name>.+?)(/duplicated)*(_token_\d+)?"),
)


def channels_last_values(nodes: Iterable[onnx.NodeProto]) -> frozenset[str]:
    """What operators read and write that work with channels last: transpositions around them are changes of layout.

    Quantised convolutions do (QLinearConv), and poolings between them (NhwcMaxPool).
    """
    return frozenset(
        value
        for node in nodes
        if node.op_type.startswith(TRAITS.layouts.prefixes)
        or any(attribute.name in TRAITS.layouts.flags and attribute.i for attribute in node.attribute)
        for value in (*node.input, *node.output)
        if value
    )
