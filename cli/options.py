"""The options that several commands share, each written once, so that they mean the same everywhere."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from ..errors import UsageError
from .spelling import batches, dimension, seconds, setting, share, threads

if TYPE_CHECKING:
    from ..models import ModelSource

__all__ = [
    "PLACE",
    "all_option",
    "binding_options",
    "check_runtime_options",
    "comparison_options",
    "database_option",
    "device_options",
    "estimated_options",
    "format_options",
    "kernel_options",
    "measured_options",
    "model_arguments",
    "pace_options",
    "plot_option",
    "quiet_option",
    "report_options",
    "runtime_options",
    "setting_option",
    "split_options",
    "stack_options",
    "suite_argument",
    "suite_option",
    "take_models",
]

PLACE = click.Path(path_type=Path)

Command = TypeVar("Command", bound=Callable[..., Any])


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
        type=click.Choice(["table", "json", "csv", "markdown"]),
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

binding_options = _stacked(
    click.option("--batch", type=batches, metavar="N[,N...]", help="Batch sizes; several give one model each."),
    click.option(
        "--dim",
        "dims",
        type=dimension,
        multiple=True,
        metavar="NAME=N[,N...]",
        help="Values of a dynamic dimension; several give one model each; repeatable.",
    ),
)

model_arguments = _stacked(click.argument("models", nargs=-1, required=True, metavar="MODEL..."), binding_options)


def take_models(options: dict[str, Any]) -> list[ModelSource]:
    """Take what ``model_arguments`` added out of a command's options, and find the models."""
    from ..models import find_models

    models, batch = options.pop("models"), options.pop("batch") or ()
    several: dict[str, tuple[int, ...]] = dict(options.pop("dims"))
    found: dict[str, ModelSource] = {}
    for sizes in itertools.product(*several.values()):
        dims = dict(zip(several, sizes, strict=True))
        ends = "".join(f"@{name}={size}" for name, size in dims.items() if len(several[name]) > 1)
        for source in find_models(models, batches=batch, dims=dims):
            name = source.name if source.problem else f"{source.name}{ends}"
            found.setdefault(name, dataclasses.replace(source, name=name))
    return list(found.values())


_granularity = click.option(
    "-g",
    "--granularity",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Most layers per sequence.",
)

_connected = click.option("--connected", is_flag=True, help="Sequences may be connected windows, not paths only.")

_graph = click.option(
    "--graph",
    type=click.Choice(["source", "fused", "runtime"]),
    default="source",
    show_default=True,
    help="Which graph is decomposed: the model's own, the same along the runtime's fusions, or what it executes.",
)

split_options = _stacked(
    _granularity,
    _graph,
    click.option("--overlap", is_flag=True, help="Sequences may overlap (stride 1)."),
    _connected,
)

_backend_options = (
    click.option("--backend", metavar="NAME", default="onnxruntime", show_default=True, help="Runtime that executes."),
    click.option(
        "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Device of the runtime."
    ),
    click.option(
        "--threads",
        type=click.IntRange(min=0),
        default=1,
        show_default=True,
        metavar="N",
        help="Threads of the runtime; 0 means one per physical core.",
    ),
)

setting_option = click.option(
    "--option",
    "options",
    type=setting,
    multiple=True,
    metavar="NAME=VALUE",
    callback=lambda _context, _parameter, pairs: dict(pairs),
    help="Option of the runtime, part of what is measured ('dlbricks backends list' names them); repeatable.",
)

device_options = _stacked(_backend_options[1], setting_option)
"""Where and how a runtime that is named otherwise executes."""

suite_argument = click.argument("suite", type=PLACE, metavar="SUITE")

runtime_options = _stacked(*_backend_options, setting_option)
"""The runtime that fusions and executed graphs are learnt from; ``check_runtime_options`` refuses them elsewhere."""

stack_options = _stacked(
    *_backend_options[:2],
    click.option(
        "--threads",
        type=threads,
        default="1",
        show_default=True,
        metavar="N[,N...]",
        help="Threads of the runtime, of several one after the other; 0 means one per physical core.",
    ),
    click.option(
        "--dtype",
        metavar="NAME",
        default="float32",
        show_default=True,
        help="Precision to compute in; float32: that of each network itself.",
    ),
    click.option(
        "--cache",
        type=click.Choice(["model", "hot", "cold"]),
        default="model",
        show_default=True,
        help="State of the processor's caches before each execution.",
    ),
    setting_option,
)


