"""Commands that answer from what is stored: estimates, kernels, comparisons, history, advice.

Nothing is measured, but for what ``history --confirm`` asks for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..analyzer.report.tables import MOST
from .console import Reporter, answer, drawn
from .models import PLACE, model_arguments, take_models
from .options import (
    all_option,
    comparison_options,
    database_option,
    estimated_options,
    format_options,
    history_options,
    interpolate_option,
    kernel_options,
    plot_option,
    split_options,
)
from .spelling import moment
from .threads import each_estimated

__all__ = ["advise", "compare", "estimate", "history", "kernels"]


@click.command()
@model_arguments
@split_options
@estimated_options
@click.option("--explain", is_flag=True, help="Also show what lies between bricks and model, and where the time goes.")
@interpolate_option
@click.option("--layers", is_flag=True, help="Also show each brick's rate, its bound by the machine, and its headroom.")
@all_option
@plot_option
@database_option
@format_options
def estimate(
    *,
    threads: tuple[int, ...] | None,
    explain: bool,
    interpolate: bool,
    layers: bool,
    every: bool,
    plot: Path | None,
    database: str,
    form: str,
    **options: Any,
) -> None:
    """Latency of models, reconstructed from measured bricks.

    \b
    Example:
        dlbricks estimate squeezenet resnet50 -g 1
    """
    from ..analyzer.estimation.estimate import estimate as estimate_models
    from ..analyzer.estimation.interpolation import estimate_between
    from ..analyzer.report.answers.estimates import estimates_answer
    from ..db.decompositions import open_keeping

    sources = take_models(options)
    with open_keeping(database) as store:
        estimates = each_estimated(
            threads or (),
            lambda number: (estimate_between if interpolate else estimate_models)(
                sources, store=store, threads=number, **options
            ),
        )
    if plot is not None:
        from ..analyzer.report.drawing import draw_estimates

        drawn(draw_estimates(estimates.rows, plot, explain=explain))
    result = estimates_answer(estimates, explain=explain, layers=layers, most=None if every else MOST)
    answer(result, form, complete=estimates.complete)


@click.command()
@model_arguments
@click.option(
    "--whole", is_flag=True, help="Of the whole model, as 'measure --kernels' profiled it; else of its bricks."
)
@kernel_options
@all_option
@database_option
@format_options
def kernels(*, every: bool, database: str, form: str, **options: Any) -> None:
    """The kernels that ran for models, with their share of time, matrix units, and what fell back to another device.

    \b
    Example:
        dlbricks kernels squeezenet --backend torch
    """
    from ..analyzer.kernels.kernels import kernels as find_kernels
    from ..analyzer.report.answers.kernels import kernels_answer
    from ..db.decompositions import open_keeping

    with open_keeping(database) as store:
        found = find_kernels(take_models(options), store=store, **options)
    answer(kernels_answer(found, most=None if every else MOST), form, complete=found.complete)


@click.command()
@model_arguments
@click.option(
    "--by",
    type=click.Choice(["combination", "run", "variant"]),
    default="combination",
    show_default=True,
    help="What is compared: stored frameworks, options and systems; runs of one; algorithms within one.",
)
@click.option("--base", metavar="ID|NAME", help="The side that others are compared with; else the first measured.")
@click.option("--other", "others", multiple=True, metavar="ID|NAME", help="Compare only this side with it; repeatable.")
@comparison_options
@click.option("--layers", is_flag=True, help="Also list bricks, and what the base would gain by each.")
@all_option
@click.option(
    "--fail-on",
    type=click.Choice(["slower", "faster", "unclear"]),
    multiple=True,
    help="End with exit code 4 where a model has this verdict; repeatable.",
)
@plot_option
@database_option
@format_options
def compare(
    *,
    layers: bool,
    every: bool,
    fail_on: tuple[str, ...],
    plot: Path | None,
    database: str,
    form: str,
    **options: Any,
) -> None:
    """Stored frameworks, options, systems or runs against each other: SAME, FASTER, SLOWER or UNCLEAR.

    \b
    Example:
        dlbricks compare squeezenet --by run --fail-on slower
    """
    from ..analyzer.comparison.compare import compare as compare_stored
    from ..analyzer.report.answers.comparison import comparison_answer
    from ..db.decompositions import open_keeping

    with open_keeping(database) as store:
        comparison = compare_stored(take_models(options), store=store, **options)
    if plot is not None:
        from ..analyzer.report.drawing import draw_comparison

        drawn(draw_comparison(comparison, plot))
    crossed = any(str(row.verdict).lower() in fail_on for row in comparison.rows)
    answer(
        comparison_answer(comparison, layers=layers, most=None if every else MOST),
        form,
        complete=comparison.complete,
        crossed=crossed,
    )


@click.command()
@model_arguments
@history_options
@click.option(
    "--since",
    type=moment,
    metavar="TIME",
    help="Only changes from then on: ISO 8601 or how long ago, for example 2026-11-23 or 7d.",
)
@click.option("--runs", is_flag=True, help="Also list the runs.")
@click.option(
    "--confirm",
    "environments",
    type=PLACE,
    nargs=2,
    metavar="OLD NEW",
    help="Measure the newest alarm again here, both environments in turn; each a lock file or a Python.",
)
@all_option
@click.option(
    "--fail-on",
    type=click.Choice(["change", "slower", "faster"]),
    multiple=True,
    help="End with exit code 4 where a model changed so, unless the machine did; repeatable.",
)
@plot_option
@database_option
@format_options
def history(
    *,
    runs: bool,
    environments: tuple[Path, Path] | None,
    every: bool,
    fail_on: tuple[str, ...],
    plot: Path | None,
    database: str,
    form: str,
    **options: Any,
) -> None:
    """Every stored run of models over time, and where their latency changed: by versions or by the machine.

    \b
    Example:
        dlbricks history squeezenet --fail-on change
    """
    from ..analyzer.history.history import history as find_history
    from ..analyzer.report.answers.history import history_answer
    from ..db.decompositions import open_keeping

    sources = take_models(options)
    with open_keeping(database) as store:
        found = find_history(sources, store=store, **options)
    if environments is not None:
        from ..analyzer.history.confirm import confirm

        old, new = environments
        cut = {name: options[name] for name in ("granularity", "connected")}
        with Reporter() as progress:
            found = confirm(found, sources, old=old, new=new, progress=progress, **cut)
    if plot is not None:
        from ..analyzer.report.drawing import draw_history

        drawn(draw_history(found, plot))
    crossed = any({"change", str(one.verdict).lower()} & {*fail_on} for one in found.alarms)
    answer(
        history_answer(found, runs=runs, most=None if every else MOST), form, complete=found.complete, crossed=crossed
    )


@click.command()
@model_arguments
@comparison_options
@database_option
@format_options
def advise(*, database: str, form: str, **options: Any) -> None:
    """The fastest stored framework and options for models on this system, and the layers that decide it.

    \b
    Example:
        dlbricks advise squeezenet
    """
    from ..analyzer.advice import advise as advise_on
    from ..analyzer.report.answers.comparison import advice_answer
    from ..db.decompositions import open_keeping

    with open_keeping(database) as store:
        advice = advise_on(take_models(options), store=store, **options)
    answer(advice_answer(advice), form, complete=advice.complete)
