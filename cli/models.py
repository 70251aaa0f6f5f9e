"""Model arguments of commands: models, dimensions, control flow, custom operators."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import UsageError
from .console import Command, note

if TYPE_CHECKING:
    from ..analyzer.limits import Limit
    from ..bricks.suite.suite import Suite
    from ..db import Store
    from ..models import ModelSource
    from ..models.user_inputs import UserInputs


# What words on the command line mean: times, batch sizes, numbers of threads, dimensions, settings and shares.


def seconds(text: str) -> float:
    """Return the seconds of a time: a number, or one with the unit s, m or h."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    unit = text[-1:] if text[-1:] in units else ""
    return _number(text, unit, "time", "90, 90s, 5m or 1h") * units.get(unit, 1.0)


def _number(text: str, unit: str, what: str, examples: str) -> float:
    """Return the positive number before a unit; other text gives an error."""
    try:
        value = float(text.removesuffix(unit))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a {what}; write {examples}") from error
    if not 0 < value < float("inf"):
        raise click.BadParameter(f"{text!r} is not a positive {what}")
    return value


def moment(text: str) -> datetime:
    """Return a point in time: ISO 8601 (local without a time zone), or an age with the unit s, m, h or d."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        pass  # no time of day: how long ago, then
    long_ago = text if text[-1:].isalpha() else ""  # a number alone could be a year
    try:
        ago_s = seconds(long_ago.removesuffix("d")) * (86400 if text.endswith("d") else 1)
        return datetime.now(UTC) - timedelta(seconds=ago_s)
    except (click.BadParameter, OverflowError) as error:
        message = f"{text!r} is not a time in the past; write 2026-11-23T08:00, 2026-11-23T08:00Z, 90m, 2h or 3d"
        raise click.BadParameter(message) from error


def batches(text: str) -> tuple[int, ...]:
    """Batch sizes with commas between them, each once, and ranges."""
    wrong = f"{text!r} is not a list of batch sizes"
    return _positive(text, f"{wrong}; write 1, 1,4,8 or 1..8", f"{wrong}: a batch has at least one sample")


def threads(text: str) -> tuple[int, ...]:
    """Numbers of threads with commas between them, each once; 0 means one per physical core."""
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts):
        raise click.BadParameter(
            f"{text!r} is not a list of numbers of threads; write 1 or 1,2,4 (0: all physical cores)"
        )
    return tuple(dict.fromkeys(map(int, parts)))


def sizes(text: str) -> tuple[int, ...]:
    """Sizes with commas between them, each once; ``64..1024`` doubles from the one to the other, which always counts.

    Raises:
        ValueError: It is something else.
    """
    values: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        low, high = int(first), int(last) if dots else int(first)
        if not (part.replace("..", "", 1).isdecimal() and (not dots or 0 < low <= high)):
            raise ValueError(text)
        values += [low << doubled for doubled in range(high.bit_length()) if low << doubled < high]
        values.append(high)
    return tuple(dict.fromkeys(values))


def lengths(text: str) -> tuple[int, ...]:
    """Lengths in tokens, at least one each: ``128``, ``32,500`` or ``32..512``."""
    wrong = f"{text!r} is not a list of lengths; write 128, 32,500 or 32..512"
    return _positive(text, wrong, f"{text!r}: a length is at least 1")


def contexts(text: str) -> tuple[int, ...]:
    """Numbers of cached positions, 0 among them: ``0,512,2048``."""
    try:
        return sizes(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a list of lengths; write 0, 0,512 or 256..2048") from error


def _positive(text: str, wrong: str, zero: str) -> tuple[int, ...]:
    """Return sizes of at least 1; other text gives an error that names the rule."""
    try:
        values = sizes(text)
    except ValueError as error:
        raise click.BadParameter(wrong) from error
    if not all(values):
        raise click.BadParameter(zero)
    return values


def dimension(text: str) -> tuple[str, tuple[int, ...]]:
    """NAME=N[,N...], each size once, and ranges; the name itself may hold an equals sign."""
    name, _, numbers = text.rpartition("=")
    try:
        values = sizes(numbers)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not NAME=N; write past=128, past=128,512 or past=64..1024") from error
    if not name:
        raise click.BadParameter(f"{text!r} names no dimension; write past=128, past=128,512 or past=64..1024")
    return name, values


def input_value(text: str) -> tuple[str, str]:
    """NAME=NUMBER[,NUMBER...]; the name itself may hold an equals sign."""
    name, _, numbers = text.rpartition("=")
    if not (name and numbers):
        raise click.BadParameter(f"{text!r} is not NAME=NUMBER; write ratio=0.5 or size=1,3,64,64")
    return name, numbers


def setting(text: str) -> tuple[str, str]:
    """NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, value


