"""Commands that read stored results: estimates, kernels, comparisons, history, advice.

Only ``history --confirm`` measures.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..analyzer.report.units import counted
from ..errors import UsageError
from . import options as shared
from .console import Reporter, answer, draw, judgements, most_rows, note, standing, watched, with_limits
from .models import (
    ALONE,
    NEW_FOLDER,
    PLACE,
    flag,
    limit_of,
    model_arguments,
    moment,
    open_stored,
    option,
    seconds,
    take_models,
    whole_models,
)

if TYPE_CHECKING:
    from ..analyzer.estimation.estimates import Estimates
    from ..analyzer.limits import Limit
    from ..constructor.result import Estimate
    from ..generator.measurement.measure import MeasureReport
    from ..generator.measurement.run import RunReport
    from ..models import ModelSource


# The same command for several numbers of threads, one after the other.
#
# The library measures with one number at a time, since a worker is bound to its cores when it starts. Each number has
# its own runs in the database, goes on from where it was interrupted, and gets an equal share of what is left of the
# time.


_LEAST_S = 1e-3
"""A share where nothing is left: the least is measured all the same, as of a single budget that is too short."""

Report = TypeVar("Report", bound="RunReport | MeasureReport")


def each_measured(
    threads: Sequence[int],
    models: Sequence[ModelSource],
    budget_s: float | None,
    progress: Reporter,
    measure: Callable[[int, list[ModelSource], float | None], Report],
) -> list[Report]:
    """Return one report per number of threads.

    Args:
        threads: The numbers; 0 means all physical cores.
        models: Whole models; for several numbers, each name ends in ``@t2``.
        budget_s: Total time of all; None: unlimited.
        progress: Shows the number of threads.
        measure: Measures with one number of threads, the given models and seconds.
    """
    if len(threads) > 1:
        from ..generator.machine.cores import physical_cores

        threads = tuple(dict.fromkeys(number or len(physical_cores()) for number in threads))
    reports: list[Report] = []
    for index, number in enumerate(threads):
        named = list(models)
        if len(threads) > 1:
            progress.part = f" with {counted(number, 'thread')}"
            named = [
                model if model.problem else dataclasses.replace(model, name=f"{model.name}@t{number}")
                for model in models
            ]
        share_s = None if budget_s is None else max(_LEAST_S, budget_s / (len(threads) - index))
        report = measure(number, named, share_s)
        budget_s = None if budget_s is None else budget_s - report.bounded_s
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
    estimates_by_key: dict[tuple[int, int | None], Estimate] = {}
    for number in threads:
        for position, entry in enumerate(estimate(number)):
            name = f"{entry.name}@t{number if entry.place.threads is None else entry.place.threads}"
            source = dataclasses.replace(entry.model.source, name=name)
            named = dataclasses.replace(entry, model=dataclasses.replace(entry.model, source=source))
            estimates_by_key.setdefault((position, entry.place.threads), named)
    return Estimates(tuple(estimates_by_key[key] for key in sorted(estimates_by_key, key=lambda key: key[0])))


@click.command()
@model_arguments
@shared.estimated_split_options
@shared.estimated_options
@flag("--explain", "Also show time by operator, and the causes between bricks and model.")
@shared.interpolate_option
@flag("--predict", "Predict unmeasured bricks from others.")
@flag("--layers", "Also show each brick's rate, roofline bound and headroom.")
@flag("--strict", "End with exit code 3 if an estimate is mostly unstable, or the machine was disturbed.")
@shared.all_option
@shared.plot_option
@shared.stored_options
def estimate(
    *,
    threads: tuple[int, ...] | None,
    explain: bool,
    interpolate: bool,
    layers: bool,
    strict: bool,
    plot: Path | None,
    database: str,
    **options: Any,
) -> None:
    """Latency of models, reconstructed from measured bricks.

    \b
    Example:
        dlbricks estimate squeezenet resnet50 -g 1
    """
    from ..analyzer.estimation.estimate import estimate as estimate_models
    from ..analyzer.estimation.estimate import estimate_between
    from ..analyzer.report.answers.estimated import estimates_answer

    predict = options.pop("predict")
    if interpolate and predict:
        raise UsageError("--interpolate and --predict fill the same gaps", remedy="leave one out")
    estimated = estimate_between if interpolate else partial(estimate_models, predict=predict)
    sources = take_models(options)
    with open_stored(database, sources) as store:
        estimates = each_estimated(
            threads or (), lambda number: estimated(sources, store=store, threads=number, **options)
        )
    graphs = {entry.model.cutting.graph for entry in estimates} - {"source"}
    if options["graph"] is None and graphs:
        note(f"picked: --graph {' '.join(graphs)}, the graph of the stored bricks")
    draw(estimates, plot)
    result = estimates_answer(estimates, explain=explain, layers=layers, most=most_rows())
    doubtful = strict and any(entry.doubtful for entry in estimates)
    answer(result, complete=estimates.complete and not doubtful)


@click.command()
@model_arguments
@flag("--whole", "Kernels of the whole model ('measure --kernels'); else of its bricks.")
@shared.kernel_options
@shared.all_option
@shared.stored_options
def kernels(*, database: str, **options: Any) -> None:
    """Show the executed kernels of models: share of time, matrix units, other devices.

    \b
    Example:
        dlbricks kernels squeezenet --backend torch
    """
    from ..analyzer.kernels import kernels as find_kernels
    from ..analyzer.report.answers.bricks import kernels_answer

    sources = take_models(options)
    with open_stored(database, sources) as store:
        executed_kernels = find_kernels(sources, store=store, **options)
    answer(kernels_answer(executed_kernels, most=most_rows()), complete=executed_kernels.complete)


_VERDICTS = ("slower", "faster", "unclear")


def _verdict_or_limit(text: str) -> str | Limit:
    """Return a verdict as it is written, or a limit on the new file."""
    if text in _VERDICTS:
        return text
    if text.isalpha():
        raise click.BadParameter(f"{text!r} is no verdict; write {', '.join(_VERDICTS)} or a limit: 'size>50MB'")
    return limit_of("latency", "p95", "difference", "memory", "size")(text)


def two_versions(text: str) -> tuple[str, str]:
    """Read two versions; the second may leave out the package of the first."""
    first, comma, second = (part.strip() for part in text.partition(","))
    if not (first and comma and second) or "," in second:
        raise click.BadParameter(f"{text!r} is not two versions; write onnxruntime==1.22.1,onnxruntime==1.23.2")
    package, equal, _ = first.partition("==")
    return first, f"{package}=={second}" if equal and second[0].isdigit() and "/" not in second else second


@click.command()
@model_arguments
@option(
    "--by",
    "Sides to compare: stored combinations; runs or variants (algorithms) of one combination; or two files, which run "
    "alternately now. Two file arguments mean 'file'.",
    click.Choice(["combination", "run", "variant", "file"]),
)
@option(
    "--base",
    "The base, or 'fastest' for the fastest side of each model; else the side that was measured first.",
    metavar="ID|NAME",
)
@option("--other others", "Compare only this side with the base; repeatable.", multiple=True, metavar="ID|NAME")
@shared.comparison_options
@flag(
    "--layers",
    "Also list bricks, with the base's gain from each. Two files: layers that changed, appeared or vanished.",
)
@shared.all_option
@option(
    "--versions",
    "Two versions of a runtime, which run the models and their bricks alternately now: 'onnxruntime==1.22.1,1.23.2' "
    "(also openvino==, torch==, or paths of Pythons). Each gets an environment in the cache folder.",
    two_versions,
    metavar="OLD,NEW",
)
@option(
    "--write write_to",
    "Versions: for each slower brick write a folder to reproduce it, for a bug report.",
    NEW_FOLDER,
    metavar="DIR",
)
@option("--budget budget_s", "Files, versions: time limit, even if verdicts are unclear (60s, 120s).", seconds)
@flag("--alone", "Two files: also run each in a process of its own, for its memory.")
@shared.quiet_option
@shared.wait_option
@option(
    "--fail-on",
    "End with exit code 4 for a verdict: slower, faster, unclear. Two files: also for limits 'latency>10ms', "
    "'p95>15ms', 'difference>1e-3', 'memory>200MB', 'size>50MB' of the new one, and with 5 if it cannot be told "
    "whether it is slower; repeatable.",
    _verdict_or_limit,
    multiple=True,
    metavar="VERDICT|LIMIT",
)
@shared.plot_option
@shared.stored_options
def compare(
    *,
    by: str | None,
    layers: bool,
    versions: tuple[str, str] | None,
    write_to: Path | None,
    budget_s: float | None,
    fail_on: tuple[str | Limit, ...],
    alone: bool,
    plot: Path | None,
    database: str,
    **options: Any,
) -> None:
    """Two files, or stored frameworks, options, systems or runs: SAME, FASTER, SLOWER or UNCLEAR.

    Two files, or two --versions of a runtime, are run alternately on this machine until the verdict is clear; nothing
    needs to be stored. With --fail-on the command ends with exit code 5 if a difference that matters could have been
    missed.

    \b
    Example:
        dlbricks compare old.onnx new.onnx --fail-on slower --minimum-effect 5%
    """
    if versions is not None:
        _versions(options, versions, write_to, budget_s, fail_on, layers=layers)
        return
    if write_to is not None:
        raise UsageError("--write is for --versions", remedy="leave it out")
    if by == "file" or (by is None and _two_files(options["models"])):
        _gate(options, 60.0 if budget_s is None else budget_s, fail_on, alone=alone, layers=layers)
        return
    if alone:
        raise UsageError("--alone is for two files that run now, and stored results are compared",
                         remedy="give two files, or use 'measure --alone'")  # fmt: skip
    if limit := next((limit for limit in fail_on if not isinstance(limit, str)), None):
        raise UsageError(f"{limit.text!r} is a limit on two files, and stored results are compared",
                         remedy="use 'measure --fail-on', or give two files")  # fmt: skip
    from ..analyzer.comparison.compare import compare as compare_stored
    from ..analyzer.report.answers.comparison import comparison_answer

    sources = take_models(options)
    with open_stored(database, sources) as store:
        comparison = compare_stored(sources, store=store, by=by or "combination", **options)
    draw(comparison, plot)
    crossed = any(str(row.verdict).lower() in fail_on for row in comparison.rows)
    result = comparison_answer(comparison, layers=layers, most=most_rows())
    answer(result, complete=comparison.complete, crossed=crossed)


def _two_files(models: Sequence[str]) -> bool:
    """Return true if the arguments are two files."""
    return len(models) == 2 and all(Path(model).is_file() for model in models)


_STORED = ("base", "other", "system", "stack", "cache", "plot")
"""Options of ``compare`` that what runs now does not have."""


def _refuse(names: Sequence[str], what: str) -> None:
    """Refuse options of ``compare`` that were given, if they do not concern what runs now."""
    parameters = click.get_current_context().params
    if foreign := [name for name in names if parameters[{"other": "others", "all": "every"}.get(name, name)]]:
        raise UsageError(f"--{foreign[0]} does not concern {what}, which run now", remedy="leave it out")


def _runs_now(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return how the sides of a comparison run now, with the defaults of what is not given."""
    from ..db.values import NATIVE
    from ..generator.backends.custom_ops import asked

    return {
        "backend": options["backend"] or "onnxruntime",
        "device": options["device"] or "cpu",
        "options": asked(),
        "threads": 1 if options["threads"] is None else options["threads"],
        "dtype": options["dtype"] or NATIVE,
        "minimum_effect": options["minimum_effect"],
    }


