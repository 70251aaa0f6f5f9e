"""The course of control flow: which branch of an If, how many iterations of a Loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from onnx import AttributeProto, GraphProto, NodeProto

from ...errors import BrokenModel, UsageError

__all__ = ["BRANCHES", "OBSERVED", "Choice", "Course", "How", "body_of", "chosen", "label_of", "read_choices"]

Course = str | int
"""``then`` or ``else`` of an If; the number of iterations of a Loop or Scan."""

BRANCHES = ("then", "else")

OBSERVED = "observed"
"""In place of a course: as one execution takes it."""


class How(StrEnum):
    """Where the course of a control-flow operator is known from."""

    RESOLVED = "resolved"
    """From the file: its condition or its number of iterations is constant."""
    GIVEN = "given"
    """The caller said it."""
    OBSERVED = "observed"
    """It was seen in one execution with seeded inputs."""
    UNKNOWN = "unknown"
    """It is not known; the operator is one layer."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The course of one operator, or of all of its kind.

    Attributes:
        node: Name of the operator, or of its first output where it has none; empty: all that no other choice names.
        course: The course.
        how: Given or observed.
    """

    node: str
    course: Course
    how: How = How.GIVEN


def label_of(node: NodeProto) -> str:
    """What people call an operator: its name, or that of its first output."""
    return str(node.name or next(filter(None, node.output), ""))


def body_of(node: NodeProto, name: str) -> GraphProto:
    """The body of a control-flow operator.

    Raises:
        BrokenModel: It has none of that name.
    """
    for attribute in node.attribute:
        if attribute.name == name and attribute.type == AttributeProto.GRAPH:
            body: GraphProto = attribute.g
            return body
    raise BrokenModel(f"{node.op_type} '{label_of(node)}' has no {name}")


def chosen(choices: Sequence[Choice], label: str, *, branch: bool) -> Choice | None:
    """The choice that holds for an operator: what was given over what was observed, then one that names it, the first.

    Args:
        choices: All of a model.
        label: Of the operator.
        branch: Whether it is an If; else it iterates.
    """
    fitting = [one for one in choices if one.node in {label, ""} and isinstance(one.course, str) == branch]
    return min(fitting, key=lambda one: (one.how is How.OBSERVED, not one.node), default=None)


def read_choices(branches: Iterable[str], trips: Iterable[str]) -> tuple[tuple[Choice, ...], bool]:
    """Read courses as people write them.

    Args:
        branches: ``then``, ``NODE=else`` or ``observed``.
        trips: ``12``, ``NODE=12`` or ``observed``.

    Returns:
        The choices, and whether the others are to be observed.

    Raises:
        UsageError: One is something else.

    Example:
        >>> read_choices(["speech=then"], ["3"])[0][0].course
        'then'
    """
    found: list[Choice] = []
    observe = False
    for option, texts in (("--branch", branches), ("--trip", trips)):
        for text in texts:
            node, _, word = text.rpartition("=")
            if word == OBSERVED and not node:
                observe = True
            elif option == "--branch" and word in BRANCHES:
                found.append(Choice(node, word))
            elif option == "--trip" and word.isdecimal() and len(word) <= len(str(1 << 31)):
                found.append(Choice(node, int(word)))
            else:
                wanted = "then, else, NODE=then" if option == "--branch" else "12, NODE=12"
                raise UsageError(f"{option} {text}: no course of control flow", remedy=f"write {wanted} or {OBSERVED}")
    return tuple(found), observe
