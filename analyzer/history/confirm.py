"""Confirm an alarm: the old and the new environment alternate on this machine, now.

A history compares nights, and the machine may change between them. Here both environments run the model within seconds
of each other, so that a remaining difference is their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ...bricks.decomposition import Failed
from ...bricks.graph.control import write_out
from ...errors import DlbricksError, MachineBusy, UsageError
from ...generator.backends.environments import locked_environment
from ...generator.decomposition.cut import Cut
from ...generator.decomposition.decompose import decompose
from ...generator.decomposition.generate import generate
from ...generator.decomposition.observation import run_as_given
from ...generator.machine.system import probe_system
from ...generator.measurement.trial import Contender, Trial, TrialPair, brick_pair, place_of, try_out
from ...generator.progress import ProgressCallback
from ...generator.worker.messages import Place
from ...models import ModelSource
from ..comparison.difference import Relation
from ..comparison.gate import alternate, judged, levels_of
from ..comparison.results import ModelBrick, bricks_of
from .changes import Track
from .history import BrickChange, Cause, Change, Confirmation, History, ModelHistory, Standing

_SHARE = 0.5
"""Part of an alarm's size below which a difference is none: nights overstate a little what they just made out."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """How all alarms are measured again."""

    pythons: tuple[Path, Path]
    cut: Cut
    visits: int
    processes: int
    progress: ProgressCallback | None
    minimum_effect: float


def confirm(
    alarmed: History,
    models: Sequence[ModelSource],
    *,
    old: Path,
    new: Path,
    visits: int = 24,
    processes: int = 4,
    granularity: int = 1,
    connected: bool = False,
    progress: ProgressCallback | None = None,
) -> History:
    """Measure the newest alarm of each series again, alternating between the old and the new environment.

    Alarms of another system, or with evicted caches, stay unchanged: this machine cannot repeat them.

    Args:
        alarmed: Result of ``history``.
        models: Its models.
        old: Lock file (``pylock.toml``) of the old environment, or its interpreter with dlbricks.
        new: The same for the new environment.
        visits: Visits of each brick in each environment; models are visited until the verdict is clear.
        processes: Fresh pairs of workers for the bricks, one after the other.
        granularity: Most layers in the bricks.
        connected: Bricks may be weakly connected windows.
        progress: Called between visits.

    Returns:
        The history, with a ``confirmation`` for each repeated change; ``alarms`` excludes unconfirmed ones.

    Raises:
        UsageError: There is neither a lock file nor an interpreter, or both environments are one.
        BackendUnavailable: An environment cannot be made.
        MachineBusy: Another process is measuring.
    """
    pythons = _python(old), _python(new)
    if pythons[0] == pythons[1]:
        raise UsageError(f"{old} and {new} are one environment", remedy="give the old one and the new one")
    sources = {source.name: source for source in models}
    plan = _Plan(pythons, Cut(granularity, connected=connected), visits, processes, progress, alarmed.minimum_effect)
    rows = tuple(_confirmed(row, sources[row.name], plan) for row in alarmed.rows)
    return replace(alarmed, rows=rows)


def _python(environment: Path) -> Path:
    """Return the interpreter of an environment."""
    if environment.suffix == ".toml":
        return locked_environment(environment)
    if not environment.is_file():
        raise UsageError(
            f"{environment} is neither a lock file nor an interpreter", remedy="name a pylock.toml or a Python"
        )
    return environment.absolute()


def _confirmed(row: ModelHistory, source: ModelSource, plan: _Plan) -> ModelHistory:
    """Return a series with its newest alarm confirmed, if this machine can repeat it."""
    if row.track is None or row.track.system != probe_system().key or row.track.cold:
        return row
    alarm = next((change for change in reversed(row.changes) if change.cause is not Cause.MACHINE), None)
    if alarm is None:
        return row
    try:
        confirmation = _measured(row.track, alarm, source, plan)
    except (UsageError, MachineBusy):
        raise
    except DlbricksError as error:
        confirmation = Confirmation(Standing.UNCLEAR, reason=str(error))
    changes = tuple(replace(change, confirmation=confirmation) if change is alarm else change for change in row.changes)
    return replace(row, changes=changes)


def _measured(track: Track, alarm: Change, source: ModelSource, plan: _Plan) -> Confirmation:
    with TemporaryDirectory(prefix="dlbricks-confirm-") as name:
        folder = Path(name)
        runnable = run_as_given(source, folder / "model", write_out(source.skeleton()).control)
        old, new = (place_of(track.runtime, track.threads, track.dtype, python) for python in plan.pythons)
        pair = TrialPair(Contender(runnable, old), Contender(runnable, new), label=source.name)
        confirmation = _judged(alarm, pair, plan)
        if confirmation.standing is not Standing.CONFIRMED:
            return confirmation
        try:
            return replace(confirmation, bricks=_bricks(source, folder, (old, new), plan))
        except (UsageError, MachineBusy):
            raise
        except DlbricksError as error:  # of the model it is known all the same
            return replace(confirmation, reason=f"{confirmation.reason}; which brick does is not known: {error}")


def _judged(alarm: Change, pair: TrialPair, plan: _Plan) -> Confirmation:
    """Return the gate's comparison of both environments."""
    size = alarm.levels.difference.ratio
    least = max(plan.minimum_effect, (max(size, 1 / size) - 1) * _SHARE)
    trial = alternate(pair, least, progress=plan.progress)
    levels, _, verdict = judged(trial, least)
    standing, reason = Standing.REFUTED, f"alternating, the new environment is {verdict}"
    if verdict is alarm.verdict:
        standing, reason = Standing.CONFIRMED, "alternating, the new environment differs in the same way"
    elif verdict is Relation.UNCLEAR:
        standing, reason = Standing.UNCLEAR, "alternating visits do not decide it: give more visits"
    old, new = (dict(stack.versions) for stack in trial.stacks)
    return Confirmation(standing, levels, old, new, reason=reason)


def _bricks(source: ModelSource, folder: Path, places: tuple[Place, Place], plan: _Plan) -> tuple[BrickChange, ...]:
    """Return the contribution of each brick, the largest first."""
    (model,) = decompose([source], plan.cut)
    suite = generate([model], out=folder / "suite", settings=plan.cut).suite
    if suite is None or isinstance(model, Failed):
        return ()
    pairs = [brick_pair(suite.brick_path(key), places, source.name) for key in suite.keys]
    trials = try_out(pairs, visits=plan.visits, processes=plan.processes, progress=plan.progress)
    errors = [trial for trial in trials if isinstance(trial, DlbricksError)]
    if errors and len(errors) == len(trials):
        raise errors[0]
    bricks = bricks_of(model)
    changes = [
        change
        for key, trial in zip(suite.keys, trials, strict=True)
        if (change := _change(bricks[key], trial)) is not None
    ]
    return tuple(sorted(changes, key=lambda change: -abs(change.contribution_ms)))


def _change(brick: ModelBrick, trial: Trial | DlbricksError) -> BrickChange | None:
    levels = levels_of(trial)
    if levels is None:
        return None
    return BrickChange(brick, levels.before_ms, levels.after_ms, levels.difference.ratio, levels.difference.ci95)
