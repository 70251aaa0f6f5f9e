"""Write the generated lists of docs/reference: the options in cli.md, the signatures and fields in api.md.

    python benchmarks/listings.py [--check]

The rest of these pages is written by hand. ``--check`` writes nothing and fails if a list differs from the code. A test
does the same.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from operator import attrgetter
from pathlib import Path
from typing import Any

import blocks
import click
import dlbricks
from dlbricks.cli import commands, options
from dlbricks.cli.models import binding_options, custom_ops_option

PAGES = (Path("docs/reference/cli.md"), Path("docs/reference/api.md"))
"""From the top of the project."""

SHARED: Mapping[str, tuple[Callable[[Callable[..., None]], Callable[..., None]], ...]] = {
    "models": (binding_options, custom_ops_option),
    "cutting": (options.split_options,),
    "measuring": (options.stack_options, options.pace_options, options.since_option, options.node_options),
    "measuring what is missing": (options.report_options,),
    "stored measurements": (options.measured_options,),
    "answers": (
        options.database_option,
        options.format_options,
        options.all_option,
        options.plot_option,
        options.quiet_option,
        options.wait_option,
    ),
}
"""Heading of each list of shared options, and the decorators that add these options to a command."""

_WIDTH = 100


def main() -> None:
    """Write the lists, or check them."""
    blocks.write(PAGES, rendered, __doc__ or "", "run python benchmarks/listings.py")


def rendered(text: str) -> str:
    """Return a page with new lists.

    Args:
        text: The page.

    Raises:
        KeyError: The name of a list is unknown, or names an unknown command or public name.
    """
    return blocks.rendered(text, _block)


def leaves(group: click.Group = commands, path: str = "dlbricks") -> Iterator[tuple[str, click.Command]]:
    """Yield each command that is not a group, with its full name."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def shared_options(heading: str) -> dict[str, str]:
    """Return the options under a heading of ``SHARED``, with their help."""

    def nothing() -> None:
        pass

    decorated: Callable[..., None] = nothing
    for decorator in reversed(SHARED[heading]):
        decorated = decorator(decorated)
    return documented(click.command()(decorated))


def documented(command: click.Command) -> dict[str, str]:
    """Return the options of a command with their help."""
    context = click.Context(command)
    records = (option.get_help_record(context) for option in command.params if isinstance(option, click.Option))
    return {names: _escaped(text) for names, text in filter(None, records)}


def _block(name: str) -> str:
    kind, _, of = name.partition("-")
    return f"\n{_KINDS[kind](of)}\n"


def _shared(of: str) -> str:
    """List the options under a heading of ``SHARED``."""
    return _listed(shared_options(of.replace("-", " ")))


def _options(of: str) -> str:
    """Write a command's example, the options that only it has, and links to the shared ones."""
    name, command = {name.replace(" ", "-"): (name, command) for name, command in leaves()}[f"dlbricks-{of}"]
    example = re.search(rf"^ +({name}\b.*)$", command.help or "", re.MULTILINE)
    left, links = documented(command), []
    for heading in SHARED:
        group = shared_options(heading)
        used = [names for names, text in group.items() if left.get(names) == text]
        left = {names: text for names, text in left.items() if names not in used}
        if used:
            few = "" if len(used) == len(group) else f" ({' '.join(f'`{_long(names)}`' for names in used)})"
            links.append(f"[{heading}](#{heading.replace(' ', '-')}){few}")
    parts = [
        f"    {example[1]}" if example else "",
        _listed(left),
        f"Shared options: {', '.join(links)}." if links else "",
    ]
    return "\n\n".join(["", *filter(None, parts), ""]).strip("\n")


def _listed(texts: Mapping[str, str]) -> str:
    return "\n".join(f"- `{names}`: {text}" for names, text in texts.items())


def _long(names: str) -> str:
    """Return the long name of an option: ``-g, --granularity N`` is ``--granularity``."""
    return names.rpartition(", ")[2].partition(" ")[0]


def _escaped(text: str) -> str:
    return " ".join(text.replace("<", "\\<").split())


def _signature(of: str) -> str:
    """Write the signature of a function; a long one has a line per parameter."""
    name = of.replace("-", ".")
    called = _public(name)
    made = inspect.signature(called)
    parts, named = [], False
    for parameter in made.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not named:
            parts.append("*,")
            named = True
        if parameter.kind is parameter.VAR_KEYWORD:
            fields = called.__globals__[parameter.annotation.removeprefix("Unpack[").removesuffix("]")]
            parts.append(f"**{parameter.name}: {parameter.annotation},  # {', '.join(fields.__annotations__)}")
            continue
        value = str(parameter.default) if isinstance(parameter.default, StrEnum) else parameter.default
        default = (
            "" if value is parameter.empty else f" = {value!r}".replace("<factory>", "{}")
        )  # settings have no other
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        parts.append(f"{star}{parameter.name}: {parameter.annotation}{default},")
    end = ")" if inspect.isclass(called) else f") -> {made.return_annotation}"
    line = f"dlbricks.{name}({' '.join(parts).removesuffix(',')}{end}"
    if len(line) > _WIDTH:
        line = "\n".join([f"dlbricks.{name}(", *(f"    {part}" for part in parts), end])
    return f"```python\n{line}\n```"


def _fields(of: str) -> str:
    """List the fields and computed properties of a value."""
    kind = _public(of)
    names = [field.name for field in dataclasses.fields(kind) if not field.name.startswith("_")]
    members = {name: value for base in reversed(inspect.getmro(kind)) for name, value in vars(base).items()}
    computed = [name for name, value in members.items() if isinstance(value, property) and name[0] != "_"]
    return "\n".join(
        f"{words}: {' '.join(f'`{name}`' for name in found)}."
        for words, found in ((f"Fields of `{of}`", names), ("Computed", computed))
        if found
    )


def _public(name: str) -> Any:
    """Return a public object, or a method of one."""
    if name.partition(".")[0] not in dlbricks.__all__:
        raise KeyError(name)
    return attrgetter(name)(dlbricks)


_KINDS: Mapping[str, Callable[[str], str]] = {
    "shared": _shared,
    "options": _options,
    "signature": _signature,
    "fields": _fields,
}


if __name__ == "__main__":
    main()
