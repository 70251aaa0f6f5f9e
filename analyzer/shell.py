"""Tasks as commands of a shell: the one place that knows how the command line calls them and their options."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from ..constructor.remedies import Task, TaskKind
from ..constructor.result import Estimate
from ..models import ModelSource
from ..models.control_flow import OBSERVED, CourseChoice, How
from ..models.external import follows_links

_CUSTOM_OPS = "custom_ops"
"""An option that is given by naming a file, whose path nobody keeps."""

_DEFAULT_RUNTIME = {("--backend", "onnxruntime"), ("--device", "cpu")}


def shell_command(task: Task) -> str:
    """Return the shell command of a task.

    Example:
        >>> from dlbricks.constructor.remedies import Task, TaskKind
        >>> shell_command(Task(TaskKind.CEILINGS, threads=2))
        'dlbricks system --ceilings --threads 2'
    """
    return " && ".join(shell_steps(task))


def improve_command(source: ModelSource, threads: int | None, out: str = "", database: str | None = None) -> str:
    """Return the shell command that searches rewrites of a model; by default the new file has the model's name."""
    name = source.zoo or (source.name if source.path is None else source.path.stem)
    words = [*model_words(source), "-o", out or f"{name}-faster.onnx", "--threads", str(threads or 1)]
    return shlex.join(["dlbricks", "improve", *words, *_words(_given([("--db", database)]))])


def report_command(entry: Estimate, threads: int | None) -> str:
    """Return the shell command that measures a model and tries its remedies."""
    words = [*model_words(entry.model.source), "--threads", str(threads or 1)]
    return shlex.join(["dlbricks", "report", *words, *_words(_given([("--db", _database_of(entry))]))])


def shell_steps(task: Task, *, database: bool = True) -> list[str]:
    """Return the commands of a task, in order.

    Args:
        task: The task.
        database: Name the database of the results.
    """
    model = [] if task.source is None else model_words(task.source)
    runtime = [
        *_given([("--backend", task.backend), ("--device", task.device)]),
        *(("--option", f"{name}={value}") for name, value in task.options if name != _CUSTOM_OPS),
        *(("--custom-ops", "LIB") for name, _ in task.options if name == _CUSTOM_OPS),
    ]
    conditions = _given([("--threads", task.threads), ("--cache", task.cache), ("--dtype", task.dtype)])
    how = _words([*runtime, *conditions])
    match task.kind:
        case TaskKind.BRICKS:
            cut = [*model, "-g", str(task.granularity), *(["--overlap"] if task.overlap else [])]
            cut += ["--connected"] if task.connected else []
            cut += ["--graph", task.graph]
            if task.graph != "source":
                cut += _words(option for option in runtime if option not in _DEFAULT_RUNTIME)
            # A name of its own: ``generate`` replaces a suite, and the user's own must not be the one.
            digest = hashlib.sha256("\0".join(cut).encode("utf-8", "surrogateescape")).hexdigest()
            suite = f"suite-g{task.granularity}-{digest[:8]}"
            algorithms = _words(("--algorithm", name) for name in task.algorithms)
            steps = [["generate", *cut, "-o", suite], ["run", suite, *how, *algorithms]]
        case TaskKind.MODEL:
            steps = [["measure", *model, *how]]
        case TaskKind.CEILINGS:
            steps = [["system", "--ceilings", *how]]
        case TaskKind.PROOFS:
            where = _given([("--backend", task.backend), ("--device", task.device)])
            steps = [["analyze", *model, *_words([*where, *conditions]), "--prove", "--write", "improved"]]
    steps[-1] += _words(_given([("--db", task.database if database else None), ("--again", task.again)]))
    steps[-1] += ["--kernels"] if task.kernels else []
    return [shlex.join(["dlbricks", *words]) for words in steps]


def model_words(source: ModelSource) -> list[str]:
    """Return the arguments of a model."""
    words = [source.zoo or str(source.path or source.name), *_words(_given([("--batch", source.batch)]))]
    words += _words(("--dim", f"{name}={size}") for name, size in source.dims)
    words += _words(("--value", f"{name}={text}") for name, text in source.given.values)
    words += _words(("--data", str(path)) for path in source.given.files)
    words += ["--follow-links"] if source.path is not None and follows_links() else []
    observed = any(choice.how is How.OBSERVED for choice in source.control)
    return [
        *words,
        *_words(_course(choice) for choice in source.control if choice.how is How.GIVEN),
        *(["--branch", OBSERVED] if observed else []),
    ]


def _course(choice: CourseChoice) -> tuple[str, str]:
    option = "--branch" if isinstance(choice.course, str) else "--trip"
    return option, f"{choice.node}={choice.course}" if choice.node else str(choice.course)


def _given(options: Iterable[tuple[str, object]]) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in options if value is not None]


def _words(options: Iterable[tuple[str, str]]) -> list[str]:
    return [word for option in options for word in option]


def spelled(fields: Mapping[str, Any], **keys: str) -> dict[str, Any]:
    """Return the fields of a result for JSON, with tasks as commands.

    Args:
        fields: Values by name.
        keys: Other keys by name.
    """
    return {keys.get(name, name): _spelled(value) for name, value in fields.items()}


def _spelled(value: object) -> object:
    match value:
        case Task():
            return shell_command(value)
        case (Task(), *_):
            return tuple(map(_spelled, value))
        case _:
            return value


def with_command(reason: str | None, entry: Estimate) -> str | None:
    """Return a reason with a command if the model is not measured."""
    task = entry.truth.remedy
    unmeasured = task is not None and reason is not None and reason == entry.truth.reason
    return f"{reason}: {shell_command(task)}" if unmeasured and task is not None else reason


def proof_command(entry: Estimate) -> str:
    """Return the command that tries every remedy of a model."""
    return shell_command(_proofs(entry))


def search_command(entry: Estimate) -> str:
    """Return the command that searches rewrites of an estimated model, and stores what it proves beside the rest."""
    return improve_command(entry.model.source, entry.place.threads, database=_database_of(entry))


def _proofs(entry: Estimate) -> Task:
    if entry.evidence is None:
        return Task(TaskKind.PROOFS, entry.model.source)
    return entry.evidence.request.remedies.proofs(entry.model.source)


def _database_of(entry: Estimate) -> str | None:
    return _proofs(entry).database


def why_unbounded(entry: Estimate) -> str | None:
    """Return the reason why an estimate has no roofline, with the command that measures it; None if it has one."""
    task = entry.roofline.remedy
    return entry.roofline.reason if task is None else f"{entry.roofline.reason}: {shell_command(task)}"
