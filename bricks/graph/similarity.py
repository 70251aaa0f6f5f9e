"""How much models share: the similarity of each pair (DLBricks, section 2.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SimilarityMatrix", "jaccard", "similarity_matrix"]


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
