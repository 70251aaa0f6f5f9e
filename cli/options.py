"""The options that several commands share, each written once, so that they mean the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from ..errors import UsageError
from ..generator.machine.priority import PRIORITIES
from .models import NEW_FOLDER, PLACE, Command, moment, seconds, setting, share, stacked, threads

_CUSTOM_OPS = "custom_ops"
"""The option of a stack that ``--custom-ops`` stands for."""

format_options = stacked(
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

_granularity = click.option(
    "-g",
    "--granularity",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Largest number of layers per sequence.",
)

_connected = click.option("--connected", is_flag=True, help="Sequences may be connected windows, not paths only.")

_GRAPHS = click.Choice(["source", "fused", "runtime"])

_graph = click.option(
    "--graph",
    type=_GRAPHS,
    default="source",
    show_default=True,
    help="Which graph is decomposed: the model's own, also along the runtime's fusions (fused), or the executed one.",
)

_overlap = click.option("--overlap", is_flag=True, help="Sequences may overlap (stride 1).")

split_options = stacked(_granularity, _graph, _overlap, _connected)

estimated_split_options = stacked(
    _granularity,
    click.option(
        "--graph", type=_GRAPHS, help="Which graph is decomposed, as for 'generate'; else the graph with stored bricks."
    ),
    _overlap,
    _connected,
)

_SHARED: dict[str, dict[str, Any]] = {
    "backend": {"metavar": "NAME"},
    "device": {"type": click.Choice(["cpu", "cuda"])},
    "threads": {"type": click.IntRange(min=0), "metavar": "N"},
    "cache": {"type": click.Choice(["model", "hot", "cold"])},
    "dtype": {"metavar": "NAME"},
    "system": {"metavar": "ID"},
    "stack": {"metavar": "ID"},
}
"""Options that are part of what is measured: the same values wherever they apply."""


def _option(name: str, text: str, **more: Any) -> Callable[[Command], Command]:
    if "default" in more:
        more["show_default"] = True
    return click.option(f"--{name}", help=text, **{**_SHARED[name], **more})


_backend_options = (
    _option("backend", "Runtime that executes.", default="onnxruntime"),
    _option("device", "Device of the runtime.", default="cpu"),
    _option("threads", "Threads of the runtime; 0 means one per physical core.", default=1),
)


def _settings(
    _context: click.Context, _parameter: click.Parameter, pairs: tuple[tuple[str, str], ...]
) -> dict[str, str]:
    from ..generator.backends.custom_ops import asked

    return dict(pairs) | asked()


setting_option = click.option(
    "--option",
    "options",
    type=setting,
    multiple=True,
    metavar="NAME=VALUE",
    callback=_settings,
    help="Option of the runtime ('dlbricks backends list' names them); repeatable.",
)

device_options = stacked(_backend_options[1], setting_option)
"""Where and how a runtime that is named otherwise executes."""

suite_argument = click.argument("suite", type=PLACE, metavar="SUITE")

runtime_options = stacked(*_backend_options, setting_option)
"""The runtime that fusions and executed graphs are learnt from; ``check_runtime_options`` refuses them elsewhere."""

stack_options = stacked(
    *_backend_options[:2],
    _option(
        "threads",
        "Threads of the runtime, of several one after the other; 0 means one per physical core.",
        type=threads,
        default="1",
        metavar="N[,N...]",
    ),
    _option("dtype", "Precision to compute in; float32: the network's own.", default="float32"),
    _option("cache", "State of the processor's caches before each execution.", default="model"),
    setting_option,
)


def check_runtime_options(graph: str) -> None:
    """Refuse options of a runtime with the model's own graph, which does not depend on one.

    Raises:
        UsageError: One of ``runtime_options`` was given.
    """
    context = click.get_current_context()
    for parameter, option in (("backend", "--backend"), ("device", "--device"), ("threads", "--threads")):
        if graph == "source" and context.get_parameter_source(parameter) is not ParameterSource.DEFAULT:
            raise UsageError(f"{option} means nothing for the model's own graph", remedy="add --graph fused or runtime")
    if graph == "source" and set(context.params.get("options") or ()) - {_CUSTOM_OPS}:
        raise UsageError("--option means nothing for the model's own graph", remedy="add --graph fused or runtime")


_MEASURED = {
    "backend": "Only measurements of this runtime.",
    "device": "Only measurements on this device.",
    "threads": "Only measurements with N threads.",
    "cache": "Only measurements in this cache state.",
    "dtype": "Only measurements in this precision, for example float32.",
    "system": "Only measurements on this system (a key or its beginning).",
    "stack": "Only measurements on this stack (a key or its beginning).",
}

_measured = {name: _option(name, text) for name, text in _MEASURED.items()}

measured_options = stacked(*_measured.values())

_each_threads = _option(
    "threads", "Only measurements with N threads; several give one estimate each.", type=threads, metavar="N[,N...]"
)

estimated_options = stacked(*(_measured | {"threads": _each_threads}).values())

_REPORTED = {
    "backend": "Runtime that executes; else onnxruntime.",
    "device": "Device of the runtime; else cpu.",
    "threads": "Threads of the runtime; else 1; 0 means one per physical core.",
    "cache": "State of the processor's caches before each execution; else model, or hot if model is impossible.",
    "dtype": "Precision to compute in; else the network's own.",
    "system": "With --no-measure: only of this system (a key or its beginning).",
    "stack": "With --no-measure: only of this stack (a key or its beginning).",
}

report_options = stacked(
    click.option(
        "--budget",
        "budget_s",
        type=seconds,
        metavar="TIME",
        help="Total time, for example 90s, 5m or 1h: as many visits as fit.",
    ),
    click.option("--no-measure", "stored", is_flag=True, help="Use only stored measurements, of any system and stack."),
    click.option(
        "--graph",
        type=_GRAPHS,
        help="Which graph is cut into bricks; else the executed or fused one, if it is known.",
    ),
    *(_option(name, text) for name, text in _REPORTED.items()),
)
"""What is measured, and with --no-measure what of that which is stored is used: whatever it is where not given."""

kernel_options = stacked(
    _granularity, _graph, _connected, *(option for name, option in _measured.items() if name != "cache")
)
"""What chooses kernels: they run whatever the caches hold, and layers in two sequences would count twice."""


def _minimum_effect(default: str, text: str) -> Callable[[Command], Command]:
    return click.option("--minimum-effect", type=share, default=default, show_default=True, metavar="SHARE", help=text)


comparison_options = stacked(
    _granularity,
    _connected,
    *_measured.values(),
    _minimum_effect("3%", "Difference that matters, for example 3% or 0.03; anything less is SAME."),
)

history_options = stacked(
    _granularity,
    _connected,
    *_measured.values(),
    _minimum_effect("1%", "Change that matters, for example 3% or 0.03; smaller ones are ignored."),
)


def _without_visits(context: click.Context, _parameter: click.Parameter, budget_s: float | None) -> float | None:
    """Refuse ``--visits`` together with ``--budget``; ``--visits`` is read first."""
    if budget_s is not None and context.get_parameter_source("visits") is not ParameterSource.DEFAULT:
        raise click.UsageError("--budget takes as many visits as fit into it; leave --visits out", context)
    return budget_s


def target_option(default: str | None, text: str) -> Callable[[Command], Command]:
    """Return ``--target`` with its own default."""
    return click.option("--target", type=share, default=default, show_default=True, metavar="SHARE", help=text)


pace_options = stacked(
    click.option(
        "--visits",
        type=click.IntRange(min=1),
        default=24,
        show_default=True,
        metavar="N",
        is_eager=True,
        help="Number of visits of each brick and model (at least 10 for reliable results).",
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
        help="Sessions of each process; each shuffles the order.",
    ),
    click.option(
        "--priority",
        type=click.Choice(PRIORITIES),
        default="high",
        show_default=True,
        help="Priority of workers while they time: as high as allowed, real time, or unchanged.",
    ),
)

since_option = click.option(
    "--since",
    type=moment,
    metavar="TIME",
    help="Repeat only measurements from before: ISO 8601 or an age, for example 2026-11-23T08:00Z or 2h.",
)

node_options = stacked(
    click.option(
        "--node",
        metavar="NAME",
        show_default="$DLBRICKS_NODE, else none",
        help="Name of this machine, stored with the run; distinguishes equal machines in one database.",
    ),
    click.option("--campaign", default="", metavar="NAME", help="Name of the campaign, stored with the run."),
)

quiet_option = click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")


def _patient(context: click.Context, _parameter: click.Parameter, wait_s: float | None) -> None:
    """Wait so long for another measuring process, and say that the command waits."""
    from ..generator.machine.lock import patience
    from .console import note

    context.with_resource(patience(wait_s, note))


wait_option = click.option(
    "--wait",
    type=seconds,
    metavar="TIME",
    expose_value=False,
    callback=_patient,
    help="Longest wait for another measuring dlbricks process; else $DLBRICKS_LOCK_WAIT.",
)
"""Of every command that measures."""

all_option = click.option(
    "--all", "every", is_flag=True, help="Every row of the table, not only the 15 with the most time."
)

interpolate_option = click.option(
    "--interpolate",
    is_flag=True,
    help="Interpolate unmeasured bricks between other sizes of --dim or --batch: given ones, and powers of two.",
)

suite_option = click.option("--suite", type=PLACE, metavar="SUITE", help="Suite that holds the bricks.")

plot_option = click.option(
    "--plot",
    "plot",
    type=NEW_FOLDER,
    metavar="FILE|DIR",
    help="Also draw: one file (.png or .svg), or a folder for every plot.",
)
