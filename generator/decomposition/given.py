"""Whole models along the courses that the caller gave their control flow, which are those that estimates are of."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from ...bricks.graph.control import ControlFlow, given_courses
from ...models import ModelSource
from ...models.control.forcing import force
from ...models.runnable import Runnable

__all__ = ["run_as_given"]


def run_as_given(source: ModelSource, folder: Path, control: Iterable[ControlFlow]) -> Runnable:
    """What a runtime loads to execute a model along its given courses: where there are some, a changed copy.

    Args:
        source: The model.
        folder: As for ``ModelSource.runnable``.
        control: Its control flow, as ``bricks.graph.control.write_out`` says it.

    Raises:
        ModelError: It cannot be read, bound or written.
    """
    given = given_courses(control)
    return source.runnable(folder, edit=partial(force, choices=given) if given else None)