def share(text: str) -> float:
    """Return a positive share: ``3%`` or ``0.03``."""
    unit = "%" if text.endswith("%") else ""
    value = _number(text, unit, "share", "3% or 0.03") / (100.0 if unit else 1.0)
    if value > 1 and not unit:
        raise click.BadParameter(f"{text!r} is a share above 1; write {value:g}% or {100 * value:g}%")
    return value


def limit_of(*figures: str) -> Callable[[str], Limit]:
    """Return a reader of limits on figures of ``FIGURES``, for ``--fail-on``."""

    def read(text: str) -> Limit:
        from ..analyzer.limits import parse_limit

        return parse_limit(text, {name: FIGURES[name] for name in figures})

    return read


FIGURES = {
    **dict.fromkeys(("latency", "p50", "p90", "p95", "p99", "load", "first-run", "first-token", "token"), "ms"),
    **dict.fromkeys(("memory", "size"), "MB"),
    **dict.fromkeys(("difference", "tokens/s"), ""),
}
"""Canonical unit of each figure that limits can name."""

ALONE = frozenset({"memory", "p50", "p90", "p95", "p99"})
"""Figures for which a model runs in a process of its own."""


def limits_option(examples: str, *figures: str) -> Callable[[Command], Command]:
    """Return the option ``--fail-on`` with limits on some figures.

    Args:
        examples: Limits as a user writes them, and what they imply.
        figures: Names out of ``FIGURES``.
    """
    text = f"End with exit code 4 if a figure crosses the limit, 5 if it cannot be told: {examples}"
    return option("--fail-on limits", text, limit_of(*figures), multiple=True, metavar="LIMIT")


def saving(text: str) -> float:
    """Return the limit in ``saving>10%``."""
    word, sign, number = text.replace(" ", "").partition(">")
    if word != "saving" or not sign:
        raise click.BadParameter(f"{text!r} is not a limit; write 'saving>10%'")
    return share(number)


PLACE = click.Path(path_type=Path)


class _Output(click.Path):
    """An output file or folder, checked before a command measures anything for it.

    Args:
        folder: True for a folder, made with its parents; False for a file in an existing folder.
    """

    def __init__(self, *, folder: bool) -> None:
        super().__init__(path_type=Path)
        self._folder = folder

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path.

        Raises:
            click.BadParameter: The place cannot be written.
        """
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if path.is_dir() and not self._folder:
            self.fail(f"{path} is a folder; name a file in it", param, ctx)
        if path.exists() and (self._folder or not path.is_file()):
            return path  # a folder that is written into, or a device such as /dev/stdout
        parent = path.absolute().parent
        while self._folder and not parent.exists():
            parent = parent.parent
        if not parent.is_dir():
            self.fail(f"the folder of {path} does not exist; make it first: mkdir -p {parent}", param, ctx)
        if not os.access(parent, os.W_OK):
            self.fail(f"the folder of {path} cannot be written; choose another place", param, ctx)
        return path


NEW_FILE, NEW_FOLDER = _Output(folder=False), _Output(folder=True)
"""Values of options that name an output."""


def stacked(*decorators: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Several click decorators as one; help lists them in this order."""

    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


POSITIVE, NATURAL = click.IntRange(min=1), click.IntRange(min=0)

_METAVARS: Mapping[Any, str] = {
    None: "NAME", POSITIVE: "N", NATURAL: "N", NEW_FILE: "FILE", seconds: "TIME", moment: "TIME", share: "SHARE",
    saving: "LIMIT", batches: "N[,N...]", threads: "N[,N...]", lengths: "N[,N...]|N..M", contexts: "N[,N...]|N..M",
    dimension: "NAME=N[,N...]", input_value: "NAME=X[,X...]",
    setting: "NAME=VALUE",
}  # fmt: skip
"""What help calls a value, by its type."""


