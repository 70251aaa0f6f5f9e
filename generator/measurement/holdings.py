"""Which bricks the models are made of: what must be visited beside them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ...bricks.inference.shapes import ShapeOracle
from ...bricks.suite.suite import Suite
from ...errors import DlbricksError
from ..decomposition.decomposer import Cut, Decomposer
from .item import Item
from .selection import Selection
from .subjects import ModelItems

__all__ = ["companions", "models_bricks"]


def models_bricks(sources: ModelItems, suite: Suite, *, oracle: ShapeOracle | None = None) -> dict[str, frozenset[str]]:
    """Model key to the keys of its bricks, for models all of whose bricks are in a suite.

    What the suite notes is taken as it is; other models are cut as the suite was, where their own graph says how.
    """
    known = frozenset(suite.keys)
    noted = suite.annotations or {}
    found: dict[str, frozenset[str]] = {}
    cut = Cut(suite.granularity, suite.overlap, suite.connected, "source")
    with Decomposer(cut, oracle=oracle) as decomposer:
        for name, key in sources.names:
            if key is None or key in found:
                continue
            if name in noted:
                keys = frozenset(noted[name])
            elif suite.graph == "source" and name in sources.models:
                try:
                    keys = frozenset(part.key for part in decomposer(sources.models[name]).sequences)
                except DlbricksError:  # it is visited beside other bricks; ``estimate`` says what is wrong with it
                    continue
            else:
                continue
            if keys and keys <= known:
                found[key] = keys
    return found


def companions(
    bricks: Selection, items: Sequence[Item], holds: Mapping[str, Collection[str]], models: Selection
) -> list[Item]:
    """Bricks that are measured already, and are visited once more: beside models that are to be measured."""
    wanted = {key for model in models.pending for key in holds.get(model.key, ())}
    settled = {failure.key for failure in bricks.failed}
    pending = {item.id for item in bricks.pending}
    return [item for item in items if item.key in wanted and item.id not in pending and item.key not in settled]
