"""Confirm an alarm: the old and the new environment alternate on this machine, now.

A history compares nights, and the machine may change between them. Here both environments run the model within seconds
of each other, so that a remaining difference is their own. Which brick differs is the comparison of versions
(``comparison.runtime_versions``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ...bricks.graph.control import write_out
from ...errors import DlbricksError, MachineBusy, UsageError
from ...generator.backends.environments import locked_environment
from ...generator.decomposition.observation import run_as_given
from ...generator.machine.system import probe_system
from ...generator.measurement.trial import Contender, TrialPair, place_of
from ...generator.progress import ProgressCallback
from ...models import ModelSource
from ..comparison.difference import Relation
from ..comparison.gate import alternate, judged
from .changes import Track
from .history import Cause, Change, Confirmation, History, ModelHistory, Standing

_SHARE = 0.5
"""Part of an alarm's size below which a difference is none: nights overstate a little what they just made out."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """How all alarms are measured again."""

    pythons: tuple[Path, Path]
    progress: ProgressCallback | None
    minimum_effect: float


def confirm(
    alarmed: History,
    models: Sequence[ModelSource],
    *,
    old: Path,
    new: Path,
    progress: ProgressCallback | None = None,
) -> History:
    """Measure the newest alarm of each series again, alternating between the old and the new environment.

    Alarms of another system, or with evicted caches, stay unchanged: this machine cannot repeat them.

    Args:
        alarmed: Result of ``history``.
        models: Its models.
        old: Lock file (``pylock.toml``) of the old environment, or its interpreter with dlbricks.
        new: The same for the new environment.
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
    plan = _Plan(pythons, progress, alarmed.minimum_effect)
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
        return _judged(alarm, pair, plan)


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
        standing, reason = Standing.UNCLEAR, "alternating visits do not decide it"
    old, new = (dict(stack.versions) for stack in trial.stacks)
    return Confirmation(standing, levels, old, new, reason=reason)
