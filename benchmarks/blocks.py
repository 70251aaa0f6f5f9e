"""Pages with generated blocks between ``<!-- name -->`` and ``<!-- /name -->``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from pathlib import Path

TOP = Path(__file__).parents[1]
"""The project's folder."""

_BLOCK = re.compile(r"(<!-- ([\w-]+) -->)(.*?)(<!-- /\2 -->)", re.DOTALL)


def rendered(text: str, block: Callable[[str], str]) -> str:
    """Return a page with new blocks.

    Args:
        text: The page.
        block: The text of the block of a name.

    Raises:
        KeyError: The name of a block is unknown.
    """
    return _BLOCK.sub(lambda found: found[1] + block(found[2]) + found[4], text)


def named(text: str) -> list[str]:
    """Return the names of a page's blocks."""
    return [found[2] for found in _BLOCK.finditer(text)]


def write(pages: Iterable[Path], render: Callable[[str], str], description: str, remedy: str) -> None:
    """Replace different pages; with ``--check`` fail instead, and write nothing.

    Args:
        pages: From the top of the project.
        render: Returns a page with new blocks.
        description: Description of the script.
        remedy: Remedy for a different page.
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
