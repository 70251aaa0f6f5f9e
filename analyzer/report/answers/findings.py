"""Answers of ``analyze`` and ``improve``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ....tabular import Field, Row, fields, record_of
from ...findings.finding import IMPROVE, MANUAL
from ...shell import proof_command, shell_command
from ..tables import MOST, Answer
from ..units import BUSY, counted, inferences, milliseconds, percent

if TYPE_CHECKING:
    from ...findings.analyze import AnalyzeReport, ModelFindings
    from ...findings.finding import Finding
    from ...findings.improve import Improvement, Proven, ProvenChange

_SETTING = "setting"
"""Reason of a change that is no rewrite."""

_NAMED = 3
"""Layers that a line names, before it counts them."""


def analyze_answer(report: AnalyzeReport, *, most: int | None = MOST) -> Answer:
    """Return the answer of ``analyze``: one row per model, one row of the table per finding.

    Args:
        report: The findings.
        most: Listed findings of each model; None: all.
    """
    return Answer.of(
        report.records(),
        columns=(
            Field("name", "model"),
            Field("kind", "finding"),
            Field("current_ms", "now ms", "ms"),
            Field("saving_ms", "saves ms ±95%", "ms", interval="ci95_ms"),
            Field("share", "share", "share"),
            Field("proven_share", "proven", "share"),
            Field("title", "what is missed"),
        ),
        summary=[line for row in report.rows for line in _lines(row, most)],
        table=[row.cells(finding) for row in report.rows for finding in row.findings[:most]],
    )


def improve_answer(improvement: Improvement) -> Answer:
    """Return the answer of ``improve``: one result, one row of the table per change."""
    return Answer.of(
        improvement.records(),
        columns=(
            Field("kind", "change"),
            Field("places"),
            Field("before_ms", "before ms", "ms"),
            Field("after_ms", "after ms", "ms"),
            Field("saving", "saves ±95%", "share", interval="saving_ci95"),
            Field("reason", "holds by"),
            Field("note"),
        ),
        summary=list(_improvement(improvement)),
        table=[_cells(change) for change in improvement.changes],
    )


def _cells(change: ProvenChange) -> Row:
    seen = "before_ms=proof.before_ms after_ms=proof.after_ms saving=proof.saving saving_ci95=proof.ci95"
    return record_of(change, fields(f"kind places reason note {seen}"))


def _improvement(improvement: Improvement) -> Iterator[str]:
    """Yield lines about the whole improvement."""
    if improvement.proof is not None and improvement.changes:
        written = any(change.reason != _SETTING for change in improvement.changes)
        to = (
            str(improvement.path)
            if improvement.path is not None
            else "not written (no -o)"
            if written
            else "no file needed"
        )
        yield (
            f"{improvement.name}: {milliseconds(improvement.proof.before_ms)} ms becomes "
            f"{milliseconds(improvement.proof.after_ms)} ms, {_saving(improvement.proof)}, "
            f"all changes together, {counted(improvement.threads, 'thread')}: {to}"
        )
        file = [change for change in improvement.changes if change.reason != _SETTING]
        settings = [change for change in improvement.changes if change.reason == _SETTING]
        if file:
            user_inputs = f", and {counted(improvement.data, 'input')} of yours" if improvement.data else ""
            compared = (
                f"{counted(improvement.shapes, 'shape')}, "
                f"{counted(improvement.hostile, 'input')} that guards exist for{user_inputs}"
            )
            yield f"  equal for every input up to rounding; outputs were also compared on {compared}:"
            error, noise = improvement.largest_error, improvement.noise
            yield f"  they differ by at most {error:.1e} of their largest value; the model's own noise is {noise:.1e}"
        yield from (f"  set in your program, the file does not contain it: {change.note}" for change in settings)
    else:
        now = " in this call" if improvement.others else ""
        early = " before the interrupt" if improvement.interrupted is not None else now
        yield f"{improvement.name}: no saving is proven{early}, and nothing is written"
    for change in improvement.unproven:
        told = "no time to prove it" if change.proof is None else _saving(change.proof)
        yield f"  not proven: {change.kind} ({counted(change.places, 'place')}): {told}"
    yield from _copies(improvement)
    for finding in improvement.others:
        if finding.proven_share is not None:
            how = "" if finding.remedy.action == IMPROVE else ", without a file"
            yield f"  proven before{how}: {finding.title.rstrip('.')}: {percent(finding.proven_share)} less"
    for kind, reason in improvement.rejected:
        yield f"  tried in vain: {kind}: {reason}"
    if improvement.untried:
        yield f"  not tried: {', '.join(improvement.untried)}: {improvement.command}"


def _copies(improvement: Improvement) -> Iterator[str]:
    """Yield lines about outputs that are copies of inputs."""
    always = [copy for copy in improvement.copies if not copy.branch]
    if always:
        names = _few([f"{copy.output} = {copy.source}" for copy in always])
        proof = improvement.copies_proof
        saving = "" if proof is None else f": {_saving(proof)}"
        yield f"  outputs that are copies of inputs ({names}): the file keeps them; export it without them{saving}"
    for branch in dict.fromkeys(copy.branch for copy in improvement.copies if copy.branch):
        names = _few([f"{copy.output} = {copy.source}" for copy in improvement.copies if copy.branch == branch])
        yield f"  outputs that are copies of inputs in {branch} ({names}): keep what you passed in"


def _saving(proof: Proven) -> str:
    low, high = proof.ci95
    return f"{proof.saving:.1%} less ({low:.1%} to {high:.1%})"


def _lines(row: ModelFindings, most: int | None) -> Iterator[str]:
    """Yield the lines of a model below the table."""
    if row.error is not None:
        yield f"{row.name}: {row.error}"
        return
    if row.joint is not None:
        low, high = map(milliseconds, row.joint.ci95_ms)
        counts = ", ".join(row.findings[number].kind for number in row.joint.findings)
        saving = f"{milliseconds(row.joint.saving_ms)} ms ({low} to {high}), {percent(row.joint.share)}"
        what = "all proven rewrites together save" if len(row.joint.findings) > 1 else "proven:"
        yield f"{row.name}: {what} {saving}: {counts}"
    if row.latency_ms is not None:
        truth = row.estimate.truth.measurement
        of = "measured" if row.basis == "measured" else "estimated from its bricks"
        of += f", {BUSY}" if row.basis == "measured" and truth is not None and truth.busy else ""
        place = row.estimate.place
        where = f"{place.backend}, {counted(place.threads or 1, 'thread')}, {place.dtype}"
        yield f"{row.name}: {milliseconds(row.latency_ms)} ms {of} ({where}); savings of the same layers do not add up"
    if row.cold_start is not None:
        start = row.cold_start
        load, first = milliseconds(start.load_ms), milliseconds(start.first_run_ms)
        yield f"  loading takes {load} ms and the first run {first} ms: {inferences(start.runs)}"
    if not row.findings:
        yield (
            f"{row.name}: no saving of the minimum share is predicted or proven"
            f"{'' if row.untried else '; --prove tries remedies'}; --minimum-share 0.1% lists smaller savings"
        )
    shown = row.findings[:most]
    for finding in shown:
        yield from _explained(finding)
    if len(row.findings) > len(shown):
        yield f"  and {len(row.findings) - len(shown)} more (--all lists them)"
    for finding in row.tried:
        yield f"  {finding.kind}: {finding.title}; {finding.unproven or 'tried: saves too little to report'}"
    yield from (f"  not asked: {reason}" for reason in row.unasked)
    if row.untried:
        yield f"  not tried: {', '.join(row.untried)}; run: {proof_command(row.estimate)}"
    yield from (f"  run: {shell_command(task)}" for task in row.remedies)


def _explained(finding: Finding) -> Iterator[str]:
    layers = _few(finding.layers)
    yield f"  {finding.kind}{f' ({layers})' if layers else ''}: {finding.remedy.text}"
    if finding.at_most:
        yield "    its saving is the most that there could be, and no prediction"
    yield from (f"    {line}" for line in finding.evidence)
    if finding.proof is not None:
        proof = finding.proof
        before, after = map(milliseconds, (proof.before_ms, proof.after_ms))
        saving, low, high = (f"{ms / proof.before_ms:.1%}" for ms in (proof.saving_ms, *proof.ci95_ms))
        yield f"    proven, alternating: {before} ms before, {after} ms after, saves {saving} ({low} to {high})"
        yield f"    outputs differ by {proof.largest_error:.1g} of their largest value"
        if finding.proof.artefact is not None:
            yield f"    written: {finding.proof.artefact}"
    elif finding.unproven not in {None, MANUAL}:
        yield f"    not proven: {finding.unproven}"
    else:
        yield from (f"    {line}" for line in finding.remedy.code.splitlines())


def _few(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