def option(names: str, text: str, kind: Any = None, **more: Any) -> Callable[[Command], Command]:
    """Return an option of a command: its names, its help and the type of its values; help shows a default."""
    shown = {"metavar": _METAVARS.get(kind), "show_default": True if "default" in more else None}
    return click.option(*names.split(), help=text, type=kind, **{**shown, **more})


def flag(names: str, text: str) -> Callable[[Command], Command]:
    """Return an option without a value."""
    return click.option(*names.split(), help=text, is_flag=True)


def _follow_links(context: click.Context, _parameter: click.Parameter, follow: bool) -> None:  # noqa: FBT001
    if follow:
        from ..models.external import follow_links

        follow_links(follow)
        context.call_on_close(partial(follow_links, not follow))


given_options = stacked(
    option(
        "--value values",
        "Numbers of a small input whose value decides shapes or time, for example size=1,3,64,64; repeatable.",
        input_value,
        multiple=True,
    ),
    option(
        "--data",
        "Your own inputs, arrays by name; other inputs are seeded. The first file is timed, 'compare' and 'improve' "
        "compare outputs on all; repeatable.",
        click.Path(path_type=Path, exists=True, dir_okay=False),
        multiple=True,
        metavar="FILE.npz",
    ),
    option(
        "--follow-links",
        "Read external data through links that leave the model's folder.",
        is_flag=True,
        expose_value=False,
        callback=_follow_links,
    ),
)
"""The user's own values of inputs, and leave to follow links."""

binding_options = stacked(
    option("--batch", "Batch sizes; several, or N..M doubled, give one model each.", batches),
    option(
        "--dim dims",
        "Values of a dynamic dimension; several, or N..M doubled, give one model each; repeatable.",
        dimension,
        multiple=True,
    ),
    option(
        "--branch branches",
        "Branch of an If without a constant condition; 'observed': from one execution; repeatable.",
        multiple=True,
        metavar="[NODE=]then|else",
    ),
    option(
        "--trip trips",
        "Iterations of a Loop without a constant number; 'observed': from one execution; repeatable.",
        multiple=True,
        metavar="[NODE=]N",
    ),
    given_options,
)


def _register(_context: click.Context, _parameter: click.Parameter, libraries: tuple[Path, ...]) -> None:
    if libraries:
        from ..generator.backends.custom_ops import register_custom_ops

        register_custom_ops(*libraries)


custom_ops_option = option(
    "--custom-ops",
    "Shared library of custom operators for ONNX Runtime. Its code runs in workers with your rights; repeatable.",
    PLACE,
    multiple=True,
    metavar="LIB",
    expose_value=False,
    is_eager=True,
    callback=_register,
)
"""Read before other options: what is measured with libraries is measured on a stack of theirs."""

model_arguments = stacked(
    click.argument("models", nargs=-1, required=True, metavar="MODEL..."), binding_options, custom_ops_option
)


def take_models(options: dict[str, Any]) -> list[ModelSource]:
    """Remove the options of ``model_arguments`` from a command's options, and find the models.

    A file with a dimension that nobody gave, and an array with elements that are NaN, get a warning each.

    Args:
        options: The options of the command.

    Raises:
        UsageError: An argument is the folder of a suite, or a given value of an input fits no model.
    """
    from ..models import find_models, require_inputs
    from ..models.control_flow import read_choices

    control, observed = read_choices(options.pop("branches"), options.pop("trips"))
    models, batch = options.pop("models"), options.pop("batch") or ()
    data, values = options.pop("data"), dict(options.pop("values"))
    for argument in models:
        _refuse_suite(Path(argument))
    several: dict[str, tuple[int, ...]] = dict(options.pop("dims"))
    sources_by_name: dict[str, ModelSource] = {}
    for sizes in itertools.product(*several.values()):
        dims = dict(zip(several, sizes, strict=True))
        ends = "".join(f"@{name}={size}" for name, size in dims.items() if len(several[name]) > 1)
        for source in find_models(models, batches=batch, dims=dims, control=control, data=data, values=values):
            name = source.name if source.problem else f"{source.name}{ends}"
            sources_by_name.setdefault(name, dataclasses.replace(source, name=name))
    sources = list(sources_by_name.values())
    require_inputs(sources)
    _warn_of_assumed(sources)
    warn_of_nan(sources[0].given if sources else None)  # one for all models
    if observed:
        from ..generator.decomposition.observation import observe

        return observe(sources)
    return sources


