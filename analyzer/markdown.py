"""Results as Markdown: the same text as ``--format markdown``.

The lines below the rows need modules above ``generate``, ``run`` and ``measure``. Hence this is a function, in contrast
to the methods ``frame`` and ``to_json`` (``tabular.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import UsageError
from ..generator.decomposition.generate import GenerateReport
from ..generator.measurement.agreement import AgreementReport
from ..generator.measurement.measure import MeasureReport
from ..generator.measurement.run import RunReport
from ..generator.planning.library_plans import PlanReport
from ..tabular import Tabular
from .advice import Advice
from .comparison.compare import Comparison
from .estimation.estimates import Estimates
from .findings.analyze import AnalyzeReport
from .history.history import History
from .kernels import Kernels
from .manifests.reproduce import Reproduction
from .report.answers.bricks import kernels_answer
from .report.answers.comparison import advice_answer, comparison_answer, history_answer
from .report.answers.estimated import estimates_answer
from .report.answers.findings import analyze_answer
from .report.answers.generation import generate_answer, plans_answer
from .report.answers.reproduction import reproduction_answer
from .report.answers.resources import agreement_answer
from .report.answers.runs import measure_answer, run_answer
from .report.answers.summary import report_answer
from .report.reported import Report
from .report.tables import Answer, Format, render
from .tokens import Tokens, tokens_answer

_ANSWERS: Mapping[type[Tabular], Callable[[Any], Answer]] = {
    Advice: advice_answer,
    AgreementReport: agreement_answer,
    AnalyzeReport: analyze_answer,
    Comparison: comparison_answer,
    Estimates: estimates_answer,
    GenerateReport: generate_answer,
    History: history_answer,
    Kernels: kernels_answer,
    MeasureReport: measure_answer,
    PlanReport: plans_answer,
    Report: report_answer,
    Reproduction: reproduction_answer,
    RunReport: run_answer,
    Tokens: tokens_answer,
}


def to_markdown(report: Tabular) -> str:
    """Return a result as Markdown: a table and the lines below it.

    Args:
        report: Result of a public function.

    Raises:
        UsageError: The value is not such a result.

    Example:
        >>> IPython.display.Markdown(to_markdown(analyze(models, store=store)))  # doctest: +SKIP
    """
    made = _ANSWERS.get(type(report))
    if made is None:
        raise UsageError(
            f"{type(report).__name__} is not a result of dlbricks", remedy="give the result of a public function"
        )
    return render(made(report), Format.MARKDOWN)
