"""What analyses of patterns have in common: where a rewrite applies, and what of it the runtime really executes.

A pattern of the model's own graph counts where operators that came from it alone are executed: what the runtime fuses,
merges or removes by itself is no finding. All places that one rewrite changes are one finding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from ....constructor.remedies import Task, TaskKind
from ....generator.rewriting.pattern import Match
from ....generator.rewriting.rewrite import matches
from ...shell import shell_command
from ..analysis import Analysis, Idea, finding, spent_by
from ..finding import Finding, Remedy
from ..subject import Node, Spent, Subject

__all__ = ["Priced", "executed", "of_rewrite", "remedy_of"]

Priced = Callable[[Subject, Match, list[Node]], list[Node] | Spent | None]
"""What of the executed operators of a match would go: these, or so much of them; None where that is not known."""

_SHOWN = 3


def of_rewrite(
    name: str,
    rewrite: str,
    *,
    title: str,
    text: str,
    priced: Priced,
    fused: Collection[str] = (),
    why: Callable[[Match], str] | None = None,
) -> Analysis:
    """The analysis that asks what a rewrite would save.

    Args:
        name: What its findings are called.
        rewrite: Name of the rewrite.
        title: What is missed; ``{}`` is the number of places.
        text: What to do.
        priced: What would go.
        fused: Operators that the runtime does it with: a place where one of them is executed is none.
        why: Why the runtime does not do it by itself. Where something else reads a value in the midst, a rewrite could
            not leave out what makes that either: that is a finding of ``broken_fusion``.
    """

    def going(subject: Subject) -> Iterable[tuple[Match, list[Node], list[Node] | Spent | None]]:
        """The places where something would go, with what is executed there and what of it goes."""
        for match, nodes in executed(subject, rewrite, fused):
            gone = priced(subject, match, nodes)
            if gone != [] and not (why and match.broken_by):
                yield match, nodes, gone

    def run(subject: Subject) -> Iterable[Finding]:
        places = []
        for match, nodes, gone in going(subject):
            current = subject.spent(nodes)
            saving = subject.spent(gone) if isinstance(gone, list) else gone
            if current is not None and saving is not None:
                places.append((match, nodes, current, saving))
        if not places:
            return
        distinct = {id(node): node for _, nodes, _, _ in places for node in nodes}
        current = subject.spent(list(distinct.values()))
        assert current is not None  # noqa: S101  # each of them is measured
        evidence = [f"'{match.value}': {spent_by(nodes)}" for match, nodes, _, _ in places[:_SHOWN]]
        evidence += [f"and {len(places) - _SHOWN} places more like these"] if len(places) > _SHOWN else []
        evidence += list(dict.fromkeys(why(match) for match, *_ in places if why is not None))[:_SHOWN]
        yield finding(
            subject,
            name,
            title.format(len(places)),
            layers=[index for match, *_ in places for index in match.layers],
            current=current,
            # Places that are alike err together: their intervals are added up.
            saving=Spent(sum(one.ms for *_, one in places), sum(one.half_ms for *_, one in places), ()),
            evidence=evidence,
            remedy=remedy_of(subject, rewrite, text, len(places)),
        )

    def ideas(subject: Subject) -> Iterable[Idea]:
        found = [match for match, *_ in going(subject)]
        if found:
            layers = subject.names(index for match in found for index in match.layers)
            remedy = remedy_of(subject, rewrite, text, len(found))
            yield Idea(name, title.format(len(found)), remedy, layers=layers)

    return Analysis(name, run=run, ideas=ideas)


def executed(subject: Subject, rewrite: str, fused: Collection[str] = ()) -> list[tuple[Match, list[Node]]]:
    """The places where a rewrite applies, with the operators that are executed there and nowhere else.

    An operator that came from the layers of several places (a product and an activation that are fused) goes where the
    first of them is: the rewrite changes them all.
    """
    places = matches(rewrite, subject.graph, subject.source)
    found, taken = [], set[int]()
    everywhere = subject.of({index for match in places for index in match.layers})
    for match in places:
        nodes = [node for node in everywhere if node.origins & set(match.layers) and id(node) not in taken]
        taken |= {id(node) for node in nodes}
        if nodes and not any(node.layer.op_type in fused for node in subject.touching(match.layers)):
            found.append((match, nodes))
    return found


def remedy_of(subject: Subject, rewrite: str, text: str, places: int) -> Remedy:
    """A rewrite as what to do.

    Args:
        subject: The model.
        rewrite: Name of the rewrite.
        text: One sentence for people.
        places: At how many places it applies.
    """
    return Remedy(
        action="rewrite",
        text=text,
        settings={"rewrite": rewrite, "places": str(places)},
        code=shell_command(Task(TaskKind.PROOFS, subject.source)),
    )
