"""How many of the planted faults an analysis finds, and how much else it says."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from facts import percent, share
from plants.corpus import HALVES

_LIST = Path(__file__).with_name("kinds.csv")


class Named(Protocol):
    """The fields of a finding that are read."""

    @property
    def kind(self) -> str:
        """Name of the analysis."""

    @property
    def layers(self) -> Sequence[str]:
        """Names of the layers concerned."""

    @property
    def at_most(self) -> bool:
        """True if it gives an upper limit instead of a saving."""


@dataclass(frozen=True)
class Accepted:
    """The right findings for a kind of fault.

    Attributes:
        findings: Their kinds.
        whole: A finding about the whole model, without a layer, is right, too.
    """

    findings: frozenset[str]
    whole: bool

    def kind_of(self, found: Named) -> bool:
        """Return True if a finding has the right kind."""
        return found.kind in self.findings

    def place_of(self, found: Named, layers: frozenset[str]) -> bool:
        """Return True if it names a planted layer, or need not name one."""
        return bool(layers & set(found.layers)) or (self.whole and not found.layers)


@cache
def accepted() -> dict[str, Accepted]:
    """Return the rows of ``kinds.csv``, by kind of fault."""
    with _LIST.open() as file:
        return {
            row["kind"]: Accepted(frozenset(row["findings"].split()), row["whole"] == "yes")
            for row in csv.DictReader(file)
        }


@dataclass(frozen=True)
class Verdict:
    """The judgement of one plant.

    Attributes:
        name: Name of the plant.
        kind: Kind of its fault.
        half: Half of its architecture.
        found: A finding has the right kind and place.
        mentioned: A finding has the right kind, at any place.
        planted: Findings on the faulty model with the right kind and place.
        shared: Other findings with a saving, of a kind that the clean twin has as well.
        other: Kinds of all other findings.
        twin: Kinds of the findings on the clean twin.
        blamed: Findings on the twin of the planted kind at the fault's place (or without a layer, if the remedy is an
            option of the session): a repaired fault that is still reported.
        alike: Findings on the twin of the planted kind, at any place.
        error: Why a model could not be analysed.
    """

    name: str
    kind: str
    half: str
    found: bool = False
    mentioned: bool = False
    planted: int = 0
    shared: int = 0
    other: tuple[str, ...] = ()
    twin: tuple[str, ...] = ()
    blamed: int = 0
    alike: int = 0
    error: str | None = None


def judge(
    *,
    name: str,
    kind: str,
    half: str,
    layers: Sequence[str],
    faulty: Sequence[Named],
    clean: Sequence[Named],
    repaired: Sequence[str] = (),
    error: str | None = None,
) -> Verdict:
    """Compare the findings on a faulty model and on its clean twin with the plant."""
    right, place = accepted()[kind], frozenset(layers)
    planted = [one for one in faulty if right.kind_of(one) and right.place_of(one, place)]
    rest = [one for one in faulty if one not in planted and not one.at_most]
    on_twin = {one.kind for one in clean}
    return Verdict(
        name=name,
        kind=kind,
        half=half,
        found=bool(planted),
        mentioned=any(map(right.kind_of, faulty)),
        planted=len(planted),
        shared=sum(one.kind in on_twin for one in rest),
        other=tuple(one.kind for one in rest if one.kind not in on_twin),
        twin=tuple(one.kind for one in clean),
        blamed=sum(right.kind_of(one) and right.place_of(one, frozenset(repaired)) for one in clean),
        alike=sum(map(right.kind_of, clean)),
        error=error,
    )


def scored(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Recall and precision of some verdicts; None of nothing."""
    said = sum(one.planted + one.shared + len(one.other) for one in verdicts)
    return {
        "plants": len(verdicts),
        "recall": share(sum(one.found for one in verdicts), len(verdicts)),
        "recall_of_kind": share(sum(one.mentioned for one in verdicts), len(verdicts)),
        "findings": said,
        "precision": share(sum(one.planted + one.shared for one in verdicts), said),
        "twin_findings": sum(len(one.twin) for one in verdicts),
        "twins_blamed": sum(one.blamed > 0 for one in verdicts),
        "twins_alike": sum(one.alike > 0 for one in verdicts),
        "errors": sum(one.error is not None for one in verdicts),
    }


def result(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """All figures: together, by half, by kind, and each plant."""
    return {
        "all": scored(verdicts),
        "halves": {half: scored([one for one in verdicts if one.half == half]) for half in HALVES},
        "kinds": {
            kind: {
                "all": scored([one for one in verdicts if one.kind == kind]),
                **{half: scored([one for one in verdicts if (one.kind, one.half) == (kind, half)]) for half in HALVES},
            }
            for kind in sorted({one.kind for one in verdicts})
        },
        "plants": [asdict(one) for one in verdicts],
    }


def report(found: Mapping[str, Any]) -> str:
    """As Markdown."""
    lines = [
        "# How many planted faults are found",
        "",
        (
            f"dlbricks {found['dlbricks']}, {found['date']}, {found['system']['cpu']}. A plant is found "
            "where a finding of the right kind names at least one planted layer (or, where the remedy is an option of "
            "the session, no layer). *Of the kind*: of the right kind, wherever. Precision: findings on faulty models "
            "that answer to the plant, or are of a kind that the clean twin has too, of all that claim a saving (and "
            "not the most that there could be) or answer to the plant. *Twins blamed*: clean twins with a finding of "
            "the planted kind at what stands in the fault's place (*alike*: wherever)."
        ),
        "",
        "| | plants | recall | of the kind | findings | precision | on twins | twins blamed | alike | errors |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    parts = {"all": found["all"], **{f"half {half}": part for half, part in found["halves"].items()}}
    for kind, of_kind in found["kinds"].items():
        parts[kind] = of_kind["all"]
        parts |= {f"{kind}, {half}": of_kind[half] for half in HALVES if of_kind[half]["plants"]}
    for name, part in parts.items():
        lines.append(
            f"| {name} | {part['plants']} | {percent(part['recall'])} | {percent(part['recall_of_kind'])} | "
            f"{part['findings']} | {percent(part['precision'])} | {part['twin_findings']} | "
            f"{part['twins_blamed']} | {part['twins_alike']} | {part['errors']} |"
        )
    missed = [one for one in found["plants"] if not one["found"]]
    lines += ["", "Not found:" if missed else "All are found.", ""]
    lines += [f"* {one['name']} ({one['half']}){': ' + one['error'] if one['error'] else ''}" for one in missed]
    return "\n".join([*lines, ""])
