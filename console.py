"""What the command line tells its user on stderr: messages, and a progress bar with a forecast.

The bar is redrawn by the caller's own thread only, between two requests to the worker, so that nothing moves on the
machine while a sample is timed. Where stderr is no terminal, each stage writes one line.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

from .analyzer.tables import printable

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from .generator.progress import Progress

__all__ = ["Reporter", "duration", "note"]

_REDRAW_S = 0.1
"""Drawing more often than this costs time between samples and shows nothing new."""

_VERBS = {
    "generate": "decomposing",
    "prepare": "preparing",
    "sample": "measuring",
    "retry": "retrying",
    "finish": "storing",
}


def note(text: str) -> None:
    """Write one line to stderr."""
    click.echo(printable(text), err=True)


def duration(seconds: float) -> str:
    """Seconds as a reader says them: ``0.4 s``, ``48 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Reporter:
    """Shows the progress of one command; a context manager and the callback itself.

    Args:
        quiet: Show nothing at all.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._stage = ""
        self._drawn_at = float("-inf")
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
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
        verb = _VERBS.get(progress.stage, str(progress.stage))
        if self._bar is None:
            if verb != self._stage:
                forecast = "" if progress.remaining_s is None else f", about {duration(progress.remaining_s)} left"
                note(f"{verb}: {progress.done} of {progress.total}{forecast}")
        elif verb != self._stage or progress.done >= progress.total or self._is_due(progress.elapsed_s):
            self._draw(verb, progress)
        self._stage = verb

    def _is_due(self, elapsed_s: float) -> bool:
        return elapsed_s - self._drawn_at >= _REDRAW_S

    def _draw(self, verb: str, progress: Progress) -> None:
        assert self._bar is not None  # noqa: S101 - only called with a bar
        self._drawn_at = progress.elapsed_s
        if self._task is None:
            self._task = self._bar.add_task(verb, total=progress.total, left="", label="")
        left = "" if progress.remaining_s is None else f"{duration(progress.remaining_s)} left"
        label = printable(progress.label)[:24]
        self._bar.update(
            self._task, description=verb, completed=progress.done, total=progress.total, left=left, label=label
        )
        self._bar.refresh()


def _new_bar() -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    return Bar(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.fields[label]}", style="dim", markup=False),
        console=Console(stderr=True),
        auto_refresh=False,  # no thread: a redraw during a sample would be timed with it
        transient=True,
    )
