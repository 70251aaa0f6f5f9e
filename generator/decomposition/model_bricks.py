"""One model to its bricks: the part of ``generate`` that runs in parallel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from ...bricks.cutting.fused import fused_units
from ...bricks.graph.boundary import boundary_variants
from ...bricks.graph.control import ControlFlow
from ...bricks.graph.footprint import footprint
from ...bricks.graph.graph import ModelGraph
from ...bricks.graph.reuse import own_level
from ...bricks.layer import LayerState
from ...bricks.sequence import LayerSequence
from ...bricks.suite.brick import Brick, build_brick
from ...errors import DlbricksError
from ...models import ModelSource
from .cutter import CutModel, Cutter

__all__ = ["ModelBricks", "SkippedLayer", "model_bricks", "unforeseen"]

_MOST_TEXT = 300
"""Characters of an unforeseen exception's text; some quote whole graphs."""


@dataclass(frozen=True, slots=True)
class SkippedLayer:
    """A layer that cannot be a brick, and why; or several by name that cannot be one."""

    layer: str
    reason: str


@dataclass(frozen=True, slots=True)
class ModelBricks:
    """What one model is made of; counts are 0 where ``error`` says why there are none.

    Attributes:
        name: The model.
        layers: Operators of the source model.
        folded: Layers that cost nothing at inference.
        sequences: Sequences at the granularity asked for.
        occurrences: Brick key to how often the model holds it.
        known_macs: Multiply-accumulates of the layers whose work is known.
        uncounted: Operators of the layers whose work is not known, by number of layers.
        weight_bytes: Bytes of the model's constants.
        skipped: Layers that cannot be bricks.
        apart: Layers that a runtime executes together and that bricks hold apart, and why; of a fused cut.
        eliminated: Operators of the layers that a runtime has nothing to do for, by number of layers; of a fused cut.
        distance: Level of the reuse distance of its weights.
        repeats: Levels of reuse distance that iterations of it have, by brick, where these are not the model's.
        boundary: Variants that its bricks are measured in besides, by key; of an executed graph.
        bound: Dynamic dimensions and the values that they were given.
        control: Control flow, and what became of it.
        error: Why the model could not be decomposed.
        bricks: Bricks by key, those that the caller knew already left out.
    """

    name: str
    layers: int = 0
    folded: int = 0
    sequences: int = 0
    occurrences: Mapping[str, int] = field(default_factory=dict)
    known_macs: int = 0
    uncounted: Mapping[str, int] = field(default_factory=dict)
    weight_bytes: int = 0
    skipped: tuple[SkippedLayer, ...] = ()
    apart: tuple[SkippedLayer, ...] = ()
    eliminated: Mapping[str, int] = field(default_factory=dict)
    distance: int = 0
    repeats: Mapping[str, Collection[int]] = field(default_factory=dict)
    boundary: Mapping[str, Collection[str]] = field(default_factory=dict)
    bound: Mapping[str, int] = field(default_factory=dict)
    control: tuple[ControlFlow, ...] = ()
    error: str | None = None
    bricks: Mapping[str, Brick] = field(default_factory=dict)


def model_bricks(source: ModelSource, cutter: Cutter, *, known: Collection[str] = ()) -> ModelBricks:
    """Read a model and cut it into bricks.

    Args:
        source: The model.
        cutter: Cuts it.
        known: Keys of bricks that need not be built again.

    Returns:
        Its bricks and counts, or its error; one broken model is no reason to stop.
    """
    try:
        cut = cutter(source)
        graph, found = cut.source, cut.sequences
        bricks: dict[str, Brick] = {}
        for sequence in found:
            if sequence.key not in bricks and sequence.key not in known:
                bricks[sequence.key] = build_brick(cut.graph, sequence)
        macs, uncounted = _work(graph)
        apart, eliminated = _fusions(cut, cutter.graph)
    except DlbricksError as error:
        return ModelBricks(source.name, error=str(error))
    except Exception as error:  # noqa: BLE001
        # A boundary: a model is untrusted and may break an assumption that nobody knew of. That is our mistake, to be
        # reported; it must not take the other models of the batch with it.
        return ModelBricks(source.name, error=unforeseen(source.name, error))
    return ModelBricks(
        name=source.name,
        layers=len(graph.layers),
        folded=sum(layer.state is LayerState.FOLDED for layer in graph.layers),
        sequences=len(found),
        occurrences=dict(Counter(sequence.key for sequence in found)),
        known_macs=macs,
        uncounted=uncounted,
        weight_bytes=graph.weight_bytes,
        skipped=tuple(
            SkippedLayer(layer.name, layer.reason) for layer in cut.graph.layers if layer.state is LayerState.SKIPPED
        ),
        apart=apart,
        eliminated=eliminated,
        distance=own_level(cut.graph.control, footprint(cut.graph)),
        repeats=_repeats(found),
        boundary=boundary_variants(cut.graph, found) if cut.graph.salt else {},
        bound=dict(graph.bound),
        control=graph.control,
        bricks=bricks,
    )


def _repeats(parts: Iterable[LayerSequence]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for part in parts:
        if part.reuse:
            found.setdefault(part.key, set()).add(part.reuse)
    return found


def unforeseen(name: str, error: Exception, done: str = "decomposed") -> str:
    """What to say of an exception that no code path was written for.

    Args:
        name: What it was raised for.
        error: The exception.
        done: What could not be done with it.
    """
    text = " ".join(str(error).split())[:_MOST_TEXT]
    kind = type(error).__name__
    return f"{name} could not be {done}: {kind}{f': {text}' if text else ''}; please report this with the model"


def _fusions(cut: CutModel, kind: str) -> tuple[tuple[SkippedLayer, ...], dict[str, int]]:
    """Where bricks cut along fusions are not what the runtime executes: layers torn apart, and what it eliminates."""
    executed = cut.executed
    if kind != "fused" or executed is None:
        return (), {}
    layers = executed.source.layers
    torn = fused_units(executed).reasons
    return (
        tuple(SkippedLayer(", ".join(layers[index].name for index in group), why) for group, why in torn.items()),
        dict(Counter(layers[index].op_type for index in sorted(executed.eliminated))),
    )


def _work(graph: ModelGraph) -> tuple[int, dict[str, int]]:
    """Multiply-accumulates that are known, and the operators (with counts) whose work is not."""
    macs = 0
    uncounted: Counter[str] = Counter()
    for layer in graph.layers:
        if layer.state is LayerState.FOLDED:
            continue
        if layer.state is LayerState.LIVE and layer.cost is not None:
            macs += layer.cost.macs
        else:
            uncounted[layer.op_type] += 1
    return macs, dict(sorted(uncounted.items()))
