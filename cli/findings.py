"""The command that finds what models miss, and proves it where that is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..analyzer.report.tables import MOST
from .console import Reporter, answer
from .models import PLACE, model_arguments, take_models
from .options import all_option, database_option, format_options, measured_options, quiet_option
from .spelling import saving, share

__all__ = ["analyze"]


@click.command()
@model_arguments
@measured_options
@click.option(
    "--minimum-share",
    type=share,
    default="1%",
    show_default=True,
    metavar="SHARE",
    help="Findings that save less of the model are left out.",
)
@click.option("--prove", is_flag=True, help="Try every remedy, the model as it is and as it would be visited in turn.")
@click.option("--write", type=PLACE, metavar="DIR", help="Folder for improved models that were proven to save time.")
@click.option(
    "--visits", type=click.IntRange(min=6), default=36, show_default=True, metavar="N", help="Of each side in a proof."
)
@click.option(
    "--processes", type=click.IntRange(min=1), default=2, show_default=True, metavar="N", help="Workers of a proof."
)
@click.option(
    "--fail-on",
    type=saving,
    metavar="LIMIT",
    help="End with exit code 4 where one finding saves more, as proven, else as predicted: 'saving>10%'.",
)
@all_option
@database_option
@quiet_option
@format_options
def analyze(
    *, fail_on: float | None, every: bool, database: str, quiet: bool, form: str, write: Path | None, **options: Any
) -> None:
    """What models miss: findings with their savings, what to do, and proofs.

    \b
    Example:
        dlbricks analyze squeezenet --prove --fail-on 'saving>10%'
    """
    from ..analyzer.findings.analyze import analyze as analyze_models
    from ..analyzer.report.answers.findings import analyze_answer
    from ..db.decompositions import open_keeping

    with open_keeping(database) as store, Reporter(quiet=quiet) as progress:
        report = analyze_models(take_models(options), store=store, write=write, progress=progress, **options)
    crossed = fail_on is not None and any(row.largest_share > fail_on for row in report.rows)
    answer(analyze_answer(report, most=None if every else MOST), form, complete=report.complete, crossed=crossed)
