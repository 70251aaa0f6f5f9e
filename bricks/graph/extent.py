"""How large control flow becomes where it is written out, which is asked before it is done."""

from __future__ import annotations

from onnx import NodeProto

from ...models.control.choices import Course, body_of
from ...models.subgraphs import all_nodes

__all__ = ["size_of"]

_LOOP_INPUTS = 2
"""Inputs of a Loop before those that it carries."""

_AROUND_BYTES = 128
"""The most of an operator that slices or stacks and of its constant, beside names that the file gives."""


def size_of(node: NodeProto, course: Course) -> tuple[int, int]:
    """The most operators that an operator becomes, those in bodies in its body counted once each; and their bytes.

    Each iteration slices what a Scan reads, and gives what is stacked an axis more.
    """
    if isinstance(course, str):
        body, times, around = body_of(node, f"{course}_branch"), 1, 0
    else:
        body, times = body_of(node, "body"), course
        scanned = _scanned(node)
        stacked = node.output[max(0, len(node.input) - (scanned if node.op_type == "Scan" else _LOOP_INPUTS)) :]
        around = max(0, scanned) + sum(1 for name in stacked if name)
    layers = times * (1 + around + sum(1 for _ in all_nodes(body.node))) + len(node.output)
    longest = max(len(name) for name in (node.name, *node.input, *node.output))
    return layers, times * int(body.ByteSize()) + layers * (_AROUND_BYTES + 4 * longest)


def _scanned(node: NodeProto) -> int:
    """How many inputs an operator reads a slice of in each iteration."""
    return int(next((one.i for one in node.attribute if one.name == "num_scan_inputs"), 0))
