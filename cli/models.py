"""How commands take models: which ones, and what of them is bound, chosen and loaded."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .spelling import batches, dimension

if TYPE_CHECKING:
    from ..models import ModelSource

__all__ = ["PLACE", "Command", "binding_options", "custom_ops_option", "model_arguments", "stacked", "take_models"]

PLACE = click.Path(path_type=Path)

Command = TypeVar("Command", bound=Callable[..., Any])


def stacked(*decorators: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Several click decorators as one; help lists them in this order."""

    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


binding_options = stacked(
    click.option(
        "--batch", type=batches, metavar="N[,N...]", help="Batch sizes; several, or N..M doubled, give one model each."
    ),
    click.option(
        "--dim",
        "dims",
        type=dimension,
        multiple=True,
        metavar="NAME=N[,N...]",
        help="Values of a dynamic dimension; several, or N..M doubled, give one model each; repeatable.",
    ),
    click.option(
        "--branch",
        "branches",
        multiple=True,
        metavar="[NODE=]then|else",
        help="Branch of an If whose condition is not constant; 'observed': as one execution takes it; repeatable.",
    ),
    click.option(
        "--trip",
        "trips",
        multiple=True,
        metavar="[NODE=]N",
        help="Iterations of a Loop whose number is not constant; 'observed': as one execution does; repeatable.",
    ),
)


def _register(_context: click.Context, _parameter: click.Parameter, libraries: tuple[Path, ...]) -> None:
    if libraries:
        from ..generator.backends.custom_ops import register_custom_ops

        register_custom_ops(*libraries)


custom_ops_option = click.option(
    "--custom-ops",
    type=PLACE,
    multiple=True,
    metavar="LIB",
    expose_value=False,
    is_eager=True,
    callback=_register,
    help="Shared library of custom operators for ONNX Runtime: its code runs in workers, as you; repeatable.",
)
"""Read before other options: what is measured with libraries is measured on a stack of theirs."""

model_arguments = stacked(
    click.argument("models", nargs=-1, required=True, metavar="MODEL..."), binding_options, custom_ops_option
)


def take_models(options: dict[str, Any]) -> list[ModelSource]:
    """Take what ``model_arguments`` added out of a command's options, and find the models."""
    from ..models import find_models
    from ..models.control.choices import read_choices

    control, observed = read_choices(options.pop("branches"), options.pop("trips"))
    models, batch = options.pop("models"), options.pop("batch") or ()
    several: dict[str, tuple[int, ...]] = dict(options.pop("dims"))
    found: dict[str, ModelSource] = {}
    for sizes in itertools.product(*several.values()):
        dims = dict(zip(several, sizes, strict=True))
        ends = "".join(f"@{name}={size}" for name, size in dims.items() if len(several[name]) > 1)
        for source in find_models(models, batches=batch, dims=dims, control=control):
            name = source.name if source.problem else f"{source.name}{ends}"
            found.setdefault(name, dataclasses.replace(source, name=name))
    if observed:
        from ..generator.decomposition.observation import observe

        return observe(list(found.values()))
    return list(found.values())
