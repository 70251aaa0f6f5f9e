"""Outputs that are copies of inputs: the runtime copies them at each execution, and the caller has them already.

A rewrite cannot leave an output out, since callers read it. So these are told, and the saving of a file without them
is proven apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from ...models.subgraphs import attribute_of
from .rewrite import Array, RewriteGraph

_BRANCHES = ("then_branch", "else_branch")


@dataclass(frozen=True, slots=True)
class CopiedOutput:
    """An output that is a copy of an input.

    Attributes:
        output: The output.
        source: The input.
        nbytes: Bytes that are copied.
        branch: The branch of an If in which this is so; empty if it always is.
    """

    output: str
    source: str
    nbytes: int
    branch: str = ""


def copied_outputs(graph: RewriteGraph, run: Mapping[str, Array]) -> tuple[CopiedOutput, ...]:
    """Return the outputs that are copies of inputs.

    Args:
        graph: The model.
        run: The inputs of one run, by name.
    """
    copies = list[CopiedOutput]()
    for output in graph.wanted:
        by_source = _sources(graph, output)
        copies += [
            CopiedOutput(output, source, run[source].nbytes, branch)
            for branch, source in by_source.items()
            if source in graph.given and source in run
        ]
    return tuple(copies)


def without_outputs(graph: RewriteGraph, names: frozenset[str]) -> onnx.ModelProto | None:
    """Return the model without some outputs; None if nothing would be left."""
    remaining = [value for value in graph.outputs if value.name not in names]
    return graph.build((), remaining) if remaining else None


def _sources(graph: RewriteGraph, value: str) -> dict[str, str]:
    """Return the value that an output is a copy of, by the branch in which it is; empty for always."""
    value = _original(graph, value)
    maker = graph.maker(value)
    if maker is None or maker.op_type != "If":
        return {"": value}
    slot = list(maker.output).index(value)
    sources = {}
    for branch in _BRANCHES:
        body = attribute_of(maker, branch)
        name, makers = body.output[slot].name, {node.output[0]: node for node in body.node if node.output}
        while name in makers and makers[name].op_type == "Identity":
            name = makers[name].input[0]
        if name not in makers:
            sources[branch] = _original(graph, name)
    first, *others = sources.values() or [""]
    return {"": first} if others == [first] else sources


def _original(graph: RewriteGraph, value: str) -> str:
    while (maker := graph.maker(value)) is not None and maker.op_type == "Identity":
        value = maker.input[0]
    return value
