"""``generate``: models to a suite of unique bricks."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Unpack

from ...bricks.graph.control import ControlFlow
from ...bricks.suite.brick import Brick
from ...bricks.suite.decoys import decoys as draw_decoys
from ...bricks.suite.suite import Suite
from ...bricks.suite.writing import refuse_foreign, write_suite
from ...errors import UsageError
from ...models import ModelSource, require_known
from ...tabular import Records, Tabular
from ..backends.custom_ops import adopt, asked, files_of
from ..progress import Progress, ProgressCallback, Stage
from ..worker.sandbox import confine
from .cutter import Cut, CutFields, Cutter, cut_from
from .model_bricks import ModelBricks, SkippedLayer, model_bricks, unforeseen
from .oracle import WorkerOracle

__all__ = ["GenerateReport", "GenerateRow", "generate"]

_TOTALS = ("granularity", "layers", "folded", "sequences", "unique", "decoys", "wall_s")
"""Fields of a ``GenerateReport`` that JSON has as they are."""


@dataclass(frozen=True, slots=True)
class GenerateRow:
    """What one model is made of.

    Attributes:
        name: The model.
        layers: Operators of the source model (Constant nodes are no layers); None with ``error``.
        folded: Layers that only compute constants; None with ``error``.
        sequences: Sequences at the granularity asked for; None with ``error``.
        unique: Different bricks among them; None with ``error``.
        macs: Multiply-accumulates of one inference; None where the work of a layer is not known.
        known_macs: Those of the layers whose work is known; None with ``error``.
        uncounted: Operators whose work is not known, by number of layers.
        weight_bytes: Bytes of the model's constants; None with ``error``.
        skipped: Layers that cannot be bricks, with the reason.
        apart: Layers that the runtime executes together and that bricks hold apart, with the reason (``fused``).
        eliminated: Operators that the runtime has nothing to do for, by number of layers: each is in the brick of a
            neighbour (``fused``).
        bound: Dynamic dimensions and the values that they were given.
        control: Control flow, and what became of each of its operators.
        keys: Its bricks; empty with ``error``.
        error: Why the model could not be decomposed.
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
    keys: frozenset[str] = frozenset()
    apart: tuple[SkippedLayer, ...] = ()
    eliminated: Mapping[str, int] = field(default_factory=dict)
    control: tuple[ControlFlow, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class GenerateReport(Tabular):
    """What a suite was made from.

    Attributes:
        rows: One per model, in the order given.
        suite: The suite on disk; None where no model could be decomposed.
        granularity: G.
        layers: Layers of all models.
        folded: Folded layers of all models.
        sequences: Sequences of all models.
        unique: Different bricks of all models, decoys not counted.
        decoys: Dummy bricks among those of the suite.
        wall_s: The whole call.
    """

    rows: tuple[GenerateRow, ...]
    suite: Suite | None
    granularity: int
    layers: int
    folded: int
    sequences: int
    unique: int
    decoys: int
    wall_s: float

    @property
    def complete(self) -> bool:
        """Whether every layer of every model is in the suite."""
        return all(row.error is None and not row.skipped for row in self.rows)

    def records(self) -> Records:
        """One row per model, the suite beside them."""
        # Keys stand in the suite's manifest; which model has which is what --annotate is for.
        rows = [{name: value for name, value in asdict(row).items() if name != "keys"} for row in self.rows]
        suite = self.suite
        totals = {"suite": None if suite is None else str(suite.path), "hash": None if suite is None else suite.hash}
        return Records(rows, totals | {name: getattr(self, name) for name in _TOTALS})


def generate(
    models: Sequence[ModelSource],
    *,
    out: str | os.PathLike[str],
    settings: Cut | None = None,
    jobs: int = 1,
    annotate: bool = False,
    decoys: int = 0,
    decoy_seed: str | int | None = None,
    progress: ProgressCallback | None = None,
    **fields: Unpack[CutFields],
) -> GenerateReport:
    """Cut models into sequences and write the suite of unique bricks.

    The suite does not depend on ``jobs`` or on the order in which models are done. No model is executed, but for one
    whose shapes inference cannot find: that is run once, in an isolated worker.

    Args:
        models: What to decompose (``find_models``).
        out: Folder of the suite.
        settings: How models are cut.
        jobs: Processes; 1 works in this one.
        annotate: Note in the suite which model holds which brick how often; it names the models.
        decoys: Dummy bricks to mix in.
        decoy_seed: Secret that they are drawn from.
        progress: Called after each model.
        **fields: Fields of a ``Cut``, in place of ``settings``: ``granularity`` at least; ``options`` by name.

    Returns:
        One row per model; a broken model is a row with ``error``, and the others go on.

    Raises:
        UsageError: An option has a wrong value or is given beside ``settings``, options contradict each other, or none
            of the models has a dimension that was given.
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
    found: dict[int, ModelBricks] = {}
    for position, result in _bricks_of_all(models, cut, jobs):
        found[position] = result
        if progress is not None:
            elapsed = time.monotonic() - begun
            left = elapsed / len(found) * (len(models) - len(found))
            progress(Progress(Stage.GENERATE, len(found), len(models), result.name, elapsed, left))
    ordered = [found[position] for position in range(len(models))]
    if readable := [result for result in ordered if result.error is None]:
        require_known({name: size for source in models for name, size in source.dims}, readable)
    bricks: dict[str, Brick] = {}
    for result in ordered:
        for key, brick in result.bricks.items():
            bricks.setdefault(key, brick)
    unique = len(bricks)
    distances: dict[str, set[int]] = {}
    for result in readable:
        for key in result.occurrences:
            distances.setdefault(key, set()).update((result.distance, *result.repeats.get(key, ())))
    dummies = draw_decoys(list(bricks.values()), decoys, decoy_seed) if decoy_seed is not None and bricks else {}
    suite = None
    if readable:
        suite = write_suite(
            Path(out),
            bricks | dummies,
            granularity=cut.granularity,
            overlap=cut.overlap,
            connected=cut.connected,
            annotations={result.name: result.occurrences for result in ordered} if annotate else None,
            levels={result.name: result.distance for result in ordered if result.distance} if annotate else None,
            graph=cut.graph,
            bound_to=bound_to,
            distances=distances | {key: _any_distance(distances) for key in dummies},
            boundary=_united(result.boundary for result in readable),
        )
    return GenerateReport(
        rows=tuple(_row(result) for result in ordered),
        suite=suite,
        granularity=cut.granularity,
        layers=sum(result.layers for result in ordered),
        folded=sum(result.folded for result in ordered),
        sequences=sum(result.sequences for result in ordered),
        unique=unique,
        decoys=len(dummies),
        wall_s=time.monotonic() - begun,
    )


def _united(found: Iterable[Mapping[str, Collection[str]]]) -> dict[str, set[str]]:
    """What several models say of bricks, by key."""
    united: dict[str, set[str]] = {}
    for said in found:
        for key, values in said.items():
            united.setdefault(key, set()).update(values)
    return united


def _any_distance(distances: Mapping[str, set[int]]) -> set[int]:
    """For a decoy: the distances that are the most frequent, so that nothing distinguishes it from the others."""
    return set(Counter(frozenset(found) for found in distances.values()).most_common(1)[0][0])


def _row(result: ModelBricks) -> GenerateRow:
    broken = result.error is not None
    return GenerateRow(
        name=result.name,
        layers=None if broken else result.layers,
        folded=None if broken else result.folded,
        sequences=None if broken else result.sequences,
        unique=None if broken else len(result.occurrences),
        macs=None if broken or result.uncounted else result.known_macs,
        known_macs=None if broken else result.known_macs,
        uncounted=result.uncounted,
        weight_bytes=None if broken else result.weight_bytes,
        skipped=result.skipped,
        bound=result.bound,
        keys=frozenset(result.occurrences),
        apart=result.apart,
        eliminated=result.eliminated,
        control=result.control,
        error=result.error,
    )


def _bricks_of_all(models: Sequence[ModelSource], cut: Cut, jobs: int) -> Iterator[tuple[int, ModelBricks]]:
    """Position and result of each model, as they are done."""
    if jobs == 1 or len(models) < 2:
        known: set[str] = set()
        with WorkerOracle() as oracle, Cutter(cut, oracle=oracle) as cutter:
            for position, source in enumerate(models):
                result = model_bricks(source, cutter, known=known)
                known.update(result.bricks)
                yield position, result
        return
    left = dict(enumerate(models))
    try:
        yield from _in_pool(left, cut, min(jobs, len(models)))
    except BrokenProcessPool:
        # A model ended its process. Which one is not known, so those that are left go one by one, each in a
        # process of its own, and the culprit is named.
        for position, source in list(left.items()):
            try:
                yield from _in_pool({position: source}, cut, 1)
            except BrokenProcessPool:
                yield position, ModelBricks(source.name, error=f"model {source.name} ended the process that read it")


_built: set[str] = set()
"""In a process of the pool: keys of the bricks that it has handed over already."""


def _begin(libraries: Mapping[str, str]) -> None:
    """What a process of the pool does first."""
    confine()
    adopt(libraries)


def _bricks_alone(source: ModelSource, cut: Cut) -> ModelBricks:
    """What a process of the pool does."""
    with WorkerOracle() as oracle, Cutter(cut, oracle=oracle) as cutter:
        result = model_bricks(source, cutter, known=_built)
    _built.update(result.bricks)
    return result


def _in_pool(left: dict[int, ModelSource], cut: Cut, jobs: int) -> Iterator[tuple[int, ModelBricks]]:
    """Decompose in parallel; what is done is taken out of ``left``.

    Raises:
        BrokenProcessPool: A process died; what is still in ``left`` is undone.
    """
    # A fork server, not fork: this process may have threads. Its processes inherit what it has imported.
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(files_of(asked()),))
    broken: BrokenProcessPool | None = None
    try:
        futures: dict[Future[ModelBricks], int] = {
            pool.submit(_bricks_alone, source, cut): position for position, source in left.items()
        }
        for future in as_completed(futures):
            try:
                result = future.result()
            except BrokenProcessPool as error:
                broken = error  # every result that came in before is still worth having
                continue
            except Exception as error:  # noqa: BLE001
                # The boundary of ``model_bricks`` again, for what fails on the way: a result that cannot be pickled.
                position = futures[future]
                result = ModelBricks(left[position].name, error=unforeseen(left[position].name, error))
            del left[futures[future]]
            yield futures[future], result
    finally:
        pool.shutdown(cancel_futures=True)
    if broken is not None:
        raise broken
