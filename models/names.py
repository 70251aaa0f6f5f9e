"""Names in a model: text that a broken file may not keep to, and operators with their domains."""

from __future__ import annotations

from onnx import NodeProto

from ..errors import BrokenModel

__all__ = ["is_standard", "kind_of", "plain_domain", "require_text"]

_STANDARD = frozenset({"", "ai.onnx"})
"""Spellings of ONNX's own domain."""


def require_text(*names: object) -> None:
    """Check that names are text; the protobuf parser hands out plain bytes for what is not UTF-8.

    Raises:
        BrokenModel: One is not; the message shows it.
    """
    for name in names:
        if type(name) is not str:
            raise BrokenModel(f"the name {name!r} is not UTF-8")


def plain_domain(domain: str) -> str:
    """A domain in the one spelling that is compared: empty for ONNX's own."""
    return "" if domain in _STANDARD else domain


def is_standard(node: NodeProto) -> bool:
    """Whether a node is of ONNX's own operators."""
    return node.domain in _STANDARD


def kind_of(node: NodeProto) -> str:
    """The operator of a node, behind its domain and a dot where that is not ONNX's own."""
    return node.op_type if node.domain in _STANDARD else f"{node.domain}.{node.op_type}"
