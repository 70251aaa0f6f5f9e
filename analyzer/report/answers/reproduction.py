"""Answers of ``manifest`` and ``reproduce``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....tabular import Field
from ...comparison.difference import Relation
from ..tables import MOST, Answer, Line, table_lines
from ..units import counted, cut, percent

if TYPE_CHECKING:
    from ...manifests.manifest import Manifest
    from ...manifests.reproduce import FieldDifference, ReproducedBrick, Reproduction

_WITNESSES = {"compute": "arithmetic", "memory": "memory", "call": "a call of the runtime"}

_SHOWN = 12
"""Characters of a key in a summary; JSON has all of it."""

_NAMED = 8
"""Missing bricks that a summary names; JSON has all."""

_LONGEST = 40
"""Characters of a value in a table; JSON has all of it."""


def manifest_answer(manifest: Manifest, file: Path) -> Answer:
    """Return the answer of ``manifest``: one row.

    Args:
        manifest: The manifest.
        file: Its file.
    """
    lacking, missing = manifest.provenance.without_hash, manifest.missing
    row = {
        "file": str(file),
        "run": manifest.run,
        "suite": manifest.suite,
        "bricks": manifest.bricks,
        "missing": missing,
        "packages": len(manifest.provenance.packages),
        "without_hash": lacking,
        "lock": manifest.lock is not None,
    }
    said = [f"{file}: {counted(manifest.bricks, 'brick')} of run {manifest.run[:8]}, and their suite"]
    if missing:
        said.append(
            f"{counted(len(missing), 'brick')} of the suite are not of this run: --again all measures them in one"
        )
    if lacking:
        packages = counted(len(lacking), "package")
        said.append(f"no lock file: the hashes of {packages} are not known here; --hashes asks pip for them")
    return Answer([row], summary=said)


def reproduction_answer(reproduction: Reproduction, *, most: int | None = MOST) -> Answer:
    """Return the answer of ``reproduce``: one row per brick of the manifest; differences as totals.

    Args:
        reproduction: The reproduction.
        most: Listed bricks, the largest differences first; None: all.
    """
    shares = {str(verdict): reproduction.verdicts.get(verdict, 0) for verdict in Relation}
    ranked = sorted(reproduction.rows, key=_distance, reverse=True)
    summary: list[Line] = []
    if reproduction.rows:
        whole = len(reproduction.rows)
        parts = [f"{count} {name} ({percent(count / whole)})" for name, count in shares.items() if count]
        lost = whole - sum(shares.values())
        parts += [f"{lost} not measured"] if lost else []
        summary.append(
            f"of {counted(whole, 'brick')}: {', '.join(parts)}; SAME is within {reproduction.minimum_effect:.3g}"
        )
        if reproduction.ratio is not None:
            summary.append(f"all together take {reproduction.ratio:.3f} times as long as the manifest says")
        if reproduction.machine:
            moved = ", ".join(f"{_WITNESSES[name]} {ratio:.2f}" for name, ratio in reproduction.machine.items())
            summary.append(f"the machine, relative to then: {moved}")
        summary += [f"{whole - most} more bricks; --all lists them"] if most is not None and whole > most else []
    if reproduction.missing:
        listed = ", ".join(key[:_SHOWN] for key in reproduction.missing[:_NAMED])
        more = ", …" if len(reproduction.missing) > _NAMED else ""
        summary.append(
            f"not in the manifest: {counted(len(reproduction.missing), 'brick')} of the suite ({listed}{more})"
        )
    summary += _different(
        reproduction.differences, nothing="nothing differs in hardware, software, packages or settings"
    )
    return Answer.of(
        reproduction.records(),
        columns=[
            Field("brick"),
            Field("manifest_ms", "manifest ms", "ms"),
            Field("here_ms", "here ms", "ms"),
            Field("ratio", "ratio ±95%", "ratio", interval="ratio_ci95"),
            Field("verdict"),
            Field("reason", "why", spare=True),
        ],
        summary=summary,
        table=[{**row.record(), "brick": "+".join(row.operators)} for row in ranked[:most]],
    )


def _distance(row: ReproducedBrick) -> float:
    return float("inf") if row.ratio is None else max(row.ratio, 1 / row.ratio)


def _different(differences: Sequence[FieldDifference], *, nothing: str) -> list[Line]:
    if not differences:
        return [nothing]
    rows = [
        {"field": field.field, "manifest": _short(field.manifest), "here": _short(field.here)} for field in differences
    ]
    columns = [Field("field", "differs"), Field("manifest"), Field("here")]
    return ["", *table_lines(rows, columns)]


def _short(value: Any) -> str:
    return cut("not known" if value is None else str(value), _LONGEST)