def _versions(
    options: dict[str, Any],
    versions: tuple[str, str],
    write_to: Path | None,
    budget_s: float | None,
    fail_on: tuple[str | Limit, ...],
    *,
    layers: bool,
) -> None:
    from ..analyzer.comparison.bug_reports import write_bug_reports
    from ..analyzer.comparison.runtime_versions import compare_versions
    from ..analyzer.report.answers.versions import versions_answer

    _refuse(("by", "alone", *_STORED), "two versions")
    if limit := next((limit for limit in fail_on if not isinstance(limit, str)), None):
        raise UsageError(f"{limit.text!r} is a limit on two files, and two versions run", remedy="use a verdict")
    sources = take_models(options)
    with TemporaryDirectory(prefix="dlbricks-versions-") as folder, watched() as progress:
        comparison = compare_versions(
            sources,
            versions,
            folder=Path(folder),
            granularity=options["granularity"],
            connected=options["connected"],
            budget_s=120.0 if budget_s is None else budget_s,
            progress=progress,
            **_runs_now(options),
        )
        written = [] if write_to is None else write_bug_reports(comparison, write_to)
    verdicts = {str(row.verdict).lower() for row in comparison.rows}
    answer(
        versions_answer(comparison, written, layers=layers, most=most_rows()),
        complete=comparison.complete,
        crossed=not verdicts.isdisjoint(fail_on),
        undecided=bool(fail_on) and "unclear" in verdicts,
    )