def check_runtime_options(graph: str) -> None:
    """Refuse options of a runtime where the graph is the model's own, which no runtime has a part in.

    Raises:
        UsageError: One of ``runtime_options`` was given.
    """
    context = click.get_current_context()
    for parameter, option in (("backend", "--backend"), ("device", "--device"), ("threads", "--threads")):
        if graph == "source" and context.get_parameter_source(parameter) is not ParameterSource.DEFAULT:
            raise UsageError(f"{option} means nothing for the model's own graph", remedy="add --graph fused or runtime")
    if graph == "source" and context.params.get("options"):
        raise UsageError("--option means nothing for the model's own graph", remedy="add --graph fused or runtime")


_measured_cache = click.option(
    "--cache", type=click.Choice(["model", "hot", "cold"]), help="Only measurements in this cache state."
)

_measured_threads = click.option(
    "--threads", type=click.IntRange(min=0), metavar="N", help="Only measurements with N threads."
)

_measured = (
    click.option("--backend", metavar="NAME", help="Only measurements of this runtime."),
    click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Only measurements on this device."),
    _measured_threads,
    _measured_cache,
    click.option("--dtype", metavar="NAME", help="Only measurements in this precision, for example float32."),
    click.option("--system", metavar="ID", help="Only measurements on this system (a key or its beginning)."),
    click.option("--stack", metavar="ID", help="Only measurements on this stack (a key or its beginning)."),
)

_each_threads = click.option(
    "--threads",
    type=threads,
    metavar="N[,N...]",
    help="Only measurements with N threads; several give one estimate each.",
)

measured_options = _stacked(*_measured)

report_options = _stacked(
    click.option("--backend", metavar="NAME", help="Runtime that executes; else onnxruntime."),
    click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Device of the runtime; else cpu."),
    click.option(
        "--threads",
        type=click.IntRange(min=0),
        metavar="N",
        help="Threads of the runtime; else 1; 0 means one per physical core.",
    ),
    click.option(
        "--cache",
        type=click.Choice(["model", "hot", "cold"]),
        help="State of the processor's caches before each execution; else model, or hot where it cannot be that.",
    ),
    click.option("--dtype", metavar="NAME", help="Precision to compute in; else that of each network itself."),
    *(
        click.option(
            f"--{name}", metavar="ID", help=f"With --no-measure: only of this {name} (a key or its beginning)."
        )
        for name in ("system", "stack")
    ),
)
"""What is measured, and with --no-measure what of that which is stored is used: whatever it is where not given."""

estimated_options = _stacked(*(_each_threads if option is _measured_threads else option for option in _measured))

kernel_options = _stacked(
    _granularity, _graph, _connected, *(option for option in _measured if option is not _measured_cache)
)
"""What chooses kernels: they run whatever the caches hold, and layers in two sequences would count twice."""

comparison_options = _stacked(
    _granularity,
    _connected,
    *_measured,
    click.option(
        "--minimum-effect",
        type=share,
        default="3%",
        show_default=True,
        metavar="SHARE",
        help="Difference that matters, for example 3% or 0.03; anything less is SAME.",
    ),
)


def _without_visits(context: click.Context, _parameter: click.Parameter, budget_s: float | None) -> float | None:
    """Refuse a number of visits beside a time that decides it; ``--visits`` is read first."""
    if budget_s is not None and context.get_parameter_source("visits") is not ParameterSource.DEFAULT:
        raise click.UsageError("--budget takes as many visits as fit into it; leave --visits out", context)
    return budget_s


pace_options = _stacked(
    click.option(
        "--visits",
        type=click.IntRange(min=1),
        default=24,
        show_default=True,
        metavar="N",
        is_eager=True,
        help="How often each brick and model is visited; fewer than 10 are no measurement to rely on.",
    ),
    click.option(
        "--budget",
        "budget_s",
        type=seconds,
        metavar="TIME",
        callback=_without_visits,
        help="Total time instead, for example 90s, 5m or 1h: as many visits as fit.",
    ),
    click.option(
        "--processes",
        type=click.IntRange(min=1),
        default=2,
        show_default=True,
        metavar="N",
        help="Worker processes that share the visits, one after the other.",
    ),
    click.option(
        "--sessions",
        type=click.IntRange(min=1),
        default=2,
        show_default=True,
        metavar="N",
        help="Sessions of each process; each visits in orders of its own.",
    ),
)

quiet_option = click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")

all_option = click.option("--all", "every", is_flag=True, help="Every row of the table, not only the 15 of most time.")

suite_option = click.option("--suite", type=PLACE, metavar="SUITE", help="Suite that holds the bricks.")

plot_option = click.option(
    "--plot",
    "plot",
    type=PLACE,
    metavar="FILE|DIR",
    help="Also draw: one file (.png or .svg), or a folder for every plot.",
)
