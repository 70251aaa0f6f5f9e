"""Seeded synthetic weights for anything in skeleton form: a zoo model, a brick, a user's structure.

How large each weight should be follows from the model's structure alone. He initialisation (He et al. 2015) gives a
filter the variance ``1 / (fan_in · E[x²])``, so that its output has unit second moment; after a ReLU ``E[x²]`` is 1/2
and this is the well-known ``2 / fan_in``. Here ``E[x²]`` is not assumed but carried along: one pass over the nodes
keeps mean and root mean square of every value. Residual sums then grow with the square root of the depth instead of
doubling per block, and the logits in front of a softmax stay near one, so that no exponential underflows into
denormal numbers. What the pass does not know (the inputs of a lone layer) counts as rectified: plain He. Estimates
err on the large side, which only makes later weights a little smaller.

``rules`` holds what each operator does, ``walk`` what is known so far; this module holds the pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy.typing as npt
import onnx
from onnx import NodeProto

from ....models.shapes import declared_shape, infer_shapes
from ....models.skeleton import is_weight
from ....models.subgraphs import bodies
from ..domains import Kind, Site
from ..legality import structure_of
from .draws import Draw, draw
from .quantised import scale_biases
from .rules import RULES, unknown_operator
from .walk import FLOATS, Walk

__all__ = ["synthesise"]


def synthesise(model: onnx.ModelProto, *, seed: int) -> dict[str, npt.NDArray[Any]]:
    """One array for every weight input of a skeleton-form model.

    Filters are scaled so that activations keep unit second moment (He et al. 2015; see ``walk``),
    biases and running means are small, normalisation scales near one, variances between 0.5 and 1.5, quantisation
    scales positive, indices within the axis that they address. Everything is finite and free of denormal numbers.

    An array depends on the seed, the weight's position among the weights, its shape and its role in the structure,
    never on names: a renamed model gets equal weights.

    Args:
        model: Skeleton-form ONNX, shapes of weights static.
        seed: At least 0.

    Returns:
        Name to array, in the order of the graph's inputs. Arrays are fresh and writable.

    Example:
        >>> from dlbricks.models.zoo import structure
        >>> weights = synthesise(structure("squeezenet").model, seed=0)
        >>> weights["conv1_w_0"].shape
        (64, 3, 3, 3)
    """
    planned = _planned(model)
    values = (value for value in model.graph.input if is_weight(value))
    arrays = {
        value.name: draw(
            planned[value.name],
            value.type.tensor_type.elem_type,
            declared_shape(value.type),
            seed=seed,
            ordinal=ordinal,
        )
        for ordinal, value in enumerate(values)
    }
    scale_biases(model.graph, arrays)
    return arrays


def _planned(model: onnx.ModelProto) -> dict[str, Draw]:
    """The distribution of every weight input of a skeleton, by name.

    Args:
        model: Skeleton-form ONNX: a whole model or a brick.
    """
    graph = infer_shapes(model, propagate=False).graph
    walk = Walk(graph)
    _pass(walk, graph.node)
    return {name: walk.settle(name) for name in walk.weights}


def _pass(walk: Walk, nodes: Iterable[NodeProto]) -> None:
    """Pass over nodes in order, subgraphs included."""
    for node in nodes:
        for body in bodies(node):
            _pass(walk, body.node)
        _settle_integers(walk, node)
        profile = walk.follow(node)
        moments = profile.moments() if profile else RULES.get(node.op_type, unknown_operator)(walk, node)
        walk.record(node, moments, profile)


def _settle_integers(walk: Walk, node: NodeProto) -> None:
    """Settle integer weights whose values must be legal for this operator."""
    for slot, value in enumerate(node.input):
        for name in walk.sources.get(value, ()):
            if name in walk.draws or walk.weights[name] in FLOATS:
                continue
            domain = structure_of(Site(node, slot, walk.shapes, walk.constants))
            if domain is not None and domain.kind is Kind.RANGE:
                walk.draws[name] = Draw("integer", 0, int(domain.high))
            elif domain is not None:
                walk.draws[name] = Draw("values", values=tuple(map(int, domain.values)))
