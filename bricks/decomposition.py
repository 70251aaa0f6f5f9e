"""A decomposed model: a value that is computed once and read by every later step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ..errors import BrokenModel, DlbricksError, unforeseen
from ..models import ModelSource
from ..models.user_inputs import spelled_option
from .cutting.sequences import KeyedWindow, sequences
from .graph.footprint import level_name
from .graph.model_graph import ExecutedModel, ModelGraph, deciding_inputs
from .layer import LayerSequence, TensorType

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Decomposition:
    """A model and the sequences that it was cut into.

    Attributes:
        source: The model.
        own: Its graph without the runtime's changes; its key identifies ground truth.
        graph: The graph that was cut: ``own`` or the executed graph.
        sequences: The sequences to compose it from; overlapping ones if requested.
        units: Layers that sequences never separate, in an order in which each sequence contains consecutive units.
        footprint_class: The footprint class, in bytes, that its bricks are measured in.
        windows: All windows that may compete for the lower bound; empty if only the sequences can.
        executed: Its executed graph; None if it was not requested.
    """

    source: ModelSource
    own: ModelGraph
    graph: ModelGraph
    sequences: tuple[LayerSequence, ...]
    units: tuple[tuple[int, ...], ...]
    footprint_class: int
    windows: tuple[KeyedWindow, ...] = ()
    executed: ExecutedModel | None = None

    @property
    def name(self) -> str:
        """The model's name."""
        return self.source.name

    @property
    def keys(self) -> frozenset[str]:
        """Keys of its bricks."""
        return frozenset(part.key for part in self.sequences)

    @property
    def level(self) -> str:
        """Name of its footprint class."""
        return level_name(self.footprint_class)

    @property
    def invented(self) -> dict[str, TensorType]:
        """Inputs whose values decide shapes or time, and nobody gave: seeded values stand for them."""
        return _deciding(self.source, self.own)[1]


@dataclass(frozen=True, slots=True)
class Failed:
    """A model that cannot be decomposed."""

    source: ModelSource
    reason: str

    @property
    def name(self) -> str:
        """The model's name."""
        return self.source.name


def alone(graph: ModelGraph) -> tuple[LayerSequence, ...]:
    """Return the sequences of a graph at G = 1."""
    return tuple(sequences(graph, 1))


def suspects(source: ModelSource, graph: ModelGraph) -> str:
    """Return words on what a runtime may have refused: sizes and deciding values that are given, made up or assumed.

    Args:
        source: The model.
        graph: Its own graph.

    Returns:
        A clause in parentheses for each kind; empty if there is none.
    """
    options_given, invented = _deciding(source, graph)
    words = f" (suspect: {', '.join(options_given)})" if options_given else ""
    if invented:
        listed = ", ".join(map(repr, invented))
        options = " ".join(dict.fromkeys(spelled_option(name, kind.shape) for name, kind in invented.items()))
        words += f" (suspect: the values of {listed} are made up; give yours with {options})"
    return words + _sizes(source)


def _sizes(source: ModelSource) -> str:
    """Return words on the sizes that are given, and on those that are assumed."""
    return "".join(f" (suspect: {sizes})" for sizes in (", ".join(source.given_sizes()), source.assumed()) if sizes)


def _deciding(source: ModelSource, graph: ModelGraph) -> tuple[tuple[str, ...], dict[str, TensorType]]:
    """Return the options that give inputs whose values decide something, and the types of those that nobody gave."""
    given, names = source.given.names(), deciding_inputs(graph)
    kinds = {name: graph.inputs[name] for name in names if name not in given}
    options = dict.fromkeys(given[name] for name in names if name in given)
    return tuple(options), {name: kind for name, kind in kinds.items() if kind is not None}


def attempt(source: ModelSource, do: Callable[[ModelSource], T]) -> T | Failed:
    """Apply a function to a model, or return why it failed: the other models of a batch go on.

    A model is untrusted and may break an assumption that nobody knew of.
    """
    try:
        return do(source)
    except BrokenModel as error:  # sizes that contradict each other look like a broken file
        return Failed(source, f"{error}{_sizes(source)}")
    except DlbricksError as error:
        return Failed(source, str(error))
    except Exception as error:  # noqa: BLE001  # the boundary of one model
        return Failed(source, unforeseen(source.name, error))
