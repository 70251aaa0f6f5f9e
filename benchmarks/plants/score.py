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
    """What is read of a finding."""

    @property
    def kind(self) -> str:
        """Name of the analysis."""

    @property
    def layers(self) -> Sequence[str]:
        """Names of the layers concerned."""

    @property
    def at_most(self) -> bool:
        """Whether it says what could be saved at most, and claims no saving."""


@dataclass(frozen=True)
class Accepted:
    """Which findings answer to a kind of fault.

    Attributes:
        findings: Their kinds.
        whole: Whether a finding about the whole model, which names no layer, answers to it too.
    """

    findings: frozenset[str]
    whole: bool

    def kind_of(self, found: Named) -> bool:
        """Whether a finding is of the right kind."""
        return found.kind in self.findings

    def place_of(self, found: Named, layers: frozenset[str]) -> bool:
        """Whether it names a planted layer, or may go without."""
        return bool(layers & set(found.layers)) or (self.whole and not found.layers)


@cache
def accepted() -> dict[str, Accepted]:
    """The rows of ``kinds.csv``, by kind of fault."""
    with _LIST.open() as file:
        return {
            row["kind"]: Accepted(frozenset(row["findings"].split()), row["whole"] == "yes")
            for row in csv.DictReader(file)
        }


@dataclass(frozen=True)
class Verdict:
    """What was said of one plant.

    Attributes:
        name: Of the plant.
        kind: Of its fault.
        half: Of its architecture.
        found: Whether a finding of the right kind has the right place.
        mentioned: Whether one is of the right kind, wherever.
        planted: Findings on the faulty model of the right kind and place.
        shared: Others that claim a saving, of a kind that was found on the clean twin too.
        other: The kinds of all others.
        twin: Kinds of the findings on the clean twin.
        blamed: Of these, those of the planted kind at what stands in the fault's place (or, where the remedy is an
            option of the session, without a layer): what was repaired is said to be there still.
        alike: All of the planted kind, wherever.
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
    """Hold the findings on a faulty model and on its clean twin against what was planted."""
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
