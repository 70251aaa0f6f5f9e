"""Try a remedy: its effect on the outputs, and its saving."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ...bricks.graph.control import write_out
from ...constructor.choice import Choice
from ...db.samples.statistics import MIN_SAMPLES
from ...db.values import Runtime
from ...errors import DlbricksError, unforeseen
from ...generator.decomposition.observation import run_as_given
from ...generator.machine.lock import work_clock
from ...generator.measurement.agreement import TOLERANCES
from ...generator.measurement.trial import Contender, Trial, TrialPair, place_of, try_out
from ...generator.network.export import as_file
from ...generator.progress import ProgressCallback
from ...models import ModelSource
from ..comparison.difference import trial_levels
from .finding import LATE, MANUAL, UNABLE, Finding, Proof, Remedy

_SAME = 1e-5
"""Allowed difference of an output for another number of threads or another order of execution."""


def proof_of(trial: Trial) -> Proof:
    """Return the result of a trial: the means of both models, and the saving with its interval."""
    seen = trial_levels(trial)
    low, high = seen.difference.ci95
    return Proof(
        before_ms=seen.before_ms,
        after_ms=seen.after_ms,
        saving_ms=seen.before_ms - seen.after_ms,
        ci95_ms=(seen.before_ms * (1 - high), seen.before_ms * (1 - low)),
        largest_error=trial.largest_error,
    )


def _untimed(trial: Trial, tolerance: float, visits: int) -> str | None:
    """Return why a trial timed nothing; None if it did."""
    if not trial.stacks:  # not even loaded: nothing is known of its outputs
        return LATE
    if trial.largest_error > tolerance:
        return (
            f"it changes an output by {trial.largest_error:.2g} of its largest value, and {tolerance:g} is what "
            "rounding explains: not timed"
        )
    if trial.visits < min(visits, MIN_SAMPLES):
        return LATE
    return None if trial.measurable else "a visit took no time that could be measured"


def _loses(trial: Trial, *, least: float) -> bool:
    """Return True if all of the interval saves too little after enough visits: a second process is unnecessary."""
    if trial.visits < MIN_SAMPLES or not trial.measurable:
        return False
    low, _ = trial_levels(trial).difference.ci95
    return low > 1 - least


def _unable(finding: Finding, error: Exception) -> Finding:
    return replace(finding, unproven=f"{UNABLE}{' '.join(str(error).split())}")


@dataclass(frozen=True, slots=True)
class Proving:
    """How remedies are tried.

    Attributes:
        write: Folder for improved files that save something; None to keep none.
        visits: Number of visits of each side in one trial.
        processes: Number of fresh workers of one trial.
        until: Time on the ``work_clock`` at which trying ends.
        progress: Called between visits.
        minimum_share: Share of the model's latency that a finding saves at least.
        again: Try again what the database has results of; False: only if something was not tried.
    """

    write: Path | None = None
    visits: int = 36
    processes: int = 4
    until: float = math.inf
    progress: ProgressCallback | None = None
    minimum_share: float = 0.01
    again: bool = True


class Workbench:
    """Tries the remedies of one model.

    Args:
        source: The model.
        choice: System, stack and conditions of its findings.
        folder: An empty folder for intermediate files.
        how: How remedies are tried.
        latency_ms: The latency that all savings refer to; None if it is not known, and each trial has its own.
    """

    def __init__(
        self,
        source: ModelSource,
        choice: Choice,
        folder: Path,
        how: Proving,
        *,
        latency_ms: float | None = None,
    ) -> None:
        self._name = source.name
        self._file = as_file(source, folder)
        self._how = how
        self._latency_ms = latency_ms
        self._control = write_out(source.skeleton()).control
        conditions = choice.conditions
        self._before = Contender(
            run_as_given(self._file, folder / "original", self._control),
            place_of(choice.stack.runtime, conditions.threads, conditions.dtype),
        )

    def prove(self, findings: Sequence[Finding], *, least: float = 0.0) -> list[Finding]:
        """Try the remedies of findings; those that run at one place share their workers.

        Args:
            findings: The findings, each with its remedy.
            least: Smallest share of the latency for all of the interval; improved files below it are not kept.

        Returns:
            The findings, each with its result.
        """
        pairs: dict[int, TrialPair] = {}
        settled: dict[int, Finding] = {}
        for number, finding in enumerate(findings):
            try:
                changed = self._changeable(finding)
            except (DlbricksError, OSError) as error:
                settled[number] = _unable(finding, error)
            except Exception as error:  # noqa: BLE001
                # A boundary: a rewrite may break on a model that nobody thought of; what else was found stays.
                settled[number] = replace(finding, unproven=unforeseen("it", error, "tried"))
            else:
                if isinstance(changed, str):
                    settled[number] = replace(finding, unproven=changed)
                else:
                    pairs[number] = replace(changed, label=f"{self._name}: {finding.kind}")
        if not pairs:
            return [settled[number] for number in range(len(findings))]
        trials = try_out(
            [*pairs.values()],
            visits=self._how.visits,
            processes=self._how.processes,
            until=self._how.until,
            settled=partial(_loses, least=least),
            progress=self._how.progress,
        )
        for (number, changed), trial in zip(pairs.items(), trials, strict=True):
            finding = findings[number]
            try:
                proof, why_not = self._judged(trial, changed.tolerance or math.inf, least)
            except (DlbricksError, OSError) as error:
                settled[number] = _unable(finding, error)
                continue
            bound = finding.at_most and why_not is not None  # what was proven is no bound any more
            settled[number] = replace(finding, proof=proof, unproven=why_not, at_most=bound)
        return [settled[number] for number in range(len(findings))]

    def attempt(self, ideas: Sequence[Finding], *, least: float = 0.0) -> list[Finding]:
        """Try ideas, and return them with the measured saving.

        Several are tried on each model without a prediction: one in forty would save something by chance.

        Args:
            ideas: The ideas.
            least: As for ``prove``.
        """
        return [self._referred(tried) for tried in self.prove(ideas, least=least)]

    def _referred(self, tried: Finding) -> Finding:
        """Return a tried idea with its saving relative to the model's latency."""
        proof = tried.proof
        if proof is None:
            return tried
        # The machine may have been slower than when the latency was measured that all savings are of.
        latency = self._latency_ms or proof.before_ms
        scale = latency / proof.before_ms
        low, high = proof.ci95_ms
        return replace(
            tried,
            current_ms=latency,
            achievable_ms=scale * proof.after_ms,
            saving_ms=scale * proof.saving_ms,
            ci95_ms=(scale * low, scale * high),
            share=proof.saving_ms / proof.before_ms,
        )

    def _changeable(self, finding: Finding) -> TrialPair | str:
        """Return a model with a remedy applied, or the reason against a trial."""
        if work_clock() >= self._how.until:
            return LATE
        if finding.remedy.action == "manual":
            return MANUAL
        return self._changed(finding.remedy)

    def _judged(self, trial: Trial | DlbricksError, tolerance: float, least: float) -> tuple[Proof | None, str | None]:
        """Return the result of a trial, and the reason if it does not prove a saving."""
        if isinstance(trial, DlbricksError):
            raise trial
        if (untimed := _untimed(trial, tolerance, self._how.visits)) is not None:
            return None, untimed
        proof = proof_of(trial)
        low, high = proof.ci95_ms
        if high < 0:
            return proof, f"tried: it takes {-proof.saving_ms:.3g} ms more ({-high:.3g} to {-low:.3g} ms)"
        if low <= 0:
            return proof, f"tried: saves nothing that can be distinguished from noise ({low:.3g} to {high:.3g} ms)"
        if low < least * proof.before_ms:
            return proof, f"tried: it may save next to nothing ({low:.3g} to {high:.3g} ms)"
        return proof, None

    def _changed(self, remedy: Remedy) -> TrialPair:
        """Return the model beside itself as a remedy has it run, and the difference that rounding explains."""
        settings, tolerance = remedy.settings, _SAME
        before, place = self._before, self._before.place
        runtime, dtype = place.runtime, place.dtype
        match remedy.action:
            case "session_option" | "threads":
                options = {**dict(runtime.options), **settings}
                threads = int(options.pop("threads", place.threads))
                changed = place_of(Runtime.of(runtime.backend, runtime.device, options), threads, dtype)
            case "precision":
                dtype = settings["dtype"]
                changed, tolerance = place_of(runtime, place.threads, dtype), _tolerance(dtype)
            case "backend":
                changed = place_of(Runtime.of(settings["backend"], runtime.device), place.threads, dtype)
                tolerance = _tolerance(dtype)
            case _:
                raise DlbricksError(f"no proof applies the action {remedy.action!r}")
        return TrialPair(before, replace(before, place=changed), tolerance)


def _tolerance(dtype: str) -> float:
    return TOLERANCES.get(dtype, TOLERANCES["float32"])
