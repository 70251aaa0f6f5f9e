"""Which bricks the models are made of: what must be visited beside them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...bricks.inference.shapes import ShapeOracle
from ...bricks.suite.suite import Suite
from ...db.values import Stack
from ...errors import DlbricksError
from ..decomposition.cutter import Cut, Cutter
from .item import Item
from .pending import Selection
from .subjects import ModelItems

__all__ = ["Membership", "companions", "membership_of"]

_SAME_SHAPES = 0.5
"""Share of a model's bricks that a suite of other shapes does not have: few layers do without any dynamic one."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Which bricks of a suite the models are made of.

    Attributes:
        bricks: Model key to the keys of its bricks, for models all of whose bricks are in the suite.
        apart: Name of each model whose shapes are not those of the suite, and how it is bound.
        levels: Model key to the footprint class of the graph that was cut, where the suite notes it.
    """

    bricks: Mapping[str, frozenset[str]]
    apart: Mapping[str, str]
    levels: Mapping[str, int] = field(default_factory=dict)


def membership_of(
    sources: ModelItems, suite: Suite, stack: Stack, *, threads: int = 1, oracle: ShapeOracle | None = None
) -> Membership:
    """Find which bricks the models are made of.

    What the suite notes is taken as it is, of source layers only for models whose shapes are static. Other models are
    cut as the suite was, along what this runtime fuses or executes; one that has other bricks then, since another
    runtime made the suite, is visited beside bricks of its class.

    Args:
        sources: The models.
        suite: The bricks.
        stack: The runtime that is asked what it fuses, or executes.
        threads: Its threads.
        oracle: Finds the shapes that inference does not.
    """
    known = frozenset(suite.keys)
    noted = suite.annotations or {}
    found: dict[str, frozenset[str]] = {}
    apart: dict[str, str] = {}
    own = suite.graph == "source"
    cut = Cut(suite.granularity, suite.overlap, suite.connected, suite.graph)
    if not own:
        cut = replace(cut, backend=stack.backend, device=stack.device, options=stack.options, threads=threads)
    with Cutter(cut, oracle=oracle) as cutter:
        for name, key in sources.names:
            if key is None or key in found:
                continue
            bound = sources.bound.get(name, {})
            if name in noted and not (own and bound):
                keys = frozenset(noted[name])
            elif name in sources.models:
                try:
                    keys = frozenset(part.key for part in cutter(sources.models[name]).sequences)
                except DlbricksError:  # it is visited beside other bricks; ``estimate`` says what is wrong with it
                    continue
            else:
                continue
            if keys and keys <= known:
                found[key] = keys
            elif own and keys and bound and len(keys & known) < len(keys) * _SAME_SHAPES:
                apart[name] = _differing(bound, len(keys & known), len(keys))
    levels = {key: suite.levels[name] for name, key in sources.names if key in found and name in suite.levels}
    return Membership(found, apart, levels)


def _differing(bound: Mapping[str, int], present: int, bricks: int) -> str:
    values = ", ".join(f"{name}={size}" for name, size in bound.items())
    return (
        f"bound to {values}, it has {present} of its {bricks} bricks in the suite, so that it would be measured in "
        "other shapes than they; give the --batch and --dim that the suite was generated with, or 'dlbricks measure' "
        "it alone"
    )


def companions(
    bricks: Selection, items: Sequence[Item], holds: Mapping[str, Collection[str]], models: Selection
) -> list[Item]:
    """Bricks that are measured already, and are visited once more: beside models that are to be measured."""
    wanted = {key for model in models.pending for key in holds.get(model.key, ())}
    settled = {failure.key for failure in bricks.failed}
    pending = {item.id for item in bricks.pending}
    return [item for item in items if item.key in wanted and item.id not in pending and item.key not in settled]
