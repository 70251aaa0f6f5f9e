"""Pages with blocks that are written by a script: what stands between ``<!-- name -->`` and ``<!-- /name -->``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = ["TOP", "named", "rendered", "write"]

TOP = Path(__file__).parents[1]
"""The project's folder."""

_BLOCK = re.compile(r"(<!-- ([\w-]+) -->)(.*?)(<!-- /\2 -->)", re.DOTALL)


def rendered(text: str, block: Callable[[str], str]) -> str:
    """A page with its blocks made anew.

    Args:
        text: The page.
        block: The text of the block of a name.

    Raises:
        KeyError: There is no block of a name.
    """
    return _BLOCK.sub(lambda found: found[1] + block(found[2]) + found[4], text)


def named(text: str) -> list[str]:
    """The names of the blocks of a page."""
    return [found[2] for found in _BLOCK.finditer(text)]


def write(pages: Iterable[Path], render: Callable[[str], str], description: str, remedy: str) -> None:
    """Replace what differs; with ``--check`` fail there, and write nothing.

    Args:
        pages: From the top of the project.
        render: A page made anew.
        description: What the script does.
        remedy: What to do where a page differs.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail where something would change")
    options = parser.parse_args()
    for page in pages:
        old = (TOP / page).read_text()
        new = render(old)
        if new != old and options.check:
            raise SystemExit(f"{page} differs: {remedy}")
        (TOP / page).write_text(new)
