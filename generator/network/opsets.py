"""Versions of operator sets at which operators mean the same: networks that share one can be put into one network."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from ...bricks.canonical import ANY, versions_around
from ...models.names import plain_domain
from ...models.subgraphs import all_nodes

__all__ = ["common_ranges", "opset_ranges"]


def opset_ranges(model: onnx.ModelProto) -> dict[str, tuple[int, int]]:
    """Versions of each domain at which all nodes of a model mean what they mean in it: the first, and the first not.

    Bricks of executed graphs bear the versions that their operators were last changed in, which differ from brick to
    brick; most of them mean the same at some version that all allow.
    """
    imported = {plain_domain(entry.domain): entry.version for entry in model.opset_import}
    ranges: dict[str, tuple[int, int]] = {}
    for node in all_nodes(model.graph.node):
        domain = plain_domain(node.domain)
        low, high = ranges.get(domain, (1, ANY))
        since, until = versions_around(domain, node.op_type, imported.get(domain, 1))
        ranges[domain] = max(low, since), min(high, until)
    return ranges


def common_ranges(
    one: Mapping[str, tuple[int, int]], other: Mapping[str, tuple[int, int]]
) -> dict[str, tuple[int, int]] | None:
    """Versions of each domain that both allow; None where there are none of some domain."""
    merged = dict(one)
    for domain, (low, high) in other.items():
        known = merged.get(domain, (low, high))
        merged[domain] = max(low, known[0]), min(high, known[1])
    return merged if all(low < high for low, high in merged.values()) else None
