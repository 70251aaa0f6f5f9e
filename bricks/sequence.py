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
        copies: Those of its layers that other sequences hold too, each for itself: a runtime executes, or folds, one
            for each reader. They are counted in the sequence that has them without being a copy.
        reuse: Footprint class, in bytes, that its weights are found in, since an iteration before has read them
            (``graph.reuse``); 0: that of its model.
    """

    layers: tuple[int, ...]
    key: str
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]
    copies: tuple[int, ...] = ()
    reuse: int = 0

    @property
    def own(self) -> tuple[int, ...]:
        """Its layers without copies: each live layer of a model is in one sequence so."""
        return tuple([index for index in self.layers if index not in self.copies]) if self.copies else self.layers
