"""The options that several commands share, each written once, so that they mean the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

__all__ = [
    "BATCHES",
    "DIMENSION",
    "SETTING",
    "TIME",
    "database_option",
    "format_options",
    "measured_options",
    "model_arguments",
    "plot_option",
    "split_options",
    "stack_options",
]

Command = TypeVar("Command", bound=Callable[..., Any])


class _Time(click.ParamType):
    """Seconds, or a number with the unit s, m or h."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        units = {"s": 1.0, "m": 60.0, "h": 3600.0}
        number, unit = (value[:-1], value[-1]) if value[-1:] in units else (value, "s")
        try:
            seconds = float(number) * units[unit]
        except ValueError:
            self.fail(f"{value!r} is no time; write 90, 90s, 5m or 1h", param, ctx)
        if not 0 < seconds < float("inf"):
            self.fail(f"{value!r} is not a positive time", param, ctx)
        return seconds


class _Batches(click.ParamType):
    """Batch sizes with commas between them."""

    name = "n[,n...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            batches = tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of batch sizes; write 1 or 1,4,8", param, ctx)
        if min(batches) < 1:
            self.fail(f"{value!r}: a batch is at least 1", param, ctx)
        return tuple(dict.fromkeys(batches))


class _Pair(click.ParamType):
    """NAME=VALUE."""

    def __init__(self, name: str, *, number: bool) -> None:
        self.name = name
        self._number = number

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        if isinstance(value, tuple):
            return value
        name, equals, text = value.rpartition("=") if self._number else value.partition("=")
        if not (name and equals and text):
            self.fail(f"{value!r} is not {self.name}", param, ctx)
        if not self._number:
            return name, text
        if not text.isdecimal() or int(text) < 1:
            self.fail(f"{value!r}: {text!r} is not a positive number", param, ctx)
        return name, int(text)


TIME = _Time()
BATCHES = _Batches()
DIMENSION = _Pair("NAME=N", number=True)
SETTING = _Pair("NAME=VALUE", number=False)


def _stacked(*decorators: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Several click decorators as one; help lists them in this order."""

    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


format_options = _stacked(
    click.option(
        "--format",
        "form",
        type=click.Choice(["table", "json", "csv"]),
        default="table",
        show_default=True,
        help="How results are written to stdout.",
    ),
    click.option("--json", "form", flag_value="json", help="Short for --format json."),
)

database_option = click.option(
    "--db",
    "database",
    envvar="DLBRICKS_DB",
    default="dlbricks.db",
    show_default="$DLBRICKS_DB, else dlbricks.db",
    metavar="FILE|URL",
    help="Database of measurements: an SQLite file or any SQLAlchemy URL.",
)

model_arguments = _stacked(
    click.argument("models", nargs=-1, required=True, metavar="MODEL..."),
    click.option(
        "--batch", type=BATCHES, default=(), help="Batch sizes; several give one model each.", metavar="N[,N...]"
    ),
    click.option(
        "--dim", "dims", type=DIMENSION, multiple=True, metavar="NAME=N", help="Value of a dynamic dimension."
    ),
)

split_options = _stacked(
    click.option(
        "-g",
        "--granularity",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        metavar="N",
        help="Most layers per sequence.",
    ),
    click.option(
        "--graph",
        type=click.Choice(["source"]),
        default="source",
        show_default=True,
        help="Which graph is decomposed: the model's own.",
    ),
    click.option("--overlap", is_flag=True, help="Sequences may overlap (stride 1)."),
    click.option("--connected", is_flag=True, help="Sequences may be connected windows, not paths only."),
)

stack_options = _stacked(
    click.option("--backend", metavar="NAME", default="onnxruntime", show_default=True, help="Runtime that executes."),
    click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True),
    click.option(
        "--threads",
        type=click.IntRange(min=0),
        default=1,
        show_default=True,
        metavar="N",
        help="Threads of the runtime; 0 means one per physical core.",
    ),
    click.option(
        "--cache",
        type=click.Choice(["hot", "cold"]),
        default="hot",
        show_default=True,
        help="State of the processor's caches before each execution.",
    ),
    click.option(
        "--option",
        "options",
        type=SETTING,
        multiple=True,
        metavar="NAME=VALUE",
        help="Option of the runtime, part of what is measured ('dlbricks backends list' names them).",
    ),
)

measured_options = _stacked(
    click.option("--backend", metavar="NAME", help="Only measurements of this runtime."),
    click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Only measurements on this device."),
    click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Only measurements with N threads."),
    click.option("--cache", type=click.Choice(["hot", "cold"]), help="Only measurements in this cache state."),
    click.option("--dtype", metavar="NAME", help="Only measurements in this precision, for example float32."),
    click.option("--system", metavar="ID", help="Only measurements on this system (a key or its beginning)."),
)

plot_option = click.option(
    "--plot",
    "plot",
    type=click.Path(path_type=Path),
    metavar="FILE|DIR",
    help="Also draw: one file (.png or .svg), or a folder for every plot.",
)
