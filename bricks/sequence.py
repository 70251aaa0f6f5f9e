"""A sequence: at most G layers, consecutive in the model's order, that form a valid network."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LayerSequence"]


@dataclass(frozen=True, slots=True)
class LayerSequence:
    """One occurrence of a brick in a model.

    Attributes:
        layers: Indices of its layers (``Layer.index``), ascending.
        key: The key of its brick.
        inputs: Source names of the activations it reads from outside, in the order of the brick's inputs.
        weights: Source names of its weights, in the order of the brick's weight inputs.
        outputs: Source names of the values it exposes, in the order of the brick's outputs.
    """

    layers: tuple[int, ...]
    key: str
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]