def known_models(options: dict[str, Any]) -> list[ModelSource]:
    """Return the models of a command as ``take_models``; if none of them is there, raise the first error."""
    sources = take_models(options)
    problems = [source.problem for source in sources if source.problem]
    if problems and len(problems) == len(sources):
        raise problems[0]  # a typing error, most likely
    return sources


def open_stored(database: str, sources: Sequence[ModelSource]) -> Store:
    """Open the database of a command that only reads.

    Args:
        database: Its path or URL.
        sources: The models of the command.

    Raises:
        StoreError: It cannot be opened.
        ModelError: It cannot be opened, and a model is not there, or none can be read: the error to mend first.
    """
    from ..db import Store
    from ..errors import StoreError

    try:
        return Store.open(database, create=False, read_only=True)
    except StoreError:
        _require_readable(sources)
        raise


def _require_readable(sources: Sequence[ModelSource]) -> None:
    """Raise the error of a model that is not there, or of the first if none can be read."""
    from ..errors import DlbricksError

    first: DlbricksError | None = next((source.problem for source in sources if source.problem is not None), None)
    if first is not None:
        raise first
    for source in sources:
        try:
            source.skeleton()
        except DlbricksError as error:
            first = first or error
        else:
            return
    if first is not None:
        raise first


def whole_models(options: dict[str, Any], count: int, remedy: str) -> list[ModelSource]:
    """Return the models of a command that takes exactly so many, all of them readable.

    Raises:
        UsageError: There are more or fewer.
    """
    sources = take_models(options)
    if len(sources) != count:
        raise UsageError(f"models given: {len(sources)}", remedy=remedy)
    for problem in filter(None, (source.problem for source in sources)):
        raise problem
    return sources


_MANIFEST = "manifest.json"
"""File that makes a folder a suite."""


def _refuse_suite(path: Path) -> None:
    """Refuse a suite among models: its bricks would count as models.

    Raises:
        UsageError: The path is a suite, or its folder of bricks.
    """
    for suite in (path, path.parent):
        if (suite / _MANIFEST).is_file() and path.is_dir():
            raise UsageError(
                f"{path} holds the bricks of a suite, not models",
                remedy=f"'dlbricks run {suite}' measures them; here, name the models that it was generated from",
            )


def open_suite(path: Path) -> Suite:
    """Open the suite of a command.

    Raises:
        UsageError: The argument is a model.
        SuiteError: The folder is not a suite.
    """
    from ..bricks.suite.suite import Suite
    from ..models.zoo import names

    if path.is_file() or (not path.exists() and str(path) in {entry.name for entry in names()}):
        raise UsageError(
            f"{path} is a model, not a suite",
            remedy=f"'dlbricks measure {path}' measures it as a whole, 'dlbricks generate {path} -o suite' makes a "
            "suite of its bricks",
        )
    return Suite.open(path)


def warn_of_nan(given: UserInputs | None) -> None:
    """Write a warning for each given array that has elements which are NaN."""
    for of, count in given.not_numbers().items() if given else ():
        note(f"warning: {of}: {count} of its elements are NaN, and so may be all that is computed from them")


_WARNED = 5
"""Models with a warning of their own."""


def _warn_of_assumed(sources: Sequence[ModelSource]) -> None:
    """Write a warning for each file with assumed dimensions."""
    assumed = ((source.name, source.assumed(certain=False)) for source in sources)
    lines = [f"warning: {name}: {text}" for name, text in assumed if text]
    for line in lines[:_WARNED]:
        note(line)
    if len(lines) > _WARNED:
        note(f"warning: {len(lines) - _WARNED} more models have dimensions that were not given")
