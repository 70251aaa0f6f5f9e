"""The options that several commands share, each written once, so that they mean the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from ..errors import UsageError
from ..generator.machine.priority import PRIORITIES
from .console import Command, kept, note
from .models import (
    NATURAL,
    NEW_FOLDER,
    PLACE,
    POSITIVE,
    flag,
    moment,
    option,
    seconds,
    setting,
    share,
    stacked,
    threads,
)  # fmt: skip

_CUSTOM_OPS = "custom_ops"
"""The option of a stack that ``--custom-ops`` stands for."""

format_options = stacked(
    option(
        "--format form",
        "How results are written to stdout.",
        click.Choice(["table", "json", "csv", "markdown"]),
        default="table",
    ),
    option("--json form", "Short for --format json.", flag_value="json"),
    kept("form"),
)

database_option = option(
    "--db database",
    "Database of measurements: an SQLite file or any SQLAlchemy URL.",
    envvar="DLBRICKS_DB",
    default="dlbricks.db",
    show_default="$DLBRICKS_DB, else dlbricks.db",
    metavar="FILE|URL",
)

_granularity = option("-g --granularity", "Largest number of layers per sequence.", POSITIVE, default=1)

_connected = flag("--connected", "Sequences may be connected windows, not paths only.")

_GRAPHS = click.Choice(["source", "fused", "runtime"])

_graph = option(
    "--graph",
    "Which graph is decomposed: the model's own (source), the same along the runtime's fusions (fused), or the "
    "executed one (runtime).",
    _GRAPHS,
    default="fused",
)

_stored_graph = option(
    "--graph", "Which graph is decomposed, as for 'generate'; else the graph with stored bricks.", _GRAPHS
)

_overlap = flag("--overlap", "Sequences may overlap (stride 1).")

split_options = stacked(_granularity, _graph, _overlap, _connected)

estimated_split_options = stacked(
    _granularity,
    _stored_graph,
    _overlap,
    _connected,
)

_SHARED: dict[str, Any] = {
    "backend": "NAME", "device": click.Choice(["cpu", "cuda"]), "threads": NATURAL,
    "cache": click.Choice(["model", "hot", "cold"]), "dtype": "NAME", "system": "ID", "stack": "ID",
}  # fmt: skip
"""Options that are part of what is measured: the same values wherever they apply."""


def _option(name: str, text: str, kind: Any = None, **more: Any) -> Callable[[Command], Command]:
    value_kind = kind or _SHARED[name]
    if isinstance(value_kind, str):
        return option(f"--{name}", text, metavar=value_kind, **more)
    return option(f"--{name}", text, value_kind, **more)


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


setting_option = option(
    "--option options",
    "Option of the runtime ('dlbricks backends list' names them); repeatable.",
    setting,
    multiple=True,
    callback=_settings,
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
        threads,
        default="1",
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
    for name in ("backend", "device", "threads"):
        if graph == "source" and context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise UsageError(f"--{name} means nothing for the model's own graph", remedy="add --graph fused or runtime")
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

_each_threads = _option("threads", "Only measurements with N threads; several give one estimate each.", threads)

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
    option("--budget budget_s", "Total time, for example 90s, 5m or 1h: as many visits as fit.", seconds),
    flag("--no-measure stored", "Use only stored measurements, of any system and stack."),
    option("--graph", "Which graph is cut into bricks; else the executed or fused one, if it is known.", _GRAPHS),
    *(_option(name, text) for name, text in _REPORTED.items()),
)
"""What is measured, and with --no-measure what of that which is stored is used: whatever it is where not given."""

kernel_options = stacked(
    _granularity, _stored_graph, _connected, *(shared for name, shared in _measured.items() if name != "cache")
)
"""What chooses kernels: they run whatever the caches hold, and layers in two sequences would count twice."""


_EFFECT = "Difference that matters, for example 3% or 0.03; anything less is SAME."
_CHANGE = "Change that matters, for example 3% or 0.03; smaller ones are ignored."

effect_option = option("--minimum-effect", _EFFECT, share, default="15%")

_narrowing = stacked(_granularity, _connected, measured_options)

comparison_options = stacked(_narrowing, option("--minimum-effect", _EFFECT, share, default="3%"))

history_options = stacked(_narrowing, option("--minimum-effect", _CHANGE, share, default="1%"))


def _without_visits(context: click.Context, _parameter: click.Parameter, budget_s: float | None) -> float | None:
    """Refuse ``--visits`` together with ``--budget``; ``--visits`` is read first."""
    if budget_s is not None and context.get_parameter_source("visits") is not ParameterSource.DEFAULT:
        raise click.UsageError("--budget takes as many visits as fit into it; leave --visits out", context)
    return budget_s


def target_option(default: str | None, text: str) -> Callable[[Command], Command]:
    """Return ``--target`` with its own default."""
    return option("--target", text, share, default=default)


pace_options = stacked(
    option(
        "--visits",
        "Number of visits of each brick and model (at least 10 for reliable results).",
        POSITIVE,
        default=24,
        is_eager=True,
    ),
    option(
        "--budget budget_s",
        "Total time instead, for example 90s, 5m or 1h: as many visits as fit.",
        seconds,
        callback=_without_visits,
    ),
    option("--processes", "Worker processes that share the visits, one after the other.", POSITIVE, default=2),
    option("--sessions", "Sessions of each process; each has another order.", POSITIVE, default=2),
    option(
        "--priority",
        "Priority of workers while they time: as high as allowed, real time, or unchanged.",
        click.Choice(PRIORITIES),
        default="high",
    ),
)

since_option = option(
    "--since", "Repeat only measurements from before: ISO 8601 or an age, for example 2026-11-23T08:00Z or 2h.", moment
)

node_options = stacked(
    option(
        "--node",
        "Name of this machine, stored with the run; distinguishes equal machines in one database.",
        show_default="$DLBRICKS_NODE, else none",
    ),
    option("--campaign", "Name of the campaign, stored with the run.", default="", show_default=False),
    option("--label", "Name of the measured state, such as a commit, for 'history'.", default="", show_default=False),
)

quiet_option = stacked(flag("-q --quiet", "No progress on stderr."), kept("quiet"))


def _patient(context: click.Context, _parameter: click.Parameter, wait_s: float | None) -> None:
    """Wait so long for another measuring process, and say that the command waits."""
    from ..generator.machine.lock import patience

    context.with_resource(patience(wait_s, note))


wait_option = option(
    "--wait",
    "Longest wait for another measuring dlbricks process; else $DLBRICKS_LOCK_WAIT.",
    seconds,
    expose_value=False,
    callback=_patient,
)
"""Of every command that measures."""

stored_options = stacked(database_option, format_options)
"""Of every command that reads or writes a database."""

measuring_options = stacked(database_option, quiet_option, wait_option, format_options)
"""Of every command that measures into a database."""

all_option = stacked(flag("--all every", "Every row of the table, not only the 15 with the most time."), kept("every"))

interpolate_option = flag(
    "--interpolate",
    "Interpolate unmeasured bricks between other sizes of --dim or --batch: given ones, and powers of two.",
)

suite_option = option("--suite", "Suite that holds the bricks.", PLACE, metavar="SUITE")

plot_option = option(
    "--plot plot", "Also draw: one file (.png or .svg), or a folder for every plot.", NEW_FOLDER, metavar="FILE|DIR"
)
