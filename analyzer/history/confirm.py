"""Whether an alarm is a regression: the old environment and the new one, visited in turn, on this machine, now.

A history compares nights, between which machine and neighbours change. Here both environments run the model within
seconds of each other, again and again, so that what is left of a difference is theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ...bricks.graph.control import write_out
from ...constructor.choice import COLD
from ...constructor.decomposition import Decomposition, Failed
from ...constructor.form import form_of
from ...errors import DlbricksError, MachineBusy, UsageError
from ...generator.backends.environments import locked_environment
from ...generator.decomposition.cutter import Cut
from ...generator.decomposition.generate import generate
from ...generator.decomposition.given import run_as_given
from ...generator.decomposition.oracle import WorkerOracle
from ...generator.machine.system import probe_system
from ...generator.progress import ProgressCallback
from ...generator.trial.trial import Contender, Trial, try_out
from ...generator.trial.turns import Turns, take_turns
from ...models import ModelSource
from ..comparison.difference import Relation, relation
from ..comparison.paired import Paired, paired
from ..estimation.survey import decompose_all
from .blame import BrickChange
from .result import Cause, Change, Confirmation, History, ModelHistory, Standing

__all__ = ["confirm"]

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
    found: History,
    models: Sequence[ModelSource],
    *,
    old: Path,
    new: Path,
    visits: int = 24,
    processes: int = 2,
    granularity: int = 1,
    connected: bool = False,
    progress: ProgressCallback | None = None,
) -> History:
    """Measure the newest alarm of each series of a history again, in the old environment and in the new one in turn.

    Alarms of another system, and of caches that were evicted, stay as they are: this machine cannot tell of the one,
    and a model that is visited in turn is in its own cache state.

    Args:
        found: What ``history`` returned.
        models: The models that it is about.
        old: Lock file (``pylock.toml``) of the old environment, or its interpreter, which has dlbricks.
        new: Of the new one.
        visits: Of each model in each environment.
        processes: Fresh pairs of workers, one after the other.
        granularity: Most layers in the bricks that are held to account.
        connected: Bricks may be weakly connected windows.
        progress: Called between visits.

    Returns:
        The history, with a ``confirmation`` at each change that was measured; ``alarms`` leaves out those that were
        not confirmed.

    Raises:
        UsageError: There is neither a lock file nor an interpreter, or both environments are one.
        BackendUnavailable: An environment cannot be made.
        MachineBusy: Another process is measuring.
    """
    pythons = _python(old), _python(new)
    if pythons[0] == pythons[1]:
        raise UsageError(f"{old} and {new} are one environment", remedy="give the old one and the new one")
    sources = {source.name: source for source in models}
    plan = _Plan(pythons, Cut(granularity, connected=connected), visits, processes, progress, found.minimum_effect)
    rows = [
        row if (alarm := _alarm(row)) is None else _confirmed(row, alarm, sources[row.name], plan) for row in found.rows
    ]
    return replace(found, rows=tuple(rows))


def _python(given: Path) -> Path:
    """The interpreter of an environment."""
    if given.suffix == ".toml":
        return locked_environment(given)
    if not given.is_file():
        raise UsageError(f"{given} is neither a lock file nor an interpreter", remedy="name a pylock.toml or a Python")
    return given.absolute()


def _alarm(row: ModelHistory) -> Change | None:
    """The newest alarm of a series that can be measured here."""
    if row.system != probe_system().key or row.cache == COLD:
        return None
    return next((change for change in reversed(row.changes) if change.cause is not Cause.MACHINE), None)


def _confirmed(row: ModelHistory, alarm: Change, source: ModelSource, plan: _Plan) -> ModelHistory:
    try:
        made = _measured(row, alarm, source, plan)
    except (UsageError, MachineBusy):
        raise
    except DlbricksError as error:
        made = Confirmation(Standing.UNCLEAR, reason=str(error))
    changes = tuple(replace(one, confirmation=made) if one is alarm else one for one in row.changes)
    return replace(row, changes=changes)


def _measured(row: ModelHistory, alarm: Change, source: ModelSource, plan: _Plan) -> Confirmation:
    with TemporaryDirectory(prefix="dlbricks-confirm-") as name:
        folder = Path(name)
        runnable = run_as_given(source, folder / "model", write_out(source.skeleton()).control)
        sides = [
            Contender(
                runnable,
                backend=row.backend or "",
                device=row.device or "cpu",
                options=dict(row.options or {}),
                threads=row.threads or 1,
                dtype=row.dtype or "float32",
                python=python,
            )
            for python in plan.pythons
        ]
        trial = try_out(*sides, visits=plan.visits, processes=plan.processes, progress=plan.progress, label=row.name)
        seen = paired(trial.before_ns, trial.after_ns)
        made = _judged(seen, trial, alarm, plan.minimum_effect)
        if made.standing is not Standing.CONFIRMED:
            return made
        try:
            return replace(made, bricks=_bricks(source, folder, sides, plan))
        except (UsageError, MachineBusy):
            raise
        except DlbricksError as error:  # of the model it is known all the same
            return replace(made, reason=f"{made.reason}; which brick does is not known: {error}")


def _judged(seen: Paired, trial: Trial, alarm: Change, minimum_effect: float) -> Confirmation:
    low, high = seen.difference.ci95
    least = max(minimum_effect, (max(alarm.ratio, 1 / alarm.ratio) - 1) * _SHARE)
    verdict = relation(seen.difference, minimum_effect=least, discovered=not low <= 1 <= high)
    standing, reason = Standing.REFUTED, f"visited in turn, the new environment is {verdict}"
    if verdict is alarm.verdict:
        standing, reason = Standing.CONFIRMED, "visited in turn, the new environment differs in the same way"
    elif verdict is Relation.UNCLEAR:
        standing, reason = Standing.UNCLEAR, "visits in turn do not decide it: give it more of them"
    old, new = (dict(stack.versions) for stack in trial.stacks)
    return Confirmation(
        standing,
        before_ms=seen.before_ms,
        after_ms=seen.after_ms,
        ratio=seen.difference.ratio,
        ratio_ci95=seen.difference.ci95,
        old=old,
        new=new,
        reason=reason,
    )


def _bricks(source: ModelSource, folder: Path, sides: Sequence[Contender], plan: _Plan) -> tuple[BrickChange, ...]:
    """What each brick contributes, those first that moved the model most."""
    made = generate([source], out=folder / "suite", settings=plan.cut).suite
    with WorkerOracle() as oracle:
        (model,) = decompose_all([source], plan.cut, oracle)
    if made is None or isinstance(model, Failed):
        return ()
    paths = {key: made.brick_path(key) for key in made.keys}
    taken = take_turns(
        paths,
        sides[0],
        sides[1],
        visits=plan.visits,
        processes=plan.processes,
        progress=plan.progress,
        label=source.name,
    )
    changes = [one for key, turns in taken.items() if (one := _change(model, key, turns)) is not None]
    return tuple(sorted(changes, key=lambda one: -abs(one.contribution_ms)))


def _change(model: Decomposition, key: str, turns: Turns) -> BrickChange | None:
    if min(float(times.min()) for side in turns for times in side) <= 0:
        return None  # it takes no time that could be measured
    count = Counter(part.key for part in model.sequences)[key]
    part = next(part for part in model.sequences if part.key == key)
    layers = [model.graph.layers[index] for index in part.layers]
    seen = paired(*turns)
    return BrickChange(
        key=key,
        operators=tuple(layer.op_type for layer in layers),
        names=tuple(layer.name for layer in layers),
        occurrences=count,
        before_ms=seen.before_ms,
        after_ms=seen.after_ms,
        ratio=seen.difference.ratio,
        ratio_ci95=seen.difference.ci95,
        contribution_ms=count * (seen.after_ms - seen.before_ms),
        form=form_of(model, part),
    )
