"""Versions of operator sets at which operators mean the same: networks that share one can be put into one network."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import onnx

from ...models.names import plain_domain
from ...models.subgraphs import all_nodes

__all__ = ["ANY", "common_ranges", "opset_ranges"]

ANY = 1 << 31
"""Later than every version of an operator set."""


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
        since, until = _meaning(node.op_type, domain, imported.get(domain, 1))
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


@cache
def _meaning(operator: str, domain: str, version: int) -> tuple[int, int]:
    """The versions around one at which an operator means the same; that one alone where ONNX does not define it."""
    changes = _history().get((domain, operator), ())
    since = max((change for change in changes if change <= version), default=None)
    if since is None:
        return version, version + 1
    return since, min((change for change in changes if change > version), default=ANY)


@cache
def _history() -> dict[tuple[str, str], tuple[int, ...]]:
    """Versions in which each operator of ONNX was defined or changed."""
    found: dict[tuple[str, str], list[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        found.setdefault((schema.domain, schema.name), []).append(schema.since_version)
    return {name: tuple(sorted(versions)) for name, versions in found.items()}
