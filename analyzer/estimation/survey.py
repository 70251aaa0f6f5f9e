"""What the estimates of some models need: models decomposed, the graphs that are executed, the bricks to look up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ...bricks.graph.boundary import boundary_variants
from ...bricks.graph.executed import ExecutedModel
from ...bricks.graph.footprint import is_level, level_name
from ...bricks.graph.graph import ModelGraph
from ...bricks.graph.outline import Outline
from ...bricks.inference.shapes import ShapeOracle
from ...bricks.sequence import LayerSequence
from ...constructor.choice import COLD, MODEL, Choice
from ...constructor.decomposition import Decomposition, Failed, Interventions, as_written, intervened, state_of
from ...constructor.reuse import repeated_windows
from ...db import Store, Subject
from ...db.values import NATIVE
from ...errors import DlbricksError
from ...generator.decomposition.cutter import Cut, Cutter
from ...generator.decomposition.model_bricks import unforeseen
from ...generator.decomposition.oracle import WorkerOracle
from ...models import ModelSource
from .archive import Archive
from .cutting import cut_of, decomposed
from .lookup import UNFUSED, Wanted
from .runtime import executes_as_written, why_not_here
from .views import ends_in_view

__all__ = ["decompose_all", "executed_graphs", "wanted_bricks"]


def decompose_all(
    models: Sequence[ModelSource], cut: Cut, oracle: ShapeOracle, *, store: Store | None = None
) -> list[Decomposition | Failed]:
    """Each model decomposed, or why it cannot be.

    Args:
        models: The models.
        cut: How they are cut.
        oracle: Finds shapes that inference does not.
        store: The database that keeps decompositions; None to decompose every model now.
    """
    archive = _archive(store, cut, oracle)
    if archive is not None:
        archive.expect(models)
    found: list[Decomposition | Failed] = []
    with Cutter(cut, oracle=oracle) as cutter:
        for source in models:
            try:
                found.append(_decomposed(source, cutter, cut, archive))
            except DlbricksError as error:
                found.append(Failed(source, str(error)))
            except Exception as error:  # noqa: BLE001  # the boundary of one model: the others go on
                found.append(Failed(source, unforeseen(source.name, error)))
    return found


def _archive(store: Store | None, cut: Cut, oracle: ShapeOracle) -> Archive | None:
    """Where decompositions are kept; nowhere where shapes come from an oracle that nobody here knows."""
    return Archive(store, cut) if store is not None and isinstance(oracle, WorkerOracle) else None


def _decomposed(
    source: ModelSource,
    cutter: Cutter,
    cut: Cut,
    archive: Archive | None,
    own: ModelGraph | None = None,
    *,
    executed: ExecutedModel | None = None,
) -> Decomposition:
    """A model decomposed: as the archive has it, else now, from what is executed for it where that is at hand."""
    known = archive.find(source, own) if archive is not None else None
    if known is not None:
        return known
    made = decomposed(source, cutter(source, executed), cut)
    if archive is not None:
        archive.keep(made)
    return made


def executed_graphs(
    models: Sequence[Decomposition], store: Store, choice: Choice | None, known: Collection[str], oracle: ShapeOracle
) -> dict[str, Interventions]:
    """What the runtime executes for each model, by the model's key.

    A model is loaded for it only where that can serve: where other bricks than those asked for are stored at a reuse
    distance, or where the number of executed nodes is wanted for an estimate at one. A runtime that executes operators
    as they are written executes the model's own graph: nothing need be loaded for that.
    """
    if choice is not None and executes_as_written(choice.stack):
        return {model.own.key: as_written(model.own) for model in models}
    found = {model.own.key: intervened(model.executed) for model in models if model.executed is not None}
    rest = [model for model in models if model.executed is None]
    reason = "nothing is stored" if choice is None else _why_not(choice)
    if rest and choice is not None and reason is None and not _at_levels(choice.conditions.cache):
        states = {COLD} if choice.conditions.cache == COLD else {model.level for model in rest}
        conditions = [replace(choice.conditions, cache=state) for state in states]
        others = (store.measured_keys(choice.system_key, choice.stack_key, one, Subject.BRICK) for one in conditions)
        if not any(keys.difference(known) for keys in others):
            reason = "no brick of the executed graph is measured as the model is"
    if reason is not None or choice is None:
        return found | {model.own.key: Interventions(reason=reason or "") for model in rest}
    cut = cut_of(Cut(1), "runtime", choice.stack, choice.conditions.threads)
    archive = _archive(store, cut, oracle)
    if archive is not None:
        archive.expect([model.source for model in rest])
    with Cutter(cut, oracle=oracle) as cutter:
        for model in rest:
            try:
                executed = _decomposed(model.source, cutter, cut, archive, model.own).executed
            except DlbricksError as error:
                found[model.own.key] = Interventions(reason=str(error))
            else:
                assert executed is not None  # noqa: S101  # the cut is of the executed graph
                found[model.own.key] = intervened(executed)
    return _with_units(rest, found, store, choice, oracle)


def _with_units(
    models: Sequence[Decomposition],
    found: Mapping[str, Interventions],
    store: Store,
    choice: Choice,
    oracle: ShapeOracle,
) -> dict[str, Interventions]:
    """Add what the runtime fuses of each model, where bricks are measured without fusion."""
    conditions = [replace(choice.conditions, cache=state) for state in {state_of(model, choice) for model in models}]
    places = ((choice.system_key, choice.stack_key, one, Subject.BRICK, UNFUSED) for one in conditions)
    if not any(store.measured_keys(*place) for place in places):
        return {**found}
    cut = cut_of(Cut(1), "fused", choice.stack, choice.conditions.threads)
    archive = _archive(store, cut, oracle)
    if archive is not None:
        archive.expect([model.source for model in models])
    added = {**found}
    with Cutter(cut, oracle=oracle) as cutter:
        for model in models:
            key = model.own.key
            executed = found[key].executed
            if executed is None:
                continue
            fresh = None if isinstance(executed.graph, Outline) else executed  # an outline cannot be cut
            try:
                units = _decomposed(model.source, cutter, cut, archive, model.own, executed=fresh).sequences
            except DlbricksError as error:
                added[key] = replace(found[key], reason=str(error))
            else:
                added[key] = replace(found[key], units=units)
    return added


def _why_not(choice: Choice) -> str | None:
    """Why executed graphs are not known of a combination; None where they can."""
    if choice.conditions.dtype != NATIVE:
        return f"the graph that the runtime executes in {choice.conditions.dtype} is not known"
    return why_not_here(choice.stack, choice.system)


def _at_levels(cache: str) -> bool:
    return cache == MODEL or is_level(cache)


def wanted_bricks(
    models: Sequence[Decomposition], choice: Choice | None, executed: Mapping[str, Interventions]
) -> dict[str, Wanted]:
    """The bricks to look up, by cache state."""
    wanted: defaultdict[str, Wanted] = defaultdict(Wanted)
    for model in models:
        state, found = state_of(model, choice), executed[model.own.key]
        asked = {part.key for part in model.sequences}
        wanted[state].bricks |= asked
        wanted[state].competing |= {window.key for window in model.windows}
        wanted[state].windows |= {part.key for part in found.units or ()}
        _add_repeated(wanted, model.sequences, state)
        for level, key in repeated_windows(model) if is_level(state) else ():
            wanted[level_name(level)].competing.add(key)
        _add_repeated(wanted, found.parts, found.level)
        if model.graph.salt:
            wanted[state].boundary |= boundary_variants(model.graph, model.sequences).keys()
        if choice is not None and found.graph is not None:
            if found.graph.salt:
                wanted[found.level].boundary |= boundary_variants(found.graph, found.parts).keys()
            bricks = asked if model.graph is found.graph else {part.key for part in found.parts}
            wanted[state].bricks |= bricks
            wanted[found.level].bricks |= bricks
        if not model.graph.salt:
            wanted[state].views |= {part.key for part in model.sequences if _is_view(model.graph, part.layers)}
            live = model.graph.live
            spans = ((window.key, live[window.begin : window.end]) for window in model.windows)
            wanted[state].views |= {key for key, layers in spans if _is_view(model.graph, layers)}
    return dict(wanted)


def _add_repeated(wanted: Mapping[str, Wanted], parts: Iterable[LayerSequence], state: str) -> None:
    """Add bricks of iterations, in the footprint class that these find their weights in."""
    for part in parts if is_level(state) else ():
        if part.reuse:
            wanted[level_name(part.reuse)].bricks.add(part.key)


def _is_view(graph: ModelGraph, layers: Sequence[int]) -> bool:
    return ends_in_view([graph.layers[index].op_type for index in layers])
