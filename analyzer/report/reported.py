"""The result of ``report``: its models with their estimates and findings, and what was measured for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...tabular import Records, Tabular
from ..estimation.estimates import Estimates
from ..setups import Setup
from .section import Section

if TYPE_CHECKING:
    from ...generator.decomposition.generate import GenerateReport
    from ...generator.measurement.run import RunReport


@dataclass(frozen=True, slots=True)
class Report(Tabular):
    """The results of a report.

    Attributes:
        sections: The models.
        setup: How they were measured.
        page: The written page; None without one.
        generated: Result of the decomposition; None if everything was stored.
        measured: Result of the measurement; None if everything was stored.
        wall_s: Duration of the whole call.
        unasked: Reasons for analyses and trials that were left out.
        interrupted: What interrupted it; the report has what was known until then. None if it ended by itself.
    """

    ANSWER = "report.answers.summary.report_answer"

    sections: tuple[Section, ...]
    setup: Setup
    page: Path | None
    generated: GenerateReport | None
    measured: RunReport | None
    wall_s: float
    unasked: tuple[str, ...] = ()
    interrupted: KeyboardInterrupt | None = None

    @property
    def complete(self) -> bool:
        """True if every layer of every model is measured or interpolated."""
        return all(section.estimate.complete or section.estimate.parts.interpolated for section in self.sections)

    @property
    def rows(self) -> tuple[Section, ...]:
        """The models, as every report has them."""
        return self.sections

    @property
    def estimates(self) -> Estimates:
        """The estimates of the models."""
        return Estimates(tuple(section.estimate for section in self.sections))

    def records(self) -> Records:
        """One row per model, as ``estimate --explain`` gives it, with its findings."""
        full = self.estimates.records(explain=True)
        rows = [{**row, **section.missed()} for row, section in zip(full.results, self.sections, strict=True)]
        totals = {
            "page": None if self.page is None else str(self.page),
            "picked": list(self.setup.picked),
            "measured": 0 if self.measured is None else self.measured.measured,
            "wall_s": self.wall_s,
        }
        return Records(rows, {**totals, **full.totals}, full.flat)
