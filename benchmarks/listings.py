"""Write the generated lists of docs/reference: the options in cli.md, the signatures and fields in api.md.

    python benchmarks/listings.py [--check]

The rest of these pages is written by hand. ``--check`` writes nothing and fails if a list differs from the code; a test
does the same.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from operator import attrgetter
from pathlib import Path
from typing import Any

import blocks
import click
import dlbricks
from dlbricks.cli import commands

PAGES = (Path("docs/reference/cli.md"), Path("docs/reference/api.md"))
"""From the top of the project."""

_WIDTH = 100


def main() -> None:
    """Replace what differs, or report it."""
    blocks.write(PAGES, rendered, __doc__ or "", "run python benchmarks/listings.py")


def rendered(text: str) -> str:
    """A page with its lists made anew.

    Args:
        text: The page.

    Raises:
        KeyError: There is no such list, command or public name.
    """
    return blocks.rendered(text, _block)


def leaves(group: click.Group = commands, path: str = "dlbricks") -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, with its whole name."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _block(name: str) -> str:
    kind, _, of = name.partition("-")
    return f"\n{_KINDS[kind](of)}\n"


def _options(of: str) -> str:
    """The options of a command as its own help lists them."""
    command = {name.replace(" ", "-"): command for name, command in leaves()}[f"dlbricks-{of}"]
    context = click.Context(command)
    records = (one.get_help_record(context) for one in command.params if isinstance(one, click.Option))
    return "\n".join(f"- `{names}`: {_plain(text)}" for names, text in filter(None, records))


def _plain(text: str) -> str:
    """Words that are no markup; a default reads as a sentence of its own."""
    return " ".join(text.replace("<", "\\<").split())


def _signature(of: str) -> str:
    """How a function is called, with each parameter on a line of its own where they are many."""
    name = of.replace("-", ".")
    called = _public(name)
    made = inspect.signature(called)
    parts, named = [], False
    for one in made.parameters.values():
        if one.name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and not named:
            parts.append("*,")
            named = True
        if one.kind is one.VAR_KEYWORD:
            fields = called.__globals__[one.annotation.removeprefix("Unpack[").removesuffix("]")]
            parts.append(f"**{one.name}: {one.annotation},  # {', '.join(fields.__annotations__)}")
            continue
        value = str(one.default) if isinstance(one.default, StrEnum) else one.default
        default = "" if value is one.empty else f" = {value!r}".replace("<factory>", "{}")  # settings have no other
        star = "*" if one.kind is one.VAR_POSITIONAL else ""
        parts.append(f"{star}{one.name}: {one.annotation}{default},")
    end = ")" if inspect.isclass(called) else f") -> {made.return_annotation}"
    line = f"dlbricks.{name}({' '.join(parts).removesuffix(',')}{end}"
    if len(line) > _WIDTH:
        line = "\n".join([f"dlbricks.{name}(", *(f"    {part}" for part in parts), end])
    return f"```python\n{line}\n```"


def _fields(of: str) -> str:
    """What a value holds: its fields, and what is computed of them."""
    kind = _public(of)
    names = [one.name for one in dataclasses.fields(kind) if not one.name.startswith("_")]
    members = {name: value for base in reversed(inspect.getmro(kind)) for name, value in vars(base).items()}
    computed = [name for name, value in members.items() if isinstance(value, property) and name[0] != "_"]
    return "\n".join(
        f"{words}: {' '.join(f'`{name}`' for name in found)}."
        for words, found in ((f"Fields of `{of}`", names), ("Computed", computed))
        if found
    )


def _public(name: str) -> Any:
    """A public name, or a method of one."""
    if name.partition(".")[0] not in dlbricks.__all__:
        raise KeyError(name)
    return attrgetter(name)(dlbricks)


_KINDS: Mapping[str, Callable[[str], str]] = {"options": _options, "signature": _signature, "fields": _fields}


if __name__ == "__main__":
    main()
