"""The command that does everything: from models to the page."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..errors import BackendError, ModelError, UsageError, WorkerError
from . import options as shared
from .console import answer, is_quiet, judgements, most_rows, note, show_and_raise, standing, watched, with_limits
from .models import (
    ALONE,
    NATURAL,
    NEW_FILE,
    NEW_FOLDER,
    POSITIVE,
    contexts,
    custom_ops_option,
    dimension,
    flag,
    given_options,
    known_models,
    lengths,
    limits_option,
    model_arguments,
    open_stored,
    option,
    saving,
    seconds,
    setting,
    share,
    take_models,
    warn_of_nan,
    whole_models,
)  # fmt: skip

if TYPE_CHECKING:
    from ..analyzer.limits import Limit
    from ..analyzer.setups import Setup
    from ..constructor.result import Estimate
    from ..db import Store
    from ..models import ModelSource


@click.command()
@model_arguments
@option("-o --out", "The page.", NEW_FILE, default=Path("report.html"))
@shared.report_options
@shared.setting_option
@option("--suite", "Folder to keep the bricks in; else a temporary one.", NEW_FOLDER, metavar="SUITE")
@option("--trace", "Also write the constructed execution as a Chrome trace.", NEW_FILE)
@option("--annotated", "Also write the model with the cost of each node, for Netron; one model only.", NEW_FILE)
@flag("--no-prove", "Do not try remedies.")
@shared.interpolate_option
@option("--write", "Folder for improved models with a proven saving.", NEW_FOLDER, metavar="DIR")
@flag("--alone", "Also run each model in a process of its own: its memory on the page.")
@limits_option(
    "'latency>10ms', 'p95>15ms', 'memory>200MB', 'size>50MB'; repeatable. Percentiles and memory imply --alone.",
    *("latency", "p95", "memory", "size"),
)
@shared.measuring_options
def report(
    *,
    limits: tuple[Limit, ...],
    out: Path,
    stored: bool,
    trace: Path | None,
    annotated: Path | None,
    no_prove: bool,
    database: str,
    **options: Any,
) -> None:
    """Measure models, find and prove savings, and write one page with all of it.

    Stored measurements and proofs are not repeated. The default is ONNX Runtime with one thread. With --no-measure, the
    options of the runtime choose among stored results.

    \b
    Example:
        dlbricks report squeezenet -o report.html
    """
    from ..analyzer.predicting import first_answer
    from ..analyzer.report.answers.summary import report_answer, report_figures
    from ..analyzer.reporting import report as write_report

    sources = known_models(options)
    if annotated is not None and len(sources) > 1:
        raise UsageError(f"{len(sources)} models do not fit into one file", remedy="give one model with --annotated")

    def show_first(rows: Sequence[Estimate]) -> None:
        for line in first_answer(rows):
            note(line)

    options["alone"] |= any(limit.figure in ALONE for limit in limits)
    setup = take_setup(options, stored=stored)
    if setup.picked and not is_quiet():
        note(f"picked: {' '.join(setup.picked)}")
    with open_store(database, sources, stored=stored) as store, watched() as progress:
        result = write_report(
            sources, store=store, out=out, setup=setup, measure=not stored, prove=not no_prove, progress=progress,
            first=None if is_quiet() else show_first,
            **options,
        )  # fmt: skip
    if trace is not None:
        from ..analyzer.report.viewers import write_trace

        if not write_trace(result.sections, trace):
            note(f"{trace} is empty: a trace needs measurements of every layer")
    if annotated is not None:
        from ..analyzer.report.viewers import annotate

        annotate(result.sections, annotated)
    judged = judgements(limits, report_figures(result) if limits else {})
    written = with_limits(report_answer(result), judged)
    show_and_raise(written, result.interrupted)
    answer(written, complete=result.complete, **standing(judged))


def take_setup(options: dict[str, Any], *, stored: bool) -> Setup:
    """Remove the options of a setup from a command's options; open ones get defaults if the command measures."""
    from ..analyzer.setups import Setup, SetupFields, set_up

    how = {name: options.pop(name) for name in SetupFields.__annotations__}
    if stored:
        return Setup(**how)
    if how["system"] is not None or how["stack"] is not None:
        raise UsageError(
            "--system and --stack select stored results, but this command measures here", remedy="add --no-measure"
        )
    return set_up(**how)


