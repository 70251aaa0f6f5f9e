"""Commands about models, bricks, runtimes and this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import UsageError
from . import options as shared
from .console import answer, most_rows, watched
from .models import (
    NATURAL,
    NEW_FILE,
    NEW_FOLDER,
    PLACE,
    POSITIVE,
    binding_options,
    flag,
    open_suite,
    option,
    take_models,
)  # fmt: skip


@click.group()
def models() -> None:
    """List or export the models of the built-in zoo."""


@models.command("list")
@flag("--all every", "A row per model: task, dimensions, requirements.")
@shared.format_options
def models_list(*, every: bool) -> None:
    """List the models of the zoo.

    \b
    Example:
        dlbricks models list
    """
    from ..analyzer.report.answers.resources import zoo_answer

    answer(zoo_answer(every=every))


@models.command("export")
@click.argument("models", nargs=-1, required=True, metavar="NAME...")
@binding_options
@option("-o --out", "Folder for the files.", NEW_FOLDER, required=True, metavar="DIR")
@flag("--force", "Replace other files of these names.")
@flag("--open opened", "Leave the lengths of a decoder open.")
@flag("--fuse-attention attention", "Write attention as one operator of ONNX Runtime or ONNX.")
@option(
    "--weights", "Store weights of products in few bits, by ONNX Runtime's quantizer.", click.Choice(["int4", "int8"])
)
@shared.format_options
def models_export(*, out: Path, **options: Any) -> None:
    """Write models of the zoo as self-contained ONNX files with seeded weights, for any other tool.

    \b
    Example:
        dlbricks models export squeezenet -o zoo
    """
    from ..analyzer.report.answers.generation import export_models

    result, complete = export_models(take_models(options), out, **options)
    answer(result, complete=complete)


@click.group()
def brick() -> None:
    """Show the bricks of a suite and their measurements."""


@brick.command("list")
@shared.suite_option
@shared.all_option
@shared.stored_options
def brick_list(*, suite: Path | None, database: str) -> None:
    """Bricks of a suite, or all that were measured.

    \b
    Example:
        dlbricks brick list --suite suite
    """
    from ..analyzer.report.answers.bricks import bricks_answer

    answer(bricks_answer(suite, database, most=most_rows()))


@brick.command("show")
@click.argument("key")
@shared.suite_option
@shared.stored_options
def brick_show(*, key: str, suite: Path | None, database: str) -> None:
    """One brick: its layers, its work, and every measurement of it. KEY may be its beginning.

    \b
    Example:
        dlbricks brick show 3f2a --suite suite
    """
    from ..analyzer.report.answers.bricks import brick_answer

    answer(brick_answer(key, suite, database))


@brick.command("export")
@click.argument("key")
@option("--suite", "Suite that holds the brick.", PLACE, required=True, metavar="SUITE")
@option("-o --out", "ONNX file to write; else <key>.onnx.", NEW_FILE)
@option("--seed", "Seed of the weights.", int, default=0)
@flag("--force", "Replace an existing file.")
@shared.format_options
def brick_export(*, key: str, suite: Path, out: Path | None, seed: int, force: bool) -> None:
    """Write a brick as self-contained ONNX with seeded weights, for other tools.

    \b
    Example:
        dlbricks brick export 3f2a --suite suite -o brick.onnx
    """
    from ..analyzer.report.answers.generation import export_brick

    answer(export_brick(key, suite, out, seed=seed, force=force))


@click.group()
def backends() -> None:
    """Show, install or check the runtimes that execute bricks."""


@backends.command("list")
@shared.format_options
def backends_list() -> None:
    """List the runtimes, their devices, and the reasons for missing ones.

    \b
    Example:
        dlbricks backends list
    """
    from ..analyzer.report.answers.resources import backends_answer

    answer(backends_answer())


@backends.command("install")
@click.argument("name")
@flag("--again", "Replace an existing environment.")
@option(
    "--python", "Interpreter to build it from; else this one, or one of the right version on the PATH.", metavar="PATH"
)
@shared.format_options
def backends_install(*, name: str, again: bool, python: str | None) -> None:
    """Install a runtime in a separate environment; the environment of dlbricks stays unchanged.

    \b
    Example:
        dlbricks backends install mxnet
    """
    from ..analyzer.report.answers.resources import installation_answer
    from ..generator.backends.environments import install_backend

    answer(installation_answer(install_backend(name, again=again, python=python)))


@backends.command("check")
@click.argument("name")
@shared.suite_argument
@option("--against", "Reference runtime.", default="onnxruntime")
@shared.device_options
@option(
    "--dtype",
    "Precision of the tested runtime; the reference uses the network's own.",
    default="float32",
)
@shared.quiet_option
@shared.format_options
def backends_check(*, name: str, suite: Path, **options: Any) -> None:
    """Compare the outputs of two runtimes, brick by brick.

    \b
    Example:
        dlbricks backends check torch suite
    """
    from ..analyzer.report.answers.resources import agreement_answer
    from ..generator.measurement.agreement import check_agreement

    with watched() as progress:
        report = check_agreement(open_suite(suite), name, progress=progress, **options)
    answer(agreement_answer(report), complete=report.complete)


@backends.command("plans")
@shared.suite_argument
@option("--gpu", "GPU of the plans; it need not be here.", metavar="NAME|FILE", default="h200")
@option("--dtype dtypes", "Precision in memory; repeatable; else float32.", multiple=True)
@option("--layout layouts", "Layout of images; repeatable; else both.", click.Choice(["nchw", "nhwc"]), multiple=True)
@shared.quiet_option
@shared.format_options
def backends_plans(*, suite: Path, gpu: str, dtypes: tuple[str, ...], layouts: tuple[str, ...]) -> None:
    """Every execution plan that cuDNN offers for each brick; nothing is executed, and no GPU is needed.

    \b
    Example:
        dlbricks backends plans suite --gpu h200 --dtype float16
    """
    from ..analyzer.report.answers.generation import plans_answer
    from ..generator.planning.library_plans import Layout, library_plans

    chosen = tuple(Layout(layout) for layout in layouts) or tuple(Layout)
    with watched() as progress:
        report = library_plans(
            open_suite(suite), gpu=gpu, dtypes=dtypes or ("float32",), layouts=chosen, progress=progress
        )
    answer(plans_answer(report), complete=report.complete)


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL...]")
@flag("--ceilings", "Measure and store the highest arithmetic rates and bandwidths.")
@flag(
    "--calibrate",
    "Fit and store the error of estimates, from at least ten models that were measured with their bricks.",
)
@option("-g --granularity", "With --calibrate: else 1.", POSITIVE)
@option("--graph", "With --calibrate: else source.", click.Choice(["source", "fused", "runtime"]))
@option("--backend", "With either: only this runtime; else all.")
@option("--threads", "With either: threads; for ceilings else 1.", NATURAL)
@option("--dtype", "With either: precision; for ceilings else float32; 'any' for all.")
@option("--device", "With either: device; for ceilings else cpu.", click.Choice(["cpu", "cuda"]))
@shared.setting_option
@shared.measuring_options
def system(*, ceilings: bool, calibrate: bool, database: str, **options: Any) -> None:
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
        arguments = {name: value for name, value in {**cut, **options, "threads": threads}.items() if value is not None}
        with Store.open(database) as store:
            fitted = fit(find_models(models), store=store, **arguments)
        answer(calibration_answer(fitted), complete=fitted.complete)
        return
    if not ceilings:
        from ..analyzer.report.answers.resources import system_answer

        answer(system_answer())
        return
    from ..analyzer.report.roofs import ceilings_answer
    from ..db.merging import open_for_results
    from ..generator.measurement.ceilings import measure_ceilings

    options["threads"] = 1 if threads is None else threads
    options["device"] = options["device"] or "cpu"
    options["dtype"] = {None: "float32", "any": None}.get(options["dtype"], options["dtype"])
    with open_for_results(database) as store, watched() as progress:
        report = measure_ceilings(store=store, progress=progress, **options)
    answer(ceilings_answer(report), complete=report.complete)


def _refuse_unused(options: dict[str, Any], *, ceilings: bool, calibrate: bool) -> None:
    """Refuse options of ``system`` that the requested answer does not use."""
    only = {"models": "--calibrate", "graph": "--calibrate", "granularity": "--calibrate", "options": "--ceilings"}
    for name, value in options.items():
        either = only.get(name, "--ceilings or --calibrate")
        used = (ceilings and "ceilings" in either) or (calibrate and "calibrate" in either)
        if value is not None and value not in ({}, ()) and not used:
            written = {"models": "MODEL", "options": "--option"}.get(name, f"--{name}")
            raise UsageError(f"{written} means nothing without {either}", remedy=f"add {either}")
    if calibrate and not options["models"]:
        raise UsageError("--calibrate needs the models that were measured", remedy="name ten models or more")
