"""The command about language models: how long an answer takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .console import Reporter, answer, drawn
from .models import PLACE, custom_ops_option
from .options import database_option, format_options, quiet_option, report_options, setting_option
from .reporting import open_store, picked_setup
from .spelling import dimension, lengths

__all__ = ["tokens"]


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="PROMPT [STEP]")
@click.option(
    "--prompt",
    "prompts",
    type=lengths,
    default="32..512",
    show_default=True,
    metavar="N[,N...]|N..M",
    help="Tokens of the prompt: lengths, or doubled from N to M.",
)
@click.option(
    "--new", type=click.IntRange(min=1), default=128, show_default=True, metavar="N", help="Tokens of the answer."
)
@click.option(
    "--at",
    "lengths",
    type=lengths,
    default=None,
    metavar="N[,N...]|N..M",
    help="Lengths to measure at; else the shortest and longest that is needed, and powers of two between.",
)
@click.option(
    "--prompt-dim", "prompt_dimension", metavar="NAME", help="Dimension of PROMPT that counts its tokens; else found."
)
@click.option(
    "--past-dim", "past_dimension", metavar="NAME", help="Dimension of STEP that counts the cache; else found."
)
@click.option(
    "--dim",
    "dims",
    type=dimension,
    multiple=True,
    metavar="NAME=N",
    help="Value of another dimension, such as the length of what an encoder reads; repeatable.",
)
@custom_ops_option
@report_options
@setting_option
@click.option("--suite", type=PLACE, metavar="SUITE", help="Folder to keep the bricks in; else a temporary one.")
@click.option("--plot", type=PLACE, metavar="FILE|DIR", help="Also draw latency and throughput against length.")
@database_option
@quiet_option
@format_options
def tokens(
    *,
    models: tuple[str, ...],
    prompts: tuple[int, ...],
    new: int,
    lengths: tuple[int, ...] | None,
    prompt_dimension: str | None,
    past_dimension: str | None,
    dims: tuple[tuple[str, tuple[int, ...]], ...],
    budget_s: float | None,
    stored: bool,
    suite: Path | None,
    plot: Path | None,
    database: str,
    quiet: bool,
    form: str,
    **options: Any,
) -> None:
    """How fast a language model answers: time to first token, time per token, tokens per second.

    PROMPT is the model that fills a cache of keys and values, STEP the one that extends it by a token; or the name that
    both begin with in the zoo. Bricks are measured at a few lengths; what lies between is interpolated, and marked.

    \b
    Example:
        dlbricks tokens distilgpt2 --prompt 32..512 --new 128
    """
    from ..analyzer.tokens.answer import draw_tokens, tokens_answer
    from ..analyzer.tokens.lengths import pair
    from ..analyzer.tokens.tokens import tokens as time_tokens

    if several := next((name for name, sizes in dims if len(sizes) > 1), None):
        raise click.BadParameter(
            f"{several} has one value here; --prompt and --new vary the lengths", param_hint="--dim"
        )
    prompt, step = pair(models, {name: size for name, (size,) in dims})
    with open_store(database, stored=stored) as store, Reporter(quiet=quiet) as progress:
        found = time_tokens(
            prompt, step, store=store, prompts=prompts, new=new, lengths=lengths or (),
            prompt_dimension=prompt_dimension, past_dimension=past_dimension,
            setup=picked_setup(stored=stored, **options), measure=not stored, budget_s=budget_s, suite=suite,
            progress=progress,
        )  # fmt: skip
    if plot is not None:
        drawn(draw_tokens(found, plot))
    answer(tokens_answer(found), form, complete=found.complete)
