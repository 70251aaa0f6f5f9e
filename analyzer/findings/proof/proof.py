"""Trying a remedy: what it changes in the output, and what it saves."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ....bricks.graph.control import given_courses, write_out
from ....constructor.choice import Choice
from ....errors import DlbricksError, MachineBusy
from ....generator.decomposition.given import run_as_given
from ....generator.decomposition.model_bricks import unforeseen
from ....generator.measurement.agreement import TOLERANCES
from ....generator.progress import ProgressCallback
from ....generator.rewriting.rewrite import as_file, rewritten
from ....generator.trial.trial import Contender, Trial, try_out
from ....models import ModelSource
from ...comparison.paired import paired
from ..analysis import Idea
from ..finding import Finding, Proof, Remedy

__all__ = ["Workbench", "proof_of"]

_SAME = 1e-5
"""What another number of threads, or another order of execution, may change an output by."""


def proof_of(trial: Trial, artefact: str | None = None) -> Proof:
    """What a trial says: the mean of both, and what the second saves of the first, with its interval."""
    seen = paired(trial.before_ns, trial.after_ns)
    low, high = seen.difference.ci95
    return Proof(
        before_ms=seen.before_ms,
        after_ms=seen.after_ms,
        saving_ms=seen.before_ms - seen.after_ms,
        ci95_ms=(seen.before_ms * (1 - high), seen.before_ms * (1 - low)),
        largest_error=trial.largest_error,
        artefact=artefact,
    )


@dataclass(frozen=True, slots=True)
class _Changed:
    """A model as a remedy has it run."""

    contender: Contender
    tolerance: float
    path: Path | None = None


class Workbench:
    """Tries the remedies of one model.

    Args:
        source: The model.
        choice: System, stack and conditions of its findings.
        folder: An empty folder for what is written on the way.
        latency_ms: The one latency that all savings are of; None where it is not known, and each trial has its own.
        write: Where improved files go that save something; None to keep none.
        visits: Of each side, in one trial.
        processes: Fresh workers of one trial.
        progress: Called between visits.
    """

    def __init__(
        self,
        source: ModelSource,
        choice: Choice,
        folder: Path,
        *,
        latency_ms: float | None = None,
        write: Path | None = None,
        visits: int = 36,
        processes: int = 2,
        progress: ProgressCallback | None = None,
    ) -> None:
        self._name = source.name
        self._file = as_file(source, folder)
        self._folder = folder
        self._latency_ms = latency_ms
        self._write = write
        self._visits, self._processes = visits, processes
        self._progress = progress
        self._control = write_out(source.skeleton()).control
        self._before = Contender(
            run_as_given(self._file, folder / "original", self._control),
            backend=choice.stack.backend,
            device=choice.stack.device,
            options=dict(choice.stack.options),
            threads=choice.conditions.threads,
            dtype=choice.conditions.dtype,
        )

    def prove(self, found: Finding, *, least: float = 0.0) -> Finding:
        """The finding with what came of trying its remedy.

        Args:
            found: A finding.
            least: Share of the latency that all of the interval must save; improved files that save less are not kept.
        """
        if found.remedy.action == "manual":
            return replace(found, unproven="nothing here applies this remedy by itself")
        try:
            proof, why_not = self._try(found.remedy, found.kind, least)
        except MachineBusy:
            raise
        except (DlbricksError, OSError) as error:
            return replace(found, unproven=f"it could not be tried: {' '.join(str(error).split())}")
        except Exception as error:  # noqa: BLE001
            # A boundary: a rewrite may break on a model that nobody thought of; what else was found stays.
            return replace(found, unproven=unforeseen("it", error, "tried"))
        bound = found.at_most and why_not is not None  # what was proven is no bound any more
        return replace(found, proof=proof, unproven=why_not, at_most=bound)

    def attempt(self, idea: Idea, *, least: float = 0.0) -> Finding:
        """What came of trying an idea, as a finding: what it saves is what it saved.

        Several are tried of each model, of which nothing was known before: one in forty would seem to save something.

        Args:
            idea: The idea.
            least: As for ``prove``.
        """
        blank = Finding(idea.kind, idea.title, idea.layers, math.nan, math.nan, math.nan, None, math.nan,
                        idea.evidence, (), idea.remedy)  # fmt: skip
        tried = self.prove(blank, least=least)
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

    def _try(self, remedy: Remedy, kind: str, least: float) -> tuple[Proof | None, str | None]:
        changed = self._changed(remedy)
        if changed is None:
            return None, "the rewrite found nothing to change in the file"
        trial = try_out(
            self._before,
            changed.contender,
            visits=self._visits,
            processes=self._processes,
            tolerance=changed.tolerance,
            progress=self._progress,
            label=f"{self._name}: {kind}",
        )
        if trial.largest_error > changed.tolerance:
            return None, (
                f"it changes an output by {trial.largest_error:.2g} of its largest value, and {changed.tolerance:g} is "
                "what rounding explains: not timed"
            )
        proof = proof_of(trial)
        low, high = proof.ci95_ms
        if high < 0:
            return proof, f"tried: it takes {-proof.saving_ms:.3g} ms more ({-high:.3g} to {-low:.3g} ms)"
        if low <= 0:
            return proof, f"tried: saves nothing that can be distinguished from noise ({low:.3g} to {high:.3g} ms)"
        if low < least * proof.before_ms:
            return proof, f"tried: it may save next to nothing ({low:.3g} to {high:.3g} ms)"
        if changed.path is not None and self._write is not None:
            proof = replace(proof, artefact=str(self._kept(changed.path, kind)))
        return proof, None

    def _changed(self, remedy: Remedy) -> _Changed | None:
        settings: Mapping[str, str] = remedy.settings
        before = self._before
        match remedy.action:
            case "rewrite":
                path = self._folder / settings["rewrite"] / "model.onnx"
                made = rewritten(self._file, settings["rewrite"], path)
                if made is None:
                    return None
                path = self._as_given(made.path)
                runnable = replace(before.runnable, path=path, synthetic=False, overrides=())
                return _Changed(replace(before, runnable=runnable), made.tolerance, made.path)
            case "session_option":
                options = {name: value for name, value in settings.items() if name != "threads"}
                threads = int(settings.get("threads", before.threads))
                return _Changed(replace(before, options={**before.options, **options}, threads=threads), _SAME)
            case "threads":
                return _Changed(replace(before, threads=int(settings["threads"])), _SAME)
            case "precision":
                dtype = settings["dtype"]
                return _Changed(replace(before, dtype=dtype), TOLERANCES.get(dtype, TOLERANCES["float32"]))
            case "backend":
                other = replace(before, backend=settings["backend"], options={})
                return _Changed(other, TOLERANCES.get(before.dtype, TOLERANCES["float32"]))
            case _:
                raise DlbricksError(f"no proof applies the action {remedy.action!r}")

    def _as_given(self, path: Path) -> Path:
        """A rewritten file along the courses of the original, in a copy: what is kept is not forced."""
        if not given_courses(self._control):
            return path
        source = replace(self._file, path=path, batch=None, dims=())
        return run_as_given(source, self._folder / f"{path.parent.name}-given", self._control).path

    def _kept(self, path: Path, kind: str) -> Path:
        """The improved file, with its external data, where the user wants it."""
        assert self._write is not None  # noqa: S101  # the caller looked
        target = self._write / re.sub(r"[^\w.@+-]", "_", f"{self._name}-{kind}")
        target.mkdir(parents=True, exist_ok=True)
        shutil.copytree(path.parent, target, dirs_exist_ok=True)
        return target / path.name
