"""How much models share: repetition within and across them, and pairwise similarity (DLBricks, section 2.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..sequence import LayerSequence
from .graph import ModelGraph

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "OperatorRepetition",
    "Repetition",
    "SimilarityMatrix",
    "jaccard",
    "layer_keys",
    "repetition",
    "sequence_repetition",
    "similarity_matrix",
]


def jaccard(one: AbstractSet[str], other: AbstractSet[str]) -> float:
    """Shared share of two sets of keys, ``|A & B| / |A | B|``; two empty sets are equal, 1.

    Args:
        one: Unique layer or brick keys of a model.
        other: Those of another.
    """
    union = len(one | other)
    return len(one & other) / union if union else 1.0


@dataclass(frozen=True, slots=True)
class SimilarityMatrix:
    """Jaccard similarity of every pair of models; symmetric, with 1 on the diagonal.

    Attributes:
        names: The models.
        values: One row per model, in the order of ``names``.
    """

    names: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]

    def frame(self) -> pd.DataFrame:
        """As a pandas frame with the models as rows and columns."""
        import pandas as pd

        return pd.DataFrame(self.values, index=list(self.names), columns=list(self.names))


def similarity_matrix(models: Mapping[str, Iterable[str]]) -> SimilarityMatrix:
    """Similarity of every pair of models of a zoo.

    Args:
        models: Layer or brick keys by model name; repetitions do not count.
    """
    unique = {name: frozenset(keys) for name, keys in models.items()}
    upper: dict[tuple[str, str], float] = {}
    names = tuple(unique)
    for row, one in enumerate(names):
        for other in names[row:]:
            upper[one, other] = upper[other, one] = jaccard(unique[one], unique[other])
    return SimilarityMatrix(names, tuple(tuple(upper[one, other] for other in names) for one in names))


@dataclass(frozen=True, slots=True)
class OperatorRepetition:
    """Repetition of one operator.

    Attributes:
        operator: ``Conv``, or ``Conv+Relu`` for a sequence of two layers.
        total: Occurrences.
        unique: Different ones among them.
    """

    operator: str
    total: int
    unique: int

    @property
    def share(self) -> float:
        """Unique share, ``unique / total``."""
        return self.unique / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True)
class Repetition:
    """How often the same layers or sequences occur in a set of models.

    Attributes:
        total: Occurrences.
        unique: Different ones among them: what has to be measured.
        operators: By operator, most frequent first.
    """

    total: int
    unique: int
    operators: tuple[OperatorRepetition, ...]

    @property
    def share(self) -> float:
        """Unique share, ``unique / total``; 0 for nothing."""
        return self.unique / self.total if self.total else 0.0

    def frame(self) -> pd.DataFrame:
        """The operators as a pandas frame: ``operator total unique share``."""
        import pandas as pd

        rows = [(entry.operator, entry.total, entry.unique, entry.share) for entry in self.operators]
        return pd.DataFrame(rows, columns=["operator", "total", "unique", "share"])


def layer_keys(graph: ModelGraph) -> frozenset[str]:
    """The unique layers of a model, by key."""
    return frozenset(graph.layers[index].key for index in graph.live)


def repetition(graphs: Iterable[ModelGraph]) -> Repetition:
    """Repetition of the live layers of one model or of a zoo."""
    return _count((graph.layers[index].op_type, graph.layers[index].key) for graph in graphs for index in graph.live)


def sequence_repetition(models: Iterable[tuple[ModelGraph, Iterable[LayerSequence]]]) -> Repetition:
    """Repetition of the sequences of one model or of a zoo; an operator is the chain of a sequence's operators."""
    return _count(
        ("+".join(graph.layers[index].op_type for index in sequence.layers), sequence.key)
        for graph, found in models
        for sequence in found
    )


def _count(occurrences: Iterable[tuple[str, str]]) -> Repetition:
    """Count (operator, key) pairs."""
    totals: Counter[str] = Counter()
    keys: dict[str, set[str]] = {}
    for operator, key in occurrences:
        totals[operator] += 1
        keys.setdefault(operator, set()).add(key)
    ordered = sorted(totals, key=lambda operator: (-totals[operator], operator))
    return Repetition(
        total=sum(totals.values()),
        unique=len(set().union(*keys.values())),
        operators=tuple(OperatorRepetition(operator, totals[operator], len(keys[operator])) for operator in ordered),
    )
