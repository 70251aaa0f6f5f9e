"""Read, write and format the figures of a benchmark."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path("docs/results")
"""From the top of the project."""


def parser(description: str | None, *, out: bool = True) -> argparse.ArgumentParser:
    """Return a parser of options that describes a script by its docstring.

    Args:
        description: The docstring.
        out: The script writes figures into a folder.
    """
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if out:
        options.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="for the figures")
    return options


def setting(text: str) -> tuple[str, str]:
    """Parse an option of a backend."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def read(path: Path, otherwise: Any = None) -> Any:
    """Return the figures of a file; something else where there is none yet."""
    return json.loads(path.read_text()) if path.exists() or otherwise is None else otherwise


def write(path: Path, figures: Any, text: str = "", *, indent: int | None = 1) -> None:
    """Write figures as JSON, and print a text about them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=indent, allow_nan=False) + "\n")
    print(text or f"{path} is written", flush=True)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table between line breaks; cells have none."""
    lines = (" | ".join(map(str, cells)).replace("\n", " ") for cells in (head, ["---"] * len(head), *rows))
    return "\n".join(["", *(f"| {line} |" for line in lines), ""])


def share(part: float, whole: float) -> float | None:
    """Return a quotient; None without a divisor."""
    return part / whole if whole else None


def middle(values: Sequence[float]) -> float | None:
    """Return the median; None without values."""
    return statistics.median(values) if values else None


def within(values: Sequence[float], limit: float) -> float | None:
    """Return the share of values up to a limit."""
    return share(sum(value <= limit for value in values), len(values))


def spread(errors: Sequence[float]) -> tuple[float, float | None]:
    """Return the median of errors, and the share within 10 %."""
    return statistics.median(errors), within(errors, 0.1)


def percent(value: float | None) -> str:
    """Format a share in per cent."""
    return "" if value is None else f"{100 * value:.1f} %"


def number(value: float | None) -> str:
    """Format a figure."""
    return "" if value is None else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def versions(stack: Mapping[str, Any], *, between: str = " ") -> str:
    """Format the software of a stack."""
    return between.join(f"{name} {version}" for name, version in stack.get("versions", {}).items())
