"""Reports as pandas frames, JSON objects and Markdown: what the command line writes, from Python.

These are functions and no methods of the reports: those of ``generate``, ``run`` and ``measure`` are made far below the
answers that define what a row of them is, and know nothing of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from ..constructor.result import Estimate
from ..errors import UsageError
from ..generator.decomposition.generate import GenerateReport
from ..generator.measurement.agreement import AgreementReport
from ..generator.measurement.measure import MeasureReport
from ..generator.measurement.run import RunReport
from ..generator.planning.library_plans import PlanReport
from .advice import Advice
from .comparison.compare import Comparison
from .findings.analyze import AnalyzeReport
from .history.result import History
from .kernels.kernels import ModelKernels
from .manifests.reproduce import Reproduction
from .report.answers.comparison import advice_answer, comparison_answer
from .report.answers.estimates import estimates_answer
from .report.answers.findings import analyze_answer
from .report.answers.generation import generate_answer
from .report.answers.history import history_answer
from .report.answers.kernels import kernels_answer
from .report.answers.plans import plans_answer
from .report.answers.reproduction import reproduction_answer
from .report.answers.resources import agreement_answer
from .report.answers.runs import measure_answer, run_answer
from .report.tables import Answer, Format, render
from .reporting import Report, report_answer
from .tokens.answer import tokens_answer
from .tokens.tokens import Tokens

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Reported", "frame", "to_json", "to_markdown"]

Reported = (
    GenerateReport
    | RunReport
    | MeasureReport
    | Estimate
    | Sequence[Estimate]
    | Sequence[ModelKernels]
    | Comparison
    | History
    | Advice
    | AnalyzeReport
    | Report
    | Tokens
    | AgreementReport
    | PlanReport
    | Reproduction
)
"""What the public functions return; ``estimate`` and ``kernels`` return lists."""


def frame(report: Reported, *, inner: bool = False) -> pd.DataFrame:
    """A report as a ``pandas.DataFrame``: a flat row per result, with the keys of JSON (docs/cli.md) as columns.

    What is nested has columns of its own (``coverage.macs``), an interval has two (``ci95_ms_low``, ``ci95_ms_high``),
    and a list stays a list, which ``.str.len()`` counts and ``explode`` unfolds.

    Args:
        report: What a public function returned.
        inner: A row for each layer, brick, kernel, run or finding of each result instead, as ``--format csv`` has
            them; a result that has nothing of this kind stays a row.

    Raises:
        UsageError: It is no report.

    Example:
        >>> frame(estimate(models, store=store)).set_index("name")[["estimate_ms", "measured_ms"]]  # doctest: +SKIP
    """
    return _answer(report).frame(inner=inner)


def to_json(report: Reported, *, explain: bool = False) -> dict[str, Any]:
    """A report as the object that ``--json`` prints: plain values, and null where a number is not known.

    Args:
        report: What a public function returned.
        explain: Estimates with all that ``--explain`` and ``--layers`` add.

    Raises:
        UsageError: It is no report.

    Example:
        >>> json.dumps(to_json(compare(models, store=store)))  # doctest: +SKIP
    """
    return _answer(report, explain=explain).record()


def to_markdown(report: Reported) -> str:
    """A report as the Markdown that ``--format markdown`` prints: a table, and what is to be said of it.

    Args:
        report: What a public function returned.

    Raises:
        UsageError: It is no report.

    Example:
        >>> IPython.display.Markdown(to_markdown(analyze(models, store=store)))  # doctest: +SKIP
    """
    return render(_answer(report), Format.MARKDOWN)


def _answer(report: object, *, explain: bool = False) -> Answer:  # noqa: PLR0911, PLR0912  (one for each kind)
    match report:
        case GenerateReport():
            return generate_answer(report)
        case RunReport():
            return run_answer(report)
        case MeasureReport():
            return measure_answer(report)
        case Comparison():
            return comparison_answer(report)
        case History():
            return history_answer(report)
        case Advice():
            return advice_answer(report)
        case AnalyzeReport():
            return analyze_answer(report)
        case Report():
            return report_answer(report)
        case Tokens():
            return tokens_answer(report)
        case AgreementReport():
            return agreement_answer(report)
        case PlanReport():
            return plans_answer(report)
        case Reproduction():
            return reproduction_answer(report)
        case Estimate():
            return estimates_answer([report], explain=explain, layers=explain)
        case [ModelKernels(), *_]:
            return kernels_answer(cast("Sequence[ModelKernels]", report))
        case [Estimate(), *_] | []:
            return estimates_answer(cast("Sequence[Estimate]", report), explain=explain, layers=explain)
    raise UsageError(f"{type(report).__name__} is no report", remedy="hand on what a function of dlbricks returned")