def _gate(
    options: dict[str, Any],
    budget_s: float,
    fail_on: tuple[str | Limit, ...],
    *,
    alone: bool,
    layers: bool,
) -> None:
    from ..analyzer.comparison.gate import gate
    from ..analyzer.report.answers.comparison import gate_answer, gate_figures

    sources = whole_models(options, 2, "give the old model and the new one")
    _refuse(_STORED, "two files")
    limits = [limit for limit in fail_on if not isinstance(limit, str)]
    with watched() as progress:
        comparison = gate(
            *sources,
            budget_s=budget_s,
            alone=alone or any(limit.figure in ALONE for limit in limits),
            layers=layers,
            progress=progress,
            **_runs_now(options),
        )
    verdicts = {word for word in fail_on if isinstance(word, str)}
    judged = judgements(limits, {comparison.new: gate_figures(comparison, sources[1])} if limits else {})
    of_limits = standing(judged)
    answer(
        with_limits(gate_answer(comparison, most=most_rows()), judged),
        complete=comparison.complete,
        crossed=of_limits["crossed"] or str(comparison.verdict).lower() in verdicts,
        undecided=of_limits["undecided"] or (bool(verdicts) and not comparison.complete),
    )


@click.command()
@model_arguments
@shared.history_options
@option("--since", "Only changes after this time: ISO 8601 or an age, for example 2026-11-23 or 7d.", moment)
@flag("--runs", "Also list the runs.")
@option(
    "--confirm environments",
    "Measure the newest alarm again here, alternating both environments; each a lock file or a Python.",
    PLACE,
    nargs=2,
    metavar="OLD NEW",
)
@shared.all_option
@option(
    "--fail-on",
    "End with exit code 4 for such a change, unless the machine changed; repeatable.",
    click.Choice(["change", "slower", "faster"]),
    multiple=True,
)
@shared.database_option
@shared.wait_option
@shared.format_options
def history(
    *,
    runs: bool,
    environments: tuple[Path, Path] | None,
    fail_on: tuple[str, ...],
    database: str,
    **options: Any,
) -> None:
    """Show the stored runs of models over time, and changes of latency by versions or by the machine.

    \b
    Example:
        dlbricks history squeezenet --fail-on change
    """
    from ..analyzer.history.history import history as find_history
    from ..analyzer.report.answers.comparison import history_answer

    sources = take_models(options)
    with open_stored(database, sources) as store:
        timeline = find_history(sources, store=store, **options)
    if environments is not None:
        from ..analyzer.history.confirm import confirm

        old, new = environments
        with watched() as progress:
            timeline = confirm(timeline, sources, old=old, new=new, progress=progress)
    crossed = any({"change", str(alarm.verdict).lower()} & {*fail_on} for alarm in timeline.alarms)
    answer(history_answer(timeline, runs=runs, most=most_rows()), complete=timeline.complete, crossed=crossed)


@click.command()
@model_arguments
@shared.comparison_options
@flag("--layers", "Also list bricks, with the fastest side's gain from each.")
@shared.all_option
@shared.stored_options
def advise(*, layers: bool, database: str, **options: Any) -> None:
    """Compare the stored frameworks and options on this system with the fastest of each model.

    \b
    Example:
        dlbricks advise squeezenet
    """
    from ..analyzer.advice import advise as advise_on
    from ..analyzer.report.answers.comparison import advice_answer

    sources = take_models(options)
    with open_stored(database, sources) as store:
        advice = advise_on(sources, store=store, **options)
    answer(advice_answer(advice, layers=layers, most=most_rows()), complete=advice.complete)