def open_store(database: str, sources: Sequence[ModelSource], *, stored: bool) -> AbstractContextManager[Store]:
    """Open the database, read-only if the command only reads."""
    from ..db.merging import open_for_results

    return open_stored(database, sources) if stored else open_for_results(database)


def existing(database: str) -> AbstractContextManager[Store | None]:
    """Open a database for writing if it exists; one that the caller named is made."""
    from ..db import Store
    from ..db.place import DatabasePlace

    named = click.get_current_context().get_parameter_source("database") is not ParameterSource.DEFAULT
    there = bool(DatabasePlace.of(database).inspect())
    return Store.open(database, create=named) if there or named else nullcontext()


@click.command()
@model_arguments
@shared.target_option("10%", "Half of the interval to reach.")
@shared.report_options
@shared.setting_option
@shared.measuring_options
def predict(*, target: float, budget_s: float | None, stored: bool, database: str, **options: Any) -> None:
    """Predict the latency of models in seconds: stored bricks, predictions, and a few measurements.

    Bricks are measured until every interval is as narrow as the target, or the budget (10s unless given) is spent. With
    --no-measure, none is measured. Bricks that ship with the package replace missing ones.

    \b
    Example:
        dlbricks predict resnet50 --target 5%
    """
    from ..analyzer.predicting import predict as predict_models
    from ..analyzer.predicting import predictions_answer
    from ..db.place import DatabasePlace

    sources = take_models(options)
    setup = take_setup(options, stored=stored)
    # Without a database the bricks that ship with the package answer: --no-measure then needs no file and makes none.
    absent = stored and not DatabasePlace.of(database).inspect()
    opened = open_store("sqlite://" if absent else database, sources, stored=stored and not absent)
    with opened as store, watched() as progress:
        predictions = predict_models(
            sources, store=store, setup=setup, target=target, budget_s=budget_s, measure=not stored,
            progress=progress,
        )  # fmt: skip
    show_and_raise(predictions_answer(predictions), predictions.interrupted)
    answer(predictions_answer(predictions), complete=predictions.complete)


# The command about language models: how long an answer takes.


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL|PROMPT STEP")
@option(
    "--prompt prompts",
    "Tokens of the prompt: lengths, or doubled from N to M; else 512, of two models 32..512.",
    lengths,
)
@option("--new", "Tokens of the answer.", POSITIVE, default=128)
@option(
    "--at lengths", "Lengths to measure; else the shortest and longest needed one, and powers of two between.", lengths
)
@option("--context contexts", "Cached positions to tell the time of a token at; else 0,512,2048 of one file.", contexts)
@option("--batch", "Sequences at once; else 1, or what two models fix.", POSITIVE)
@option(
    "--input roles",
    "Of one file: what an input is, if name and use do not tell (tokens, positions, mask, cache, branch, last, total, "
    "logits); repeatable.",
    setting,
    multiple=True,
    metavar="NAME=ROLE",
)
@flag("--no-loop no_loop", "Do not run the loop of one file beside the bricks.")
@option("--prompt-dim prompt_dimension", "Dimension of PROMPT that counts its tokens; else found.")
@option("--past-dim past_dimension", "Dimension of STEP that counts the cache; else found.")
@option(
    "--dim dims",
    "Value of another dimension, such as an encoder's length; repeatable.",
    dimension,
    multiple=True,
    metavar="NAME=N",
)
@given_options
@custom_ops_option
@shared.report_options
@shared.setting_option
@option("--suite", "Folder to keep the bricks in; else a temporary one.", NEW_FOLDER, metavar="SUITE")
@limits_option("'tokens/s<20', 'first-token>500ms', 'token>50ms'; repeatable.", "tokens/s", "first-token", "token")
@shared.measuring_options
def tokens(
    *,
    limits: tuple[Limit, ...],
    models: tuple[str, ...],
    lengths: tuple[int, ...] | None,
    dims: tuple[tuple[str, tuple[int, ...]], ...],
    data: tuple[Path, ...],
    values: tuple[tuple[str, str], ...],
    prompts: tuple[int, ...] | None,
    roles: tuple[tuple[str, str], ...],
    no_loop: bool,
    stored: bool,
    database: str,
    **options: Any,
) -> None:
    """Estimate the speed of a language model: time to first token, time per token, tokens per second.

    MODEL is a decoder in one file. Or PROMPT is the model that fills a cache of keys and values, STEP the one that
    extends it by a token. A common beginning of two zoo names also works. Bricks are measured at a few lengths;
    latencies between them are interpolated, and marked. The loop of a decoder in one file takes turns with them.

    \b
    Example:
        dlbricks tokens decoder.onnx --prompt 512 --new 128
    """
    from ..analyzer.decoding.lengths import decoder_models
    from ..analyzer.decoding.token_answer import token_figures, tokens_answer
    from ..analyzer.decoding.tokens import tokens as time_tokens
    from ..models.user_inputs import UserInputs

    if several := next((name for name, sizes in dims if len(sizes) > 1), None):
        raise click.BadParameter(
            f"{several} has one value here; --prompt and --new vary the lengths", param_hint="--dim"
        )
    fixed = {name: size for name, (size,) in dims}
    given = UserInputs(data, values)
    warn_of_nan(given)
    prompt, step = decoder_models(models, fixed, given)
    lengths_of_prompts = prompts or ((512,) if step is None else (32, 64, 128, 256, 512))
    sources = [prompt] if step is None else [prompt, step]
    with open_store(database, sources, stored=stored) as store, watched() as progress:
        setup = take_setup(options, stored=stored)
        speed = time_tokens(
            prompt, step, store=store, prompts=lengths_of_prompts, lengths=lengths or (), roles=dict(roles),
            setup=setup, loop=not no_loop, measure=not stored, progress=progress, **options,
        )  # fmt: skip
    judged = judgements(limits, token_figures(speed) if limits else {})
    written = with_limits(tokens_answer(speed), judged)
    show_and_raise(written, speed.interrupted)
    answer(written, complete=speed.complete, **standing(judged))


