"""``generate``: models to a suite of unique bricks."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Unpack

from ...bricks.cutting.fused import fused_units
from ...bricks.decomposition import Decomposition, Failed, attempt
from ...bricks.features import keep_features
from ...bricks.graph.boundary import TYPICAL, USUAL, Caches, boundary_variants, variants_along_fusions
from ...bricks.graph.control import ControlFlow
from ...bricks.graph.footprint import MODEL_LEVELS
from ...bricks.graph.model_graph import ModelGraph
from ...bricks.layer import LayerState, TensorType
from ...bricks.suite.brick import Brick, Carried, build_brick, carried_by
from ...bricks.suite.decoys import decoys as draw_decoys
from ...bricks.suite.suite import Suite
from ...bricks.suite.writing import refuse_foreign, write_suite
from ...errors import UsageError
from ...models import ModelSource
from ...tabular import Records, Tabular
from ..machine.cache_reach import caches_here
from ..progress import ProgressCallback
from .cut import Cut, CutFields, cut_from
from .decompose import Model, decompose, readable

_TOTALS = ("granularity", "layers", "folded", "sequences", "unique", "decoys", "wall_s")
"""Fields of a ``GenerateReport`` that JSON repeats unchanged."""


@dataclass(frozen=True, slots=True)
class SkippedLayer:
    """A layer that cannot be a brick, with the reason; or several layers, by name, that cannot be one brick.

    Attributes:
        layer: Its name, or theirs.
        reason: The reason.
        cause: The first skipped layer before it that leaves the types of its inputs unknown; empty if there is none.
    """

    layer: str
    reason: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class GenerateRow:
    """The result of one model.

    Attributes:
        name: The model.
        layers: Operators of the source model without Constant nodes; None with ``error``.
        folded: Layers that only compute constants; None with ``error``.
        sequences: Sequences at the requested granularity; None with ``error``.
        unique: Different bricks among them; None with ``error``.
        macs: Multiply-accumulates of one inference; None if the work of a layer is unknown.
        known_macs: Multiply-accumulates of the layers with known work; None with ``error``.
        uncounted: Operators with unknown work, by number of layers.
        weight_bytes: Bytes of the model's constants; None with ``error``.
        skipped: Layers that cannot be bricks, with the reason.
        apart: Layers that the runtime executes together but that are in separate bricks, with the reason (``fused``).
        eliminated: Operators that the runtime eliminates, by number of layers: each is in the brick of a neighbour
            (``fused``).
        bound: Dynamic dimensions and the values that they were given.
        invented: Inputs with made-up values that decide shapes or time.
        control: Control-flow operators, each with its course and the layers that it became.
        error: The reason why the model could not be decomposed.
        unfused: The reason why the model was cut along its own graph, although fusions were asked for.
    """

    name: str
    layers: int | None
    folded: int | None
    sequences: int | None
    unique: int | None
    macs: int | None
    known_macs: int | None
    uncounted: Mapping[str, int]
    weight_bytes: int | None
    skipped: tuple[SkippedLayer, ...]
    bound: Mapping[str, int]
    invented: Mapping[str, TensorType] = field(default_factory=dict)
    apart: tuple[SkippedLayer, ...] = ()
    eliminated: Mapping[str, int] = field(default_factory=dict)
    control: tuple[ControlFlow, ...] = ()
    error: str | None = None
    unfused: str | None = None


@dataclass(frozen=True, slots=True)
class GenerateReport(Tabular):
    """The result of ``generate``.

    Attributes:
        rows: One per model, in the order given.
        suite: The suite on disk; None if no model could be decomposed.
        granularity: G.
        layers: Layers of all models.
        folded: Folded layers of all models.
        sequences: Sequences of all models.
        unique: Different bricks of all models, decoys not counted.
        decoys: Dummy bricks among the bricks of the suite.
        wall_s: Seconds of the whole call.
        carried: What the bricks carry of the models beyond operators and shapes.
    """

    ANSWER = "report.answers.generation.generate_answer"

    rows: tuple[GenerateRow, ...]
    suite: Suite | None
    granularity: int
    layers: int
    folded: int
    sequences: int
    unique: int
    decoys: int
    wall_s: float
    carried: Carried

    @property
    def complete(self) -> bool:
        """True if every layer of every model is in the suite."""
        return all(row.error is None and not row.skipped for row in self.rows)

    def records(self) -> Records:
        """Return one row per model, with the suite as totals."""
        suite = self.suite
        totals = {"suite": None if suite is None else str(suite.path), "hash": None if suite is None else suite.hash}
        totals |= {name: getattr(self, name) for name in _TOTALS}
        rows = [asdict(row) | {"invented": list(row.invented)} for row in self.rows]
        return Records(rows, totals | {"carried": asdict(self.carried)})


def generate(
    models: Sequence[Model],
    *,
    out: str | os.PathLike[str],
    settings: Cut | None = None,
    or_source: bool = False,
    jobs: int = 1,
    annotate: bool = False,
    decoys: int = 0,
    decoy_seed: str | int | None = None,
    caches: Caches | None = None,
    progress: ProgressCallback | None = None,
    **fields: Unpack[CutFields],
) -> GenerateReport:
    """Cut models into sequences and write the suite of unique bricks.

    The suite does not depend on ``jobs`` or on the order in which models finish. No model is executed, with one
    exception: if inference cannot find the shapes of a model, it runs once, in an isolated worker.

    Args:
        models: The models (``find_models``), or decompositions by the same cut (``decompose``).
        out: Folder of the suite.
        settings: How models are cut.
        or_source: Cut models that the runtime cannot load along their own graph.
        jobs: Number of processes; 1 uses this one.
        annotate: Note in the suite how often each model contains each brick; this reveals the models' names.
        decoys: Number of dummy bricks to mix in.
        decoy_seed: Secret that they are drawn from.
        caches: What the caches hold that decide which bricks of executed graphs are measured cold as well; None: those
            of this machine, measured now. Two looks may differ, so that commands with a database give what it knows.
        progress: Called after each model.
        **fields: Fields of a ``Cut``, in place of ``settings``: ``granularity`` at least; ``options`` by name.

    Returns:
        One row per model; a broken model has a row with ``error``, and the others go on.

    Raises:
        UsageError: An option has a wrong value or is given together with ``settings``, options contradict each other,
            or none of the models has a dimension that was given.
        SuiteError: The suite cannot be written.

    Example:
        >>> generate(find_models(["squeezenet"]), granularity=1, out="suite").unique  # doctest: +SKIP
    """
    begun = time.monotonic()
    cut = cut_from(settings, fields)
    if decoys and cut.graph == "runtime":
        raise UsageError("decoys hide models in a suite that travels, and executed graphs stay", remedy="leave out one")
    if jobs < 1:
        raise UsageError(f"jobs cannot be {jobs}", remedy="use 1 or more")
    if decoys and decoy_seed is None:
        raise UsageError("decoys are drawn from a secret", remedy="give a decoy seed and keep it to yourself")
    if decoys and annotate:
        raise UsageError("annotations distinguish decoys from bricks", remedy="leave out --annotate or --decoys")
    refuse_foreign(Path(out))  # now, not after decomposing for an hour
    bound_to = cut.bound_to()
    results = decompose(models, cut, jobs=jobs, progress=progress)
    refused = {model.name: model.reason for model in results if isinstance(model, Failed)}
    if or_source and refused and cut.graph != "source":
        results = along_source(results, cut, jobs, progress)
    bricks: dict[str, Brick] = {}
    rows: list[GenerateRow] = []
    cut_up: list[Decomposition] = []
    for model in results:
        row = model if isinstance(model, Failed) else attempt(model.source, partial(_row, model, cut.graph, bricks))
        if isinstance(row, Failed):
            rows.append(_broken(row))
        elif isinstance(model, Decomposition):
            rows.append(replace(row, unfused=refused.get(model.name)))
            cut_up.append(model)
            keep_features(model)
    suite = None
    dummies: dict[str, Brick] = {}
    if cut_up:
        cut_up = readable(cut_up)  # refuses a dimension that none of them has
        dummies = draw_decoys(list(bricks.values()), decoys, decoy_seed) if decoy_seed is not None and bricks else {}
        distances = _distances(cut_up)
        caches = _caches(cut_up, caches)
        suite = write_suite(
            Path(out),
            bricks | dummies,
            granularity=cut.granularity,
            overlap=cut.overlap,
            connected=cut.connected,
            annotations={model.name: _occurrences(model) for model in results} if annotate else None,
            levels={model.name: model.footprint_class for model in cut_up} if annotate else None,
            graph=cut.graph,
            bound_to=bound_to,
            distances=distances | {key: _any_distance(distances) for key in dummies},
            boundary=_boundary(cut_up, caches or USUAL),
            caches=caches,
            typical=_typical(cut_up) if not dummies else None,  # which no decoy has
        )
    return GenerateReport(
        rows=tuple(rows),
        suite=suite,
        granularity=cut.granularity,
        layers=sum(row.layers or 0 for row in rows),
        folded=sum(row.folded or 0 for row in rows),
        sequences=sum(row.sequences or 0 for row in rows),
        unique=len(bricks),
        decoys=len(dummies),
        wall_s=time.monotonic() - begun,
        carried=carried_by(bricks.values()),
    )


def along_source(
    results: Sequence[Decomposition | Failed], cut: Cut, jobs: int = 1, progress: ProgressCallback | None = None
) -> list[Decomposition | Failed]:
    """Return the results of ``decompose``, with models that the runtime cannot load cut along their own graph."""
    failed = [model for model in results if isinstance(model, Failed)]
    again = iter(decompose([model.source for model in failed], cut.of("source"), jobs=jobs, progress=progress))
    return [next(again) if isinstance(model, Failed) else model for model in results]


def _occurrences(model: Decomposition | Failed) -> dict[str, int]:
    return dict(Counter(part.key for part in model.sequences)) if isinstance(model, Decomposition) else {}


def _distances(models: Sequence[Decomposition]) -> dict[str, set[int]]:
    """Return for each brick the classes of reuse distance of the models that contain it, and of their iterations."""
    distances: dict[str, set[int]] = {}
    for model in models:
        for part in model.sequences:
            distances.setdefault(part.key, set()).update({model.footprint_class, *([part.reuse] if part.reuse else ())})
    return distances


def _any_distance(distances: Mapping[str, set[int]]) -> set[int]:
    """Return the most frequent distances: with them nothing distinguishes a decoy from a brick."""
    return set(Counter(frozenset(classes) for classes in distances.values()).most_common(1)[0][0])


def _caches(models: Sequence[Decomposition], given: Caches | None) -> Caches | None:
    """Return what the caches of this machine hold, unless it is given; None if that decides nothing.

    Only bricks of executed graphs depend on it, which are measured here or on a machine of its kind.
    """
    asked = any(model.graph.salt and model.footprint_class in MODEL_LEVELS for model in models)
    return (given or caches_here()) if asked else None


def _boundary(models: Sequence[Decomposition], caches: Caches) -> dict[str, set[str]]:
    """Return for each brick its additional variants with cold inputs and outputs in an executed graph."""
    boundary: dict[str, set[str]] = {}
    for model in (model for model in models if model.graph.salt):
        for (key, _), variant in boundary_variants(model.graph, model.sequences, caches).items():
            boundary.setdefault(key, set()).add(variant)
    return boundary


def _typical(models: Sequence[Decomposition]) -> dict[str, dict[int, set[str]]]:
    """Return the same for bricks along fusions, by what the last-level cache of a machine holds: they may go to any."""
    found: dict[str, dict[int, set[str]]] = {}
    for model, caches in product(models, TYPICAL):
        if model.executed is not None and not model.graph.salt:
            for (key, _), variant in variants_along_fusions(model.executed, model.sequences, caches).items():
                by_size = found.setdefault(key, {other.last: set() for other in TYPICAL})
                by_size[caches.last].add(variant)
    return found


def _broken(model: Failed) -> GenerateRow:
    nothing = (None,) * 6
    return GenerateRow(model.name, *nothing, uncounted={}, weight_bytes=None, skipped=(), bound={}, error=model.reason)


def _row(model: Decomposition, kind: str, bricks: dict[str, Brick], _: ModelSource) -> GenerateRow:
    """Return the row of a model, and add its new bricks."""
    graph = model.own
    new = {part.key: part for part in reversed(model.sequences) if part.key not in bricks}
    bricks |= {key: build_brick(model.graph, part) for key, part in reversed(new.items())}
    macs, uncounted = _work(graph)
    apart, eliminated = _fusions(model) if kind == "fused" else ((), {})
    return GenerateRow(
        name=model.name,
        layers=len(graph.layers),
        folded=sum(layer.state is LayerState.FOLDED for layer in graph.layers),
        sequences=len(model.sequences),
        unique=len(model.keys),
        macs=None if uncounted else macs,
        known_macs=macs,
        uncounted=uncounted,
        weight_bytes=graph.weight_bytes,
        skipped=_skipped(model.graph),
        bound=dict(graph.bound),
        invented=model.invented,
        apart=apart,
        eliminated=eliminated,
        control=graph.control,
    )


def _skipped(graph: ModelGraph) -> tuple[SkippedLayer, ...]:
    """Return the skipped layers, each with the first of those that it follows from."""
    causes: dict[str, str] = {}  # by value
    skipped = []
    for layer in graph.layers:
        if layer.state is not LayerState.SKIPPED:
            continue
        untyped = (name for name in layer.node.input if name in causes and graph.types.get(name) is None)
        cause = next((causes[name] for name in untyped), "")
        causes |= dict.fromkeys(layer.outputs, cause or layer.name)
        skipped.append(SkippedLayer(layer.name, layer.reason, cause))
    return tuple(skipped)


def _fusions(model: Decomposition) -> tuple[tuple[SkippedLayer, ...], dict[str, int]]:
    """Return the differences between bricks along fusions and the executed graph: separated and eliminated layers."""
    executed = model.executed
    if executed is None:
        return (), {}
    layers = executed.source.layers
    torn = fused_units(executed).reasons
    return (
        tuple(SkippedLayer(", ".join(layers[index].name for index in group), why) for group, why in torn.items()),
        dict(Counter(layers[index].op_type for index in sorted(executed.eliminated))),
    )


def _work(graph: ModelGraph) -> tuple[int, dict[str, int]]:
    """Return the known multiply-accumulates, and the operators (with counts) of unknown work."""
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
