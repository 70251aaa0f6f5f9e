"""The command line: each command calls one public function and writes its answer.

Exit codes: 0 done, 1 a clear one-line error, 2 wrong usage, 3 done but incomplete, 4 a limit crossed. Answers go to
stdout, everything else to stderr. Commands import their modules when they run, so that ``dlbricks --help`` is instant.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from ..errors import DlbricksError, UsageError
from ..version import __version__
from . import options as shared
from .answering import analyze, improve, predict, report, tokens
from .console import answer, judgements, note, standing, watched, with_limits
from .fleet import fleet
from .inventory import backends, brick, models, system
from .latencies import advise, compare, each_measured, estimate, history, kernels
from .models import (
    ALONE,
    NATURAL,
    NEW_FOLDER,
    POSITIVE,
    binding_options,
    custom_ops_option,
    flag,
    known_models,
    limits_option,
    model_arguments,
    open_suite,
    option,
    take_models,
)  # fmt: skip
from .storage import db, manifest, reproduce
from .surroundings import Ended, prepare

if TYPE_CHECKING:
    from ..analyzer.limits import Limit
    from ..db import Store
    from ..generator.measurement.run import RunReport

_INTERRUPTED = 130
"""Exit code after Ctrl-C, as the shell gives it."""

_SIGNALLED = 128
"""Exit code of a signal, before its number is added, as the shell gives it."""

_YOUNG = 100_000
"""Objects between two searches for circular garbage. A command makes many that stay to its end, and hardly a circle:
with Python's own 700 the searches took half of the time of ``estimate`` for 60 models."""


def main() -> NoReturn:
    """Entry point: run the command, and turn any error into one line and an exit code."""
    gc.set_threshold(_YOUNG)
    prepare()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a file's name need not fit the terminal's encoding
    try:
        code = commands.main(prog_name="dlbricks", standalone_mode=False)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "dlbricks"
        _fail(f"{error.format_message().rstrip('.')}; see '{path} --help'", error.exit_code)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except DlbricksError as error:
        _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort) as error:
        cause = error.__cause__ or error  # click's Abort stands before its cause
        notes = "; ".join(getattr(cause, "__notes__", ()))
        by, code = "", _INTERRUPTED
        if isinstance(cause, Ended):
            by, code = f" by {signal.Signals(cause.number).name}", _SIGNALLED + cause.number
        _fail(f"interrupted{by}{f'; {notes}; the same command goes on from there' if notes else ''}", code)
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error), 1)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(text: str, code: int) -> NoReturn:
    try:
        note(f"dlbricks: {' '.join(text.split())}")
        sys.stdout.flush()
    except OSError:
        # Nobody listens any more, or their disk is full: the exit code has to do.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dlbricks")
def commands() -> None:
    """Decompose ONNX models into bricks, measure each once, reconstruct every model's latency.

    \b
    Example:
        dlbricks generate squeezenet resnet50 -g 1 -o suite
        dlbricks run suite --with squeezenet --with resnet50
        dlbricks estimate squeezenet resnet50
    """


@commands.command()
@option("-o --out", "Folder for results and plots.", NEW_FOLDER, default=Path("demo"))
@shared.quiet_option
@shared.wait_option
@shared.format_options
def demo(*, out: Path) -> None:
    """Everything on models of the built-in zoo, small enough for two cores.

    \b
    Example:
        dlbricks demo
    """
    from ..analyzer.demo import demo as show
    from ..analyzer.demo import demo_answer

    with watched() as progress:
        result = show(out, progress=progress)
    answer(demo_answer(result), complete=result.complete)


@commands.command()
@model_arguments
@shared.split_options
@shared.runtime_options
@option("-o --out", "Folder for the suite.", NEW_FOLDER, required=True, metavar="SUITE")
@option("--jobs", "Processes that decompose.", POSITIVE, default=1)
@flag("--annotate", "Write the models' names and occurrences into the suite.")
@option("--decoys", "Mix in N random bricks.", NATURAL, default=0, show_default=False)
@option("--decoy-seed", "Secret seed of the decoys; keep it private.", metavar="S")
@shared.quiet_option
@shared.format_options
def generate(**options: Any) -> None:
    """Decompose models into a suite of unique bricks. MODEL is a file, a folder, a glob or a zoo name.

    \b
    Example:
        dlbricks generate squeezenet models/*.onnx -g 3 -o suite
    """
    shared.check_runtime_options(options["graph"])
    from ..analyzer.report.answers.generation import generate_answer
    from ..generator.decomposition.generate import generate as generate_suite

    given = click.get_current_context().get_parameter_source("graph") is not ParameterSource.DEFAULT
    with watched() as progress:
        report = generate_suite(take_models(options), or_source=not given, progress=progress, **options)
    answer(generate_answer(report), complete=report.complete)


