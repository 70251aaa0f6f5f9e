"""The command that does everything: from models to the page."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import UsageError
from .console import Reporter, answer, note
from .models import PLACE, model_arguments, take_models
from .options import (
    database_option,
    format_options,
    interpolate_option,
    quiet_option,
    report_options,
    setting_option,
)

if TYPE_CHECKING:
    from ..analyzer.reporting import Setup
    from ..db import Store

__all__ = ["open_store", "picked_setup", "report"]


@click.command()
@model_arguments
@click.option(
    "-o", "--out", type=PLACE, default=Path("report.html"), show_default=True, metavar="FILE", help="The page."
)
@report_options
@setting_option
@click.option("--suite", type=PLACE, metavar="SUITE", help="Folder to keep the bricks in; else a temporary one.")
@click.option("--trace", type=PLACE, metavar="FILE", help="Also write the constructed execution as a Chrome trace.")
@click.option(
    "--annotated",
    type=PLACE,
    metavar="FILE",
    help="Also write the model, one only, with the cost of each node, for Netron.",
)
@click.option("--no-prove", is_flag=True, help="Try no remedies of what is found.")
@interpolate_option
@click.option("--write", type=PLACE, metavar="DIR", help="Folder for improved models that were proven to save time.")
@database_option
@quiet_option
@format_options
def report(
    *,
    out: Path,
    budget_s: float | None,
    stored: bool,
    suite: Path | None,
    trace: Path | None,
    annotated: Path | None,
    no_prove: bool,
    write: Path | None,
    interpolate: bool,
    database: str,
    quiet: bool,
    form: str,
    **options: Any,
) -> None:
    """All of it in one call: decompose, measure, find what is missed, try the remedies, write one page to forward.

    What is stored is not measured again, and what was proven not tried again. Without options it measures with ONNX
    Runtime and one thread. With --no-measure, the options of the runtime choose among what is stored.

    \b
    Example:
        dlbricks report squeezenet -o report.html
    """
    from ..analyzer.reporting import report as write_report
    from ..analyzer.reporting import report_answer

    if out.is_dir():
        raise UsageError(f"{out} is a folder", remedy=f"name a file: -o {out / 'report.html'}")
    sources = take_models(options)
    problems = [source.problem for source in sources if source.problem]
    if problems and len(problems) == len(sources):
        raise problems[0]  # a typing error, most likely: none of the models is there
    if annotated is not None and len(sources) > 1:
        raise UsageError(f"{len(sources)} models do not fit into one file", remedy="give one model with --annotated")
    setup = picked_setup(stored=stored, **options)
    if setup.picked and not quiet:
        note(f"picked: {' '.join(setup.picked)}")
    with open_store(database, stored=stored) as store, Reporter(quiet=quiet) as progress:
        result = write_report(
            sources,
            store=store,
            out=out,
            setup=setup,
            measure=not stored,
            budget_s=budget_s,
            suite=suite,
            prove=not no_prove,
            write=write,
            interpolate=interpolate,
            progress=progress,
        )
    if trace is not None:
        from ..analyzer.report.trace import write_trace

        if not write_trace(result.sections, trace):
            note(f"{trace} is empty: there is no trace before every layer of a model is measured")
    if annotated is not None:
        from ..analyzer.report.annotation import annotate

        annotate(result.sections, annotated)
    answer(report_answer(result), form, complete=result.complete)


def picked_setup(*, stored: bool, system: str | None, stack: str | None, **options: Any) -> Setup:
    """What was asked for; what is missing is picked where something is to be measured."""
    from ..analyzer.reporting import Setup, set_up

    if stored:
        return Setup(system, stack, **options)
    if system is not None or stack is not None:
        raise UsageError("what is measured here is of this system and stack", remedy="add --no-measure")
    return set_up(**options)


def open_store(database: str, *, stored: bool) -> AbstractContextManager[Store]:
    """The database: with what is stored alone, or for results too."""
    from ..db.decompositions import open_keeping
    from ..db.provisional import open_for_results

    return open_keeping(database) if stored else open_for_results(database)
