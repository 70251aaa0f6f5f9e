"""Output of commands: the answer on stdout; messages and a progress bar on stderr.

Only the caller's thread redraws the bar, between two requests to the worker: nothing may run while a sample is timed.
If stderr is not a terminal, long commands write a line now and then.
"""

from __future__ import annotations

import functools
import math
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import click

from ..analyzer.report.tables import MOST, Answer, Format, only_errors, printable, render
from ..analyzer.report.units import duration

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from ..analyzer.limits import Figure, Judgement, Limit
    from ..generator.progress import Progress

Command = TypeVar("Command", bound=Callable[..., Any])

INCOMPLETE = 3
"""Exit code of a command that did its work, but not all of it."""

CROSSED, UNDECIDED = 4, 5
"""Exit codes if a result is beyond a limit of ``--fail-on``, and if this cannot be decided."""

_REDRAW_S = 0.1
"""Drawing more often than this costs time between samples and shows nothing new."""

_FIRST_S = 2.0
"""Seconds before the first line if stderr is not a terminal, and before a forecast from finished steps: the first of
thousands says little."""

_LINE_S = 10.0
"""Least seconds between two lines if stderr is not a terminal."""

_VERBS = {
    "generate": "decomposing",
    "prepare": "preparing",
    "sample": "measuring",
    "check": "comparing",
    "plan": "planning",
    "retry": "retrying",
    "analyse": "analysing",
    "profile": "profiling",
}


def kept(name: str) -> Callable[[Command], Command]:
    """Return a decorator that keeps an option in the context of a command; this module reads it there."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(**options: Any) -> None:
            del options[name]
            command(**options)

        return cast("Command", run)

    return decorate


def _option(name: str) -> Any:
    """Return the value of an option that is kept in the context; None if the command does not have this option."""
    return click.get_current_context().params.get(name)


def is_quiet() -> bool:
    """Return true if the command shows no progress."""
    return bool(_option("quiet"))


def most_rows() -> int | None:
    """Return the number of rows that a table lists; None: all."""
    return None if _option("every") else MOST


def watched() -> Reporter:
    """Return the progress of the command."""
    return Reporter(quiet=is_quiet())


def show_and_raise(result: Answer, interrupted: KeyboardInterrupt | None) -> None:
    """Write the results up to an interruption, and raise it again; without an interruption, do nothing."""
    if interrupted is not None:
        click.echo(render(result, _option("form"), width=_width()), nl=False)
        raise interrupted


def answer(result: Answer, *, complete: bool = True, crossed: bool = False, undecided: bool = False) -> None:
    """Write a command's answer to stdout; if every result is an error, write the errors to stderr.

    The exit code is 4 for a crossed limit, 5 for an undecided limit, 3 for an incomplete answer, and 1 without any
    success.
    """
    form = _option("form")
    if form == Format.TABLE and (errors := only_errors(result)):
        for error in errors:
            note(f"dlbricks: {' '.join(error.split())}")
        click.get_current_context().exit(1)
    click.echo(render(result, form, width=_width()), nl=False)
    if crossed:
        click.get_current_context().exit(CROSSED)
    if undecided:
        click.get_current_context().exit(UNDECIDED)
    if not complete:
        failed = result.results and all(row.get("error") is not None for row in result.results)
        click.get_current_context().exit(1 if failed else INCOMPLETE)


def judgements(limits: Sequence[Limit], figures: Mapping[str, Mapping[str, Figure]]) -> list[Judgement]:
    """Hold limits against figures; without limits nothing is loaded."""
    if not limits:
        return []
    from ..analyzer.limits import judged_limits

    return judged_limits(limits, figures)


def with_limits(result: Answer, judged: Sequence[Judgement]) -> Answer:
    """Return an answer that begins with the judgements on limits."""
    return replace(result, summary=[*(judgement.line for judgement in judged), *result.summary])


def standing(judged: Sequence[Judgement]) -> dict[str, bool]:
    """Return the arguments of ``answer`` for crossed and undecided limits."""
    standings = {str(judgement.standing) for judgement in judged}
    return {"crossed": "crossed" in standings, "undecided": "cannot tell" in standings}


def _width() -> int | None:
    """Return the width of the terminal; None if the output goes elsewhere and must not be cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def note(text: str) -> None:
    """Write one line to stderr."""
    click.echo(printable(text), err=True)


def draw(result: Any, target: Path | None) -> None:
    """Write the plots of a result if a place is given, and name their files."""
    if target is None:
        return
    from ..analyzer.report.drawing import plots

    for path in plots(result).write(target):
        note(f"drawn: {path}")


class Reporter:
    """Progress of one command; a context manager and the callback itself.

    Args:
        quiet: Show nothing.
        clock: Seconds, of a clock that only goes forward.

    Attributes:
        part: The part of the command that the steps belong to, for the text of the bar.
    """

    part = ""

    def __init__(self, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._quiet = quiet
        self._clock = clock
        self._begun_s = clock()
        self._noted_s = self._drawn_s = float("-inf")
        self._told_s, self._rose = math.inf, False
        self._told_of: object = None
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and not self._quiet:
            self._bar = _new_bar()
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        """Show one step."""
        if self._quiet:
            return
        verb, now = _VERBS.get(progress.stage, str(progress.stage)) + self.part, self._clock()
        if self._told_of != (progress.stage, self.part):  # another step, with a forecast of its own
            self._told_of, self._told_s, self._rose = (progress.stage, self.part), math.inf, False
        has_forecast = progress.remaining_s is not None and (now - self._begun_s >= _FIRST_S or not progress.done)
        left_s = progress.remaining_s if has_forecast else None
        if self._bar is not None:
            if progress.done >= progress.total or now - self._drawn_s >= _REDRAW_S:
                self._drawn_s = now
                self._draw(self._bar, verb, progress, self._forecast(left_s))
        elif now - self._begun_s >= _FIRST_S and now - self._noted_s >= _LINE_S:
            self._noted_s = now
            remaining = self._forecast(left_s)
            note(f"{verb}: {progress.done} of {progress.total}{remaining and f', {remaining}'}")

    def _forecast(self, left_s: float | None) -> str:
        """Return the words of a forecast; an empty text if the forecast would rise twice in a row."""
        if left_s is None:
            return ""
        rises = left_s > self._told_s
        if rises and self._rose:
            return ""
        self._told_s, self._rose = left_s, rises
        return f"about {duration(left_s)} left"

    def _draw(self, bar: Bar, verb: str, progress: Progress, remaining: str) -> None:
        if self._task is None:
            self._task = bar.add_task(verb, total=progress.total, left="", label="")
        bar.update(
            self._task,
            description=verb,
            completed=progress.done,
            total=progress.total,
            left=remaining,
            label=printable(progress.label)[:24],
        )
        bar.refresh()


def _new_bar() -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.fields[label]}", style="dim", markup=False),
        console=Console(stderr=True),
        auto_refresh=False,  # no thread: a redraw during a sample would be timed with it
        transient=True,
    )
