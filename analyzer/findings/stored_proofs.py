"""Proofs of models in the database: results of trials, and names of untried remedies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from ...constructor.choice import Choice
from ...db import Proofs, Store, Subject
from ...db.values import TRIED_CACHE, Circumstances, Identity
from ...models import ModelSource
from ...models.source import contents
from ..shell import improve_command
from .finding import IMPROVE, LATE, LONGER, MANUAL, REWRITES, UNABLE, Finding, joint_of, lines_of

# A proof belongs to a model's file on one system and stack, as a measurement does: it stays where the model is measured
# again, and leaves with the database. Only what was tried is stored. Predictions are made anew from what is stored.


FORM = 1
"""Changes whenever findings are written otherwise, or there are other analyses: earlier proofs are tried again."""

OTHERS = ("every other remedy",)
"""What was not tried after ``improve``."""


@dataclass(frozen=True, slots=True)
class Tried:
    """Results of trials for a model.

    Attributes:
        findings: The tried findings, with their results.
        untried: Names of remedies and analyses that were not tried; empty after a complete trial.
    """

    findings: tuple[Finding, ...]
    untried: tuple[str, ...] = ()

    def of(self, latency_ms: float | None) -> Tried:
        """Return the same with savings of a model's present latency."""
        return replace(self, findings=tuple(_referred(finding, latency_ms) for finding in self.findings))

    def has(self, finding: Finding) -> bool:
        """Return True if a finding is among them."""
        return _way(finding) in map(_way, self.findings)

    @property
    def improved(self) -> list[Finding]:
        """The findings of ``improve``, which belong together."""
        return [finding for finding in self.findings if _of_improve(finding)]

    @property
    def others(self) -> list[Finding]:
        """The other findings."""
        return [finding for finding in self.findings if not _of_improve(finding)]


def together(*groups: Sequence[Finding]) -> list[Finding]:
    """Return the findings of all groups, without those that an earlier group has too."""
    ways, findings = set[tuple[object, ...]](), list[Finding]()
    for group in groups:
        new = [finding for finding in group if _way(finding) not in ways]
        ways |= {_way(finding) for finding in new}
        findings += new
    return findings


def saves_more(findings: Sequence[Finding], others: Sequence[Finding]) -> bool:
    """Return True if all of some findings of ``improve`` together are proven to save more than others."""
    ours, theirs = joint_of(findings, 1.0), joint_of(others, 1.0)
    return ours is not None and (theirs is None or ours.share > theirs.share)


def _of_improve(finding: Finding) -> bool:
    together = finding.proof is not None and finding.proof.together is not None
    return together or finding.remedy.action == IMPROVE


def was_tried(finding: Finding) -> bool:
    """Return True if a finding has the result of a trial. One that could not be made may succeed at another time."""
    if finding.proof is not None:
        return True
    return finding.unproven not in {None, LATE, MANUAL} and not was_unable(finding)


def was_unable(finding: Finding) -> bool:
    """Return True if a remedy could not be tried."""
    return finding.unproven is not None and finding.unproven.startswith(UNABLE)


def stored_proofs(store: Store, source: ModelSource, key: str, choice: Choice) -> Tried | None:
    """Return the results of trials for a model's file; None without any.

    Args:
        store: The database.
        source: The model.
        key: Key of its graph.
        choice: System, stack and conditions.

    Raises:
        StoreError: The database cannot be read.
    """
    proofs = store.proofs(_identity(key, choice))
    if proofs is None or proofs.form != FORM or proofs.contents != contents(source):
        return None
    try:
        findings = msgspec.convert(proofs.findings, tuple[Finding, ...])
    except msgspec.ValidationError:
        return None  # another version wrote it, without a new form: it is tried again
    return Tried(
        tuple(_of_source(finding, source, choice.conditions.threads, str(store.place)) for finding in findings),
        proofs.untried,
    )


def store_proofs(store: Store, source: ModelSource, key: str, choice: Choice, tried: Tried) -> None:
    """Store the results of trials for a model's file, in place of earlier ones.

    Args:
        store: The database, open for writing.
        source: The model.
        key: Key of its graph.
        choice: System, stack and conditions.
        tried: The results.

    Raises:
        StoreError: The database cannot be written.
    """
    digest = contents(source)
    if digest is None:
        return
    store.put_system(choice.system)
    store.put_stack(choice.stack)
    findings = tuple(map(_record, tried.findings))
    store.put_proofs(_identity(key, choice), Proofs(digest, FORM, findings, tried.untried))


def store_improvement(
    store: Store,
    source: ModelSource,
    key: str,
    choice: Choice,
    proven: Sequence[Finding],
    *,
    vain: Sequence[Finding] = (),
    complete: bool = True,
) -> None:
    """Store the findings of ``improve``, unless stored ones save more.

    Args:
        store: The database, open for writing.
        source: The model.
        key: Key of its graph.
        choice: System, stack and conditions.
        proven: Findings of ``improve`` with a proven saving.
        vain: Its other findings.
        complete: Whether it had the time for all rewrites.

    Raises:
        StoreError: The database cannot be written.
    """
    known = stored_proofs(store, source, key, choice) or Tried((), OTHERS)
    if not saves_more(known.improved, proven):
        untried = (*(name for name in known.untried if name not in {REWRITES, LONGER}), *([] if complete else [LONGER]))
        tried = filter(was_tried, together(proven, vain, known.others))
        store_proofs(store, source, key, choice, Tried(tuple(tried), untried))


def _identity(key: str, choice: Choice) -> Identity:
    here = Circumstances(choice.system_key, choice.stack_key, choice.conditions)
    return here.identity(Subject.MODEL, key, cache=TRIED_CACHE)


def _record(finding: Finding) -> Mapping[str, Any]:
    """Return a finding for the database: without numbers that it lacks, and without the file that a command wrote."""
    proof = finding.proof if finding.proof is None else replace(finding.proof, artefact=None)
    record = asdict(replace(finding, proof=proof))
    return {name: value for name, value in record.items() if not (isinstance(value, float) and math.isnan(value))}


def _of_source(finding: Finding, source: ModelSource, threads: int, database: str) -> Finding:
    """Return a finding with code of our own to paste: the database may come from anywhere, the model from elsewhere."""
    remedy = finding.remedy
    code = remedy.code if remedy.code == lines_of(remedy.settings) else ""
    code = improve_command(source, threads, "improved.onnx", database) if remedy.action == IMPROVE else code
    return replace(finding, remedy=replace(remedy, code=code))


def _way(finding: Finding) -> tuple[object, ...]:
    """Return what makes two findings the same: kind, layers and settings of the remedy."""
    return finding.kind, finding.layers, tuple(sorted(finding.remedy.settings.items()))


def _referred(finding: Finding, latency_ms: float | None) -> Finding:
    """Return a finding whose saving is of another latency of the model."""
    if latency_ms is None or not finding.share or not math.isfinite(finding.share * finding.saving_ms):
        return finding
    scale = latency_ms * finding.share / finding.saving_ms
    ends = None if finding.ci95_ms is None else (scale * finding.ci95_ms[0], scale * finding.ci95_ms[1])
    return replace(
        finding,
        current_ms=scale * finding.current_ms,
        achievable_ms=scale * finding.achievable_ms,
        saving_ms=scale * finding.saving_ms,
        ci95_ms=ends,
    )
