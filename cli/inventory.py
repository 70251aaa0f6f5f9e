"""Commands about models, bricks, runtimes and this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..analyzer.report.tables import MOST
from ..errors import UsageError
from .console import Reporter, answer
from .models import NEW_FILE, NEW_FOLDER, PLACE, binding_options, open_suite, take_models
from .options import (
    all_option,
    database_option,
    device_options,
    format_options,
    quiet_option,
    setting_option,
    suite_argument,
    suite_option,
    wait_option,
)


@click.group()
def models() -> None:
    """List or export the models of the built-in zoo."""


@models.command("list")
@click.option("--all", "every", is_flag=True, help="A row per model: task, dimensions, requirements.")
@format_options
def models_list(*, every: bool, form: str) -> None:
    """List the models of the zoo.

    \b
    Example:
        dlbricks models list
    """
    from ..analyzer.report.answers.resources import zoo_answer

    answer(zoo_answer(every=every), form)


@models.command("export")
@click.argument("models", nargs=-1, required=True, metavar="NAME...")
@binding_options
@click.option("-o", "--out", type=NEW_FOLDER, required=True, metavar="DIR", help="Folder for the files.")
@click.option("--force", is_flag=True, help="Replace other files of these names.")
@click.option("--open", "opened", is_flag=True, help="Leave the lengths of a decoder open.")
@click.option(
    "--fuse-attention",
    "attention",
    is_flag=True,
    help="Write attention as one operator of ONNX Runtime or ONNX.",
)
@click.option(
    "--weights",
    type=click.Choice(["int4", "int8"]),
    help="Store weights of products in few bits, by ONNX Runtime's quantizer.",
)
@format_options
def models_export(*, out: Path, form: str, **options: Any) -> None:
    """Write models of the zoo as self-contained ONNX files with seeded weights, for any other tool.

    \b
    Example:
        dlbricks models export squeezenet -o zoo
    """
    from ..analyzer.report.answers.generation import export_models

    result, complete = export_models(take_models(options), out, **options)
    answer(result, form, complete=complete)


@click.group()
def brick() -> None:
    """Show the bricks of a suite and their measurements."""


@brick.command("list")
@suite_option
@all_option
@database_option
@format_options
def brick_list(*, suite: Path | None, every: bool, database: str, form: str) -> None:
    """Bricks of a suite, or all that were measured.

    \b
    Example:
        dlbricks brick list --suite suite
    """
    from ..analyzer.report.answers.bricks import bricks_answer

    answer(bricks_answer(suite, database, most=None if every else MOST), form)


@brick.command("show")
@click.argument("key")
@suite_option
@database_option
@format_options
def brick_show(*, key: str, suite: Path | None, database: str, form: str) -> None:
    """One brick: its layers, its work, and every measurement of it. KEY may be its beginning.

    \b
    Example:
        dlbricks brick show 3f2a --suite suite
    """
    from ..analyzer.report.answers.bricks import brick_answer

    answer(brick_answer(key, suite, database), form)


@brick.command("export")
@click.argument("key")
@click.option("--suite", type=PLACE, required=True, metavar="SUITE", help="Suite that holds the brick.")
@click.option("-o", "--out", type=NEW_FILE, metavar="FILE", help="ONNX file to write; else <key>.onnx.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the weights.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@format_options
def brick_export(*, key: str, suite: Path, out: Path | None, seed: int, force: bool, form: str) -> None:
    """Write a brick as self-contained ONNX with seeded weights, for other tools.

    \b
    Example:
        dlbricks brick export 3f2a --suite suite -o brick.onnx
    """
    from ..analyzer.report.answers.generation import export_brick

    answer(export_brick(key, suite, out, seed=seed, force=force), form)


@click.group()
def backends() -> None:
    """Show, install or check the runtimes that execute bricks."""


@backends.command("list")
@format_options
def backends_list(*, form: str) -> None:
    """List the runtimes, their devices, and the reasons for missing ones.

    \b
    Example:
        dlbricks backends list
    """
    from ..analyzer.report.answers.resources import backends_answer

    answer(backends_answer(), form)


@backends.command("install")
@click.argument("name")
@click.option("--again", is_flag=True, help="Replace an existing environment.")
@click.option(
    "--python",
    metavar="PATH",
    help="Interpreter to build it from; else this one, or one of the right version on the PATH.",
)
@format_options
def backends_install(*, name: str, again: bool, python: str | None, form: str) -> None:
    """Install a runtime in a separate environment; the environment of dlbricks stays unchanged.

    \b
    Example:
        dlbricks backends install mxnet
    """
    from ..analyzer.report.answers.resources import installation_answer
    from ..generator.backends.environments import install_backend

    answer(installation_answer(install_backend(name, again=again, python=python)), form)


@backends.command("check")
@click.argument("name")
@suite_argument
@click.option("--against", metavar="NAME", default="onnxruntime", show_default=True, help="Reference runtime.")
@device_options
@click.option(
    "--dtype",
    metavar="NAME",
    default="float32",
    show_default=True,
    help="Precision of the tested runtime; the reference uses the network's own.",
)
@quiet_option
@format_options
def backends_check(*, name: str, suite: Path, quiet: bool, form: str, **options: Any) -> None:
    """Compare the outputs of two runtimes, brick by brick.

    \b
    Example:
        dlbricks backends check torch suite
    """
    from ..analyzer.report.answers.resources import agreement_answer
    from ..generator.measurement.agreement import check_agreement

    with Reporter(quiet=quiet) as progress:
        report = check_agreement(open_suite(suite), name, progress=progress, **options)
    answer(agreement_answer(report), form, complete=report.complete)


@backends.command("plans")
@suite_argument
@click.option(
    "--gpu", metavar="NAME|FILE", default="h200", show_default=True, help="GPU of the plans; it need not be here."
)
@click.option("--dtype", "dtypes", metavar="NAME", multiple=True, help="Precision in memory; repeatable; else float32.")
@click.option(
    "--layout",
    "layouts",
    type=click.Choice(["nchw", "nhwc"]),
    multiple=True,
    help="Layout of images; repeatable; else both.",
)
@quiet_option
@format_options
def backends_plans(
    *, suite: Path, gpu: str, dtypes: tuple[str, ...], layouts: tuple[str, ...], quiet: bool, form: str
) -> None:
    """Every execution plan that cuDNN offers for each brick; nothing is executed, and no GPU is needed.

    \b
    Example:
        dlbricks backends plans suite --gpu h200 --dtype float16
    """
    from ..analyzer.report.answers.generation import plans_answer
    from ..generator.planning.library_plans import Layout, library_plans

    chosen = tuple(Layout(layout) for layout in layouts) or tuple(Layout)
    with Reporter(quiet=quiet) as progress:
        report = library_plans(
            open_suite(suite), gpu=gpu, dtypes=dtypes or ("float32",), layouts=chosen, progress=progress
        )
    answer(plans_answer(report), form, complete=report.complete)


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL...]")
@click.option("--ceilings", is_flag=True, help="Measure and store the highest arithmetic rates and bandwidths.")
@click.option(
    "--calibrate",
    is_flag=True,
    help="Fit and store the error of estimates, from at least ten models that were measured with their bricks.",
)
@click.option("-g", "--granularity", type=click.IntRange(min=1), metavar="N", help="With --calibrate: else 1.")
@click.option("--graph", type=click.Choice(["source", "fused", "runtime"]), help="With --calibrate: else source.")
@click.option("--backend", metavar="NAME", help="With either: only this runtime; else all.")
@click.option("--threads", type=click.IntRange(min=0), metavar="N", help="With either: threads; for ceilings else 1.")
@click.option("--dtype", metavar="NAME", help="With either: precision; for ceilings else float32; 'any' for all.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="With either: device; for ceilings else cpu.")
@setting_option
@database_option
@quiet_option
@wait_option
@format_options
def system(*, ceilings: bool, calibrate: bool, database: str, quiet: bool, form: str, **options: Any) -> None:
    """Show this machine and its quietness, measure its ceilings, or calibrate its estimates.

    \b
    Example:
        dlbricks system --ceilings --threads 2
    """
    if ceilings and calibrate:
        raise UsageError("--ceilings and --calibrate answer different questions", remedy="leave one out")
    _refuse_unused(options, ceilings=ceilings, calibrate=calibrate)
    cut = {name: options.pop(name) for name in ("granularity", "graph")}
    models, threads = options.pop("models"), options.pop("threads")
    if calibrate:
        from ..analyzer.estimation.calibrating import calibrate as fit
        from ..analyzer.report.answers.resources import calibration_answer
        from ..db import Store
        from ..models import find_models

        del options["options"]
        given = {name: value for name, value in {**cut, **options, "threads": threads}.items() if value is not None}
        with Store.open(database) as store:
            fitted = fit(find_models(models), store=store, **given)
        answer(calibration_answer(fitted), form, complete=fitted.complete)
        return
    if not ceilings:
        from ..analyzer.report.answers.resources import system_answer

        answer(system_answer(), form)
        return
    from ..analyzer.report.roofs import ceilings_answer
    from ..db.merging import open_for_results
    from ..generator.measurement.ceilings import measure_ceilings

    options["threads"] = 1 if threads is None else threads
    options["device"] = options["device"] or "cpu"
    options["dtype"] = {None: "float32", "any": None}.get(options["dtype"], options["dtype"])
    with open_for_results(database) as store, Reporter(quiet=quiet) as progress:
        report = measure_ceilings(store=store, progress=progress, **options)
    answer(ceilings_answer(report), form, complete=report.complete)


def _refuse_unused(options: dict[str, Any], *, ceilings: bool, calibrate: bool) -> None:
    """Refuse options of ``system`` that the requested answer does not use."""
    only = {"models": "--calibrate", "graph": "--calibrate", "granularity": "--calibrate", "options": "--ceilings"}
    for name, value in options.items():
        flag = only.get(name, "--ceilings or --calibrate")
        used = (ceilings and "ceilings" in flag) or (calibrate and "calibrate" in flag)
        if value is not None and value not in ({}, ()) and not used:
            written = {"models": "MODEL", "options": "--option"}.get(name, f"--{name}")
            raise UsageError(f"{written} means nothing without {flag}", remedy=f"add {flag}")
    if calibrate and not options["models"]:
        raise UsageError("--calibrate needs the models that were measured", remedy="name ten models or more")
