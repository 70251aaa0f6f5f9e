"""Commands that read stored results: estimates, kernels, comparisons, history, advice.

Only ``history --confirm`` measures.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..analyzer.report.tables import MOST
from ..analyzer.report.units import counted
from ..errors import UsageError
from .console import Reporter, answer, drawn, note
from .models import PLACE, model_arguments, moment, seconds, take_models
from .options import (
    all_option,
    comparison_options,
    database_option,
    estimated_options,
    estimated_split_options,
    format_options,
    history_options,
    interpolate_option,
    kernel_options,
    plot_option,
    quiet_option,
    wait_option,
)

if TYPE_CHECKING:
    from ..analyzer.estimation.estimates import Estimates
    from ..constructor.result import Estimate
    from ..models import ModelSource


# The same command for several numbers of threads, one after the other.
#
# The library measures with one number at a time, since a worker is bound to its cores when it starts. Each number has
# its own runs in the database, goes on from where it was interrupted, and gets an equal share of what is left of the
# time.


_LEAST_S = 1e-3
"""A share where nothing is left: the least is measured all the same, as of a single budget that is too short."""

Report = TypeVar("Report")


def each_measured(
    threads: Sequence[int],
    models: Sequence[ModelSource],
    budget_s: float | None,
    *,
    progress: Reporter,
    measure: Callable[[int, list[ModelSource], float | None], Report],
    spent_s: Callable[[Report], float],
) -> list[Report]:
    """Return one report per number of threads.

    Args:
        threads: The numbers; 0 means all physical cores.
        models: Whole models; for several numbers, each name ends in ``@t2``.
        budget_s: Total time of all; None: unlimited.
        progress: Shows the number of threads.
        measure: Measures with one number of threads, the given models and seconds.
        spent_s: Returns the spent part of the budget of a report.
    """
    if len(threads) > 1:
        from ..generator.machine.cores import physical_cores

        threads = tuple(dict.fromkeys(number or len(physical_cores()) for number in threads))
    reports: list[Report] = []
    for place, number in enumerate(threads):
        named = list(models)
        if len(threads) > 1:
            progress.part = f" with {counted(number, 'thread')}"
            named = [
                model if model.problem else dataclasses.replace(model, name=f"{model.name}@t{number}")
                for model in models
            ]
        share_s = None if budget_s is None else max(_LEAST_S, budget_s / (len(threads) - place))
        report = measure(number, named, share_s)
        budget_s = None if budget_s is None else budget_s - spent_s(report)
        reports.append(report)
    return reports


def each_estimated(threads: Sequence[int], estimate: Callable[[int | None], Estimates]) -> Estimates:
    """Return estimates for several numbers of threads, grouped by model, with ``@t2`` at the end of each name.

    Args:
        threads: The numbers, of which 0 may mean another one; at most one number: estimates without a suffix.
        estimate: Estimates every model with one number.
    """
    from ..analyzer.estimation.estimates import Estimates

    if len(threads) < 2:
        return estimate(threads[0] if threads else None)
    found: dict[tuple[int, int | None], Estimate] = {}
    for number in threads:
        for place, entry in enumerate(estimate(number)):
            name = f"{entry.name}@t{number if entry.place.threads is None else entry.place.threads}"
            source = dataclasses.replace(entry.model.source, name=name)
            named = dataclasses.replace(entry, model=dataclasses.replace(entry.model, source=source))
            found.setdefault((place, entry.place.threads), named)
    return Estimates(tuple(found[key] for key in sorted(found, key=lambda key: key[0])))


@click.command()
@model_arguments
@estimated_split_options
@estimated_options
@click.option("--explain", is_flag=True, help="Also show time by operator, and the causes between bricks and model.")
@interpolate_option
@click.option("--predict", is_flag=True, help="Predict unmeasured bricks from others.")
@click.option("--layers", is_flag=True, help="Also show each brick's rate, roofline bound and headroom.")
@all_option
@plot_option
@database_option
@format_options
def estimate(
    *,
    threads: tuple[int, ...] | None,
    explain: bool,
    interpolate: bool,
    predict: bool,
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
    from ..analyzer.estimation.estimate import estimate_between
    from ..analyzer.report.answers.estimates import estimates_answer
    from ..db import Store

    if interpolate and predict:
        raise UsageError("--interpolate and --predict fill the same gaps", remedy="leave one out")
    if predict:
        options["predict"] = True
    sources = take_models(options)
    with Store.open(database, read_only=True) as store:
        estimates = each_estimated(
            threads or (),
            lambda number: (estimate_between if interpolate else estimate_models)(
                sources, store=store, threads=number, **options
            ),
        )
    graphs = {entry.model.cutting.graph for entry in estimates} - {"source"}
    if options["graph"] is None and graphs:
        note(f"picked: --graph {' '.join(graphs)}, the graph of the stored bricks")
    if plot is not None:
        from ..analyzer.report.drawing import estimate_plots

        drawn(estimate_plots(estimates, explain=explain).write(plot))
    result = estimates_answer(estimates, explain=explain, layers=layers, most=None if every else MOST)
    answer(result, form, complete=estimates.complete)


@click.command()
@model_arguments
@click.option("--whole", is_flag=True, help="Kernels of the whole model ('measure --kernels'); else of its bricks.")
@kernel_options
@all_option
@database_option
@format_options
def kernels(*, every: bool, database: str, form: str, **options: Any) -> None:
    """Show the executed kernels of models: share of time, matrix units, other devices.

    \b
    Example:
        dlbricks kernels squeezenet --backend torch
    """
    from ..analyzer.kernels import kernels as find_kernels
    from ..analyzer.report.answers.kernels import kernels_answer
    from ..db import Store

    with Store.open(database, read_only=True) as store:
        found = find_kernels(take_models(options), store=store, **options)
    answer(kernels_answer(found, most=None if every else MOST), form, complete=found.complete)


@click.command()
@model_arguments
@click.option(
    "--by",
    type=click.Choice(["combination", "run", "variant", "file"]),
    help="Sides to compare: stored combinations; runs or variants (algorithms) of one combination; or two files, "
    "which run alternately now. Two file arguments mean 'file'.",
)
@click.option("--base", metavar="ID|NAME", help="The base of the comparison; else the side that was measured first.")
@click.option(
    "--other", "others", multiple=True, metavar="ID|NAME", help="Compare only this side with the base; repeatable."
)
@comparison_options
@click.option("--layers", is_flag=True, help="Also list bricks, with the base's gain from each.")
@all_option
@click.option(
    "--budget",
    "budget_s",
    type=seconds,
    default="60s",
    show_default=True,
    metavar="TIME",
    help="Two files: time limit, even with an unclear verdict.",
)
@quiet_option
@wait_option
@click.option(
    "--fail-on",
    type=click.Choice(["slower", "faster", "unclear"]),
    multiple=True,
    help="End with exit code 4 if a model has this verdict; repeatable.",
)
@plot_option
@database_option
@format_options
def compare(
    *,
    by: str | None,
    layers: bool,
    every: bool,
    budget_s: float,
    quiet: bool,
    fail_on: tuple[str, ...],
    plot: Path | None,
    database: str,
    form: str,
    **options: Any,
) -> None:
    """Two files, or stored frameworks, options, systems or runs: SAME, FASTER, SLOWER or UNCLEAR.

    Two files are run alternately on this machine until the verdict is clear; nothing needs to be stored. With --fail-on
    the command also ends with exit code 4 if a difference that matters could have been missed.

    \b
    Example:
        dlbricks compare old.onnx new.onnx --fail-on slower --minimum-effect 5%
    """
    if by == "file" or (by is None and _two_files(options["models"])):
        options |= {"layers": layers, "all": every, "plot": plot}
        _gate(options, budget_s=budget_s, quiet=quiet, fail_on=fail_on, form=form)
        return
    from ..analyzer.comparison.compare import compare as compare_stored
    from ..analyzer.report.answers.comparison import comparison_answer
    from ..db import Store

    with Store.open(database, read_only=True) as store:
        comparison = compare_stored(take_models(options), store=store, by=by or "combination", **options)
    if plot is not None:
        from ..analyzer.report.drawing import plots

        drawn(plots(comparison).write(plot))
    crossed = any(str(row.verdict).lower() in fail_on for row in comparison.rows)
    answer(
        comparison_answer(comparison, layers=layers, most=None if every else MOST),
        form,
        complete=comparison.complete,
        crossed=crossed,
    )


def _two_files(models: Sequence[str]) -> bool:
    """Return true if the arguments are two files."""
    return len(models) == 2 and all(Path(model).is_file() for model in models)


def _gate(options: dict[str, Any], *, budget_s: float, quiet: bool, fail_on: tuple[str, ...], form: str) -> None:
    from ..analyzer.comparison.gate import gate
    from ..analyzer.report.answers.comparison import gate_answer
    from ..db.values import NATIVE
    from ..generator.backends.custom_ops import asked

    sources = take_models(options)
    if len(sources) != 2:
        raise UsageError(f"{len(sources)} models are given", remedy="give the old model and the new one")
    for problem in (source.problem for source in sources):
        if problem is not None:
            raise problem
    foreign = ("base", "others", "system", "stack", "cache", "layers", "all", "plot")
    given = [name.removesuffix("s") if name == "others" else name for name in foreign if options.get(name)]
    if given:
        raise UsageError(f"--{given[0]} selects stored results, but two files run now", remedy="leave it out")
    with Reporter(quiet=quiet) as progress:
        found = gate(
            *sources,
            backend=options["backend"] or "onnxruntime",
            device=options["device"] or "cpu",
            options=asked(),
            threads=1 if options["threads"] is None else options["threads"],
            dtype=options["dtype"] or NATIVE,
            minimum_effect=options["minimum_effect"],
            budget_s=budget_s,
            progress=progress,
        )
    crossed = str(found.verdict).lower() in fail_on or (bool(fail_on) and found.blind)
    answer(gate_answer(found), form, complete=found.complete, crossed=crossed)


@click.command()
@model_arguments
@history_options
@click.option(
    "--since",
    type=moment,
    metavar="TIME",
    help="Only changes after this time: ISO 8601 or an age, for example 2026-11-23 or 7d.",
)
@click.option("--runs", is_flag=True, help="Also list the runs.")
@click.option(
    "--confirm",
    "environments",
    type=PLACE,
    nargs=2,
    metavar="OLD NEW",
    help="Measure the newest alarm again here, alternating both environments; each a lock file or a Python.",
)
@all_option
@click.option(
    "--fail-on",
    type=click.Choice(["change", "slower", "faster"]),
    multiple=True,
    help="End with exit code 4 for such a change, unless the machine changed; repeatable.",
)
@plot_option
@database_option
@wait_option
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
    """Show the stored runs of models over time, and changes of latency by versions or by the machine.

    \b
    Example:
        dlbricks history squeezenet --fail-on change
    """
    from ..analyzer.history.history import history as find_history
    from ..analyzer.report.answers.history import history_answer
    from ..db import Store

    sources = take_models(options)
    with Store.open(database, read_only=True) as store:
        found = find_history(sources, store=store, **options)
    if environments is not None:
        from ..analyzer.history.confirm import confirm

        old, new = environments
        cut = {name: options[name] for name in ("granularity", "connected")}
        with Reporter() as progress:
            found = confirm(found, sources, old=old, new=new, progress=progress, **cut)
    if plot is not None:
        from ..analyzer.report.drawing import plots

        drawn(plots(found).write(plot))
    crossed = any({"change", str(alarm.verdict).lower()} & {*fail_on} for alarm in found.alarms)
    answer(
        history_answer(found, runs=runs, most=None if every else MOST), form, complete=found.complete, crossed=crossed
    )


@click.command()
@model_arguments
@comparison_options
@database_option
@format_options
def advise(*, database: str, form: str, **options: Any) -> None:
    """Show the fastest stored framework and options on this system, and the deciding layers.

    \b
    Example:
        dlbricks advise squeezenet
    """
    from ..analyzer.advice import advise as advise_on
    from ..analyzer.report.answers.comparison import advice_answer
    from ..db import Store

    with Store.open(database, read_only=True) as store:
        advice = advise_on(take_models(options), store=store, **options)
    answer(advice_answer(advice), form, complete=advice.complete)
