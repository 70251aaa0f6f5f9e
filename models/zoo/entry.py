"""One line of the zoo's list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["ZooEntry"]


@dataclass(frozen=True, slots=True)
class ZooEntry:
    """One architecture of the zoo.

    Attributes:
        name: What the user types.
        task: What the model is for: ``image classification``, ``language modelling``.
        family: Kind of architecture: ``cnn``, ``transformer``, ``mlp``, or ``hybrid`` where several carry the work.
        origin: ``light`` (a file of the onnx wheel), ``built-in`` (written by code), ``export`` (from transformers).
        extra: The optional dependencies that it needs, as in ``pip install 'dlbricks[zoo]'``; None for none.
        dims: Named dimensions that can be chosen beside the batch, with their defaults.
        denormals: Why the architecture itself makes denormal numbers; empty where it does not.
    """

    name: str
    task: str
    family: Literal["cnn", "transformer", "hybrid", "mlp"]
    origin: Literal["light", "built-in", "export"]
    extra: str | None = None
    dims: tuple[tuple[str, int], ...] = ()
    denormals: str = ""