# The command that finds what models miss, and proves it where that is asked for.


@click.command()
@model_arguments
@shared.measured_options
@option("--minimum-share", "Smallest share of the model that a finding must save.", share, default="1%")
@flag("--prove", "Try every remedy: the original and the changed model alternate.")
@option("--write", "Folder for improved models with a proven saving.", NEW_FOLDER, metavar="DIR")
@option("--visits", "Visits of each side in a proof.", click.IntRange(min=6), default=36, metavar="N")
@option("--processes", "Workers of a proof.", POSITIVE, default=4)
@option("--fail-on", "End with exit code 4 if a finding saves more (proven, else predicted): 'saving>10%'.", saving)
@shared.all_option
@shared.measuring_options
def analyze(*, fail_on: float | None, database: str, **options: Any) -> None:
    """Find missed optimisations of models, with savings, remedies and proofs.

    \b
    Example:
        dlbricks analyze squeezenet --prove --fail-on 'saving>10%'
    """
    from ..analyzer.findings.analyze import analyze as analyze_models
    from ..analyzer.report.answers.findings import analyze_answer

    sources = take_models(options)
    with open_store(database, sources, stored=not options["prove"]) as store, watched() as progress:
        report = analyze_models(sources, store=store, progress=progress, **options)
    crossed = fail_on is not None and any(row.largest_share > fail_on for row in report.rows)
    answer(analyze_answer(report, most=most_rows()), complete=report.complete, crossed=crossed)


@click.command()
@model_arguments
@option("-o --out", "The improved file; without it nothing is written.", NEW_FILE)
@option("--budget budget_s", "Time for search and proof.", seconds, default="30s")
@option("--threads", "Threads; 0: one per physical core.", NATURAL, default=1)
@flag(
    "--noise-ok",
    "Accept changes of the last digits beyond the model's own noise, up to 0.001 of an output's largest value.",
)
@shared.measuring_options
def improve(*, out: Path | None, database: str, **options: Any) -> None:
    """Write a faster file that computes the same for every input: each rewrite is proven, then timed.

    A database that exists, or that --db names, keeps the result for 'analyze' and 'report'.

    \b
    Example:
        dlbricks improve model.onnx -o faster.onnx
    """
    from ..analyzer.findings.improve import improve as improve_model
    from ..analyzer.report.answers.findings import improve_answer

    (source,) = whole_models(options, 1, "improve one at a time")
    try:
        with existing(database) as store, watched() as progress:
            improvement = improve_model(source, out, store=store, progress=progress, **options)
    except (BackendError, ModelError, WorkerError) as error:
        if assumed := source.assumed():
            raise ModelError(f"{source.name} does not run with {assumed} ({error.message})") from error
        raise
    show_and_raise(improve_answer(improvement), improvement.interrupted)
    answer(improve_answer(improvement), complete=improvement.complete)
