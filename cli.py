"""The command line: each command calls one public function and writes its answer.

Exit codes: 0 done, 1 a clear one-line error, 2 wrong usage, 3 done but incomplete, 4 a limit was crossed.
Answers go to stdout alone, everything else to stderr. What a command needs is imported when it runs, so that
``dlbricks --help`` is instant.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from .analyzer.tables import Answer, printable, render
from .console import Reporter, note
from .errors import DlbricksError, UsageError
from .options import (
    TIME,
    database_option,
    format_options,
    measured_options,
    model_arguments,
    plot_option,
    split_options,
    stack_options,
)
from .version import __version__

if TYPE_CHECKING:
    from .models.source import ModelSource

__all__ = ["commands", "main"]

FOLDER = click.Path(path_type=Path)
INCOMPLETE = 3


def main() -> NoReturn:
    """Entry point: run the command, and turn any error into one line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a file's name need not fit the terminal's encoding
    try:
        code = commands.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        where = f"; see '{error.ctx.command_path} --help'" if getattr(error, "ctx", None) else ""
        _fail(error.format_message().rstrip(".") + where, error.exit_code)
    except DlbricksError as error:
        _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted; what was measured is stored, the same command goes on from there", 130)
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        _fail(f"{name}{error.strerror or error}", 1)


def _fail(text: str, code: int) -> NoReturn:
    try:
        note(f"dlbricks: {' '.join(text.split())}")
        sys.stdout.flush()
    except OSError:
        # Nobody listens on stdout or stderr any more, or their disk is full: the exit code has to do.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)
