"""The demo: from zoo models to estimates and measured latencies, on two cores in minutes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..db import Store
from ..generator.decomposition.generate import GenerateReport, generate
from ..generator.measurement.run import RunReport, run
from ..generator.progress import ProgressCallback
from ..models import find_models
from ..tabular import Field, columns_of, fields, record_of
from .estimation.estimate import estimate
from .estimation.estimates import FIELDS, Estimates
from .report.answers.estimated import estimates_answer
from .report.drawing import estimate_plots
from .report.tables import Answer
from .report.units import duration, percent
from .reporting import report
from .setups import set_up

MODELS = ("squeezenet", "shufflenet", "alexnet", "inception_v1", "inception_v2", "resnet50", "vit_b16", "bert_base")
"""Chains and branches, convolutions and attention; 1 ms to 1 s each on one core."""

_BUDGET_S = 100.0


@dataclass(frozen=True, slots=True)
class Demo:
    """The results of the demo.

    Attributes:
        folder: Folder of the suite, the database and the plots.
        generated: Result of ``generate``.
        measured: Result of ``run``.
        estimates: One per model.
        plots: Files of the plots.
        page: The report of the models; its remedies are not tried.
    """

    folder: Path
    generated: GenerateReport
    measured: RunReport
    estimates: Estimates
    plots: tuple[Path, ...]
    page: Path | None

    @property
    def complete(self) -> bool:
        """True if every model has its estimate."""
        return self.measured.complete and self.estimates.complete


def demo(
    folder: Path,
    *,
    models: Sequence[str] = MODELS,
    budget_s: float = _BUDGET_S,
    progress: ProgressCallback | None = None,
) -> Demo:
    """Decompose models of the built-in zoo at G=1, measure bricks and models together, estimate, draw and report.

    A second call skips stored measurements.

    Args:
        folder: Folder for all results; made if it is missing.
        models: Names in the zoo.
        budget_s: Time for measuring.
        progress: Called between requests to the worker.

    Raises:
        DlbricksError: The machine cannot measure now, or the folder holds something else.
        OSError: The folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sources = find_models(models)
    generated = generate(
        sources, granularity=1, out=folder / "suite", graph="runtime", annotate=True, progress=progress
    )
    with Store.open(folder / "dlbricks.db") as store:
        measured = run(
            folder / "suite",
            store=store,
            models=sources,
            budget_s=budget_s,
            progress=progress,
        )
        estimates = estimate(sources, store=store, graph="runtime", threads=1, cache="model")
        how = set_up(threads=1)
        page = report(sources, store=store, out=folder / "report.html", setup=how, measure=False).page
    return Demo(folder, generated, measured, estimates, tuple(estimate_plots(estimates).write(folder)), page)


def demo_answer(result: Demo) -> Answer:
    """Return the answer of ``demo``: one row per model, as for ``estimate``."""
    answer = estimates_answer(result.estimates)
    generated, run_report = result.generated, result.measured
    share = percent(generated.unique / generated.sequences) if generated.sequences else "0%"
    counts = f"{run_report.measured} measured" + (f", {run_report.reused} known before" if run_report.reused else "")
    return Answer(
        answer.results,
        totals={
            "folder": str(result.folder),
            "sequences": generated.sequences,
            "unique": generated.unique,
            **record_of(run_report, fields("bricks measured reused failed wall_s")),
            "plots": [str(path) for path in result.plots],
            "page": None if result.page is None else str(result.page),
        },
        columns=[
            *columns_of(FIELDS, "name"),
            Field("layers"),
            *columns_of(FIELDS, "unique", "estimate_ms", "sequential_ms", "critical_path_ms"),
            *columns_of(FIELDS, "undisturbed_ms", "measured_ms", "ratio"),
        ],
        summary=[
            *answer.summary,
            (
                f"{generated.unique} of {generated.sequences} layers are unique ({share}); "
                f"{counts}, in {duration(run_report.wall_s)}."
            ),
            "ratio = estimate / measured [95% interval]. Critical path: branches run at the same time.",
            f"Suite, database and {len(result.plots)} plots: {result.folder}/",
            *([] if result.page is None else [f"Report with time by operator and savings: {result.page}"]),
        ],
        table=answer.table,
    )