@commands.command()
@shared.suite_argument
@option(
    "--with models",
    "Whole models to measure alternately with the bricks; after the suite, repeatable.",
    multiple=True,
    metavar="MODEL...",
)
@click.argument("more", nargs=-1, metavar="")
@binding_options
@custom_ops_option
@shared.stack_options
@flag("--algorithms", "Also measure each brick with each algorithm that the runtime offers.")
@option("--algorithm named", "Also measure each brick with this algorithm; repeatable.", multiple=True)
@flag("--kernels", "Also record the kernels, in a separate pass after timing.")
@flag("--dry-run", "Only forecast the measurements and their duration.")
@shared.target_option(None, "Half of the interval of each model to reach; --visits is then the most. Needs --annotate.")
@shared.pace_options
@option(
    "--again", "Repeat these stored measurements; repeatable.", click.Choice(["noisy", "failed", "all"]), multiple=True
)
@shared.since_option
@shared.node_options
@shared.measuring_options
def run(
    *,
    suite: Path,
    threads: tuple[int, ...],
    budget_s: float | None,
    dry_run: bool,
    target: float | None,
    database: str,
    **options: Any,
) -> None:
    """Measure the unmeasured bricks of a suite. A repeated call continues an interrupted one.

    \b
    Example:
        dlbricks run suite --with squeezenet resnet50
    """
    more, named = options.pop("more"), options.pop("named")
    if more and not options["models"]:
        raise UsageError(f"{more[0]!r} is a second suite", remedy="whole models go after --with")
    options |= {"models": options["models"] + more, "algorithms": options["algorithms"] or named}
    from ..analyzer.report.answers.runs import run_answer
    from ..generator.measurement.run import run as run_suite

    opened, sources = open_suite(suite), known_models(options)
    with _store(database, dry_run=dry_run) as store, watched() as progress:
        measure: Callable[..., RunReport] = run_suite
        if target is not None:
            from ..analyzer.targeting import run_to  # what it needs is much, and few ask for it

            measure = partial(run_to, target=target)
        suited = partial(measure, opened, store=store, dry_run=dry_run, progress=progress, **options)
        reports = each_measured(
            threads, sources, budget_s, progress,
            lambda number, models, share_s: suited(models=models, threads=number, budget_s=share_s),
        )  # fmt: skip
    answer(run_answer(*reports, budget_s=budget_s), complete=all(report.complete for report in reports))


def _store(database: str, *, dry_run: bool) -> AbstractContextManager[Store]:
    """Open the database of the results. A forecast neither creates nor changes one."""
    from ..db import Store
    from ..db.merging import open_for_results
    from ..db.place import DatabasePlace

    if not dry_run:
        return open_for_results(database)
    absent = not DatabasePlace.of(database).inspect()
    return Store.open("sqlite://" if absent else database, create=absent, read_only=not absent)


@commands.command()
@model_arguments
@shared.stack_options
@shared.pace_options
@shared.since_option
@shared.node_options
@flag("--kernels", "Also record the kernels, in a separate pass after timing.")
@flag("--alone", "Also run each model in a process of its own: its memory, and percentiles of single executions.")
@limits_option(
    "'latency>10ms', 'p95>15ms', 'memory>200MB', 'load>2s', 'size>50MB'; repeatable. Percentiles and memory imply "
    "--alone.",
    *("latency", "p50", "p90", "p95", "p99", "load", "first-run", "memory", "size"),
)
@shared.measuring_options
def measure(
    *, threads: tuple[int, ...], budget_s: float | None, limits: tuple[Limit, ...], database: str, **options: Any
) -> None:
    """Measure whole models: the ground truth.

    \b
    Example:
        dlbricks measure squeezenet --threads 2 --fail-on 'latency>10ms'
    """
    from ..analyzer.report.answers.runs import measure_answer, measured_figures
    from ..db.merging import open_for_results
    from ..generator.measurement.measure import measure as measure_models

    sources = take_models(options)
    options["alone"] |= any(limit.figure in ALONE for limit in limits)
    with open_for_results(database) as store, watched() as progress:
        measured = partial(measure_models, store=store, progress=progress, **options)
        reports = each_measured(
            threads, sources, budget_s, progress,
            lambda number, models, share_s: measured(models=models, threads=number, budget_s=share_s),
        )  # fmt: skip
    figures = measured_figures(reports, sources) if limits else {}
    judged = judgements(limits, figures)
    result = with_limits(measure_answer(*reports), judged)
    answer(result, complete=all(report.complete for report in reports), **standing(judged))


_MORE = (
    *(report, predict, estimate, tokens, analyze, improve, kernels, compare, history, advise, manifest, reproduce),
    *(models, brick, backends, system, db, fleet),
)
for command in _MORE:
    commands.add_command(command)
