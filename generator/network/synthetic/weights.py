"""Seeded synthetic weights for anything in skeleton form: a zoo model, a brick, a user's structure."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import onnx

from ....models.shapes import declared_shape
from ....models.skeleton import is_weight
from .draws import draw
from .plan import plan_draws

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
    recipes = plan_draws(model)
    values = (value for value in model.graph.input if is_weight(value))
    return {
        value.name: draw(
            recipes[value.name],
            value.type.tensor_type.elem_type,
            declared_shape(value.type),
            seed=seed,
            ordinal=ordinal,
        )
        for ordinal, value in enumerate(values)
    }
