"""Public names of a package that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def lazy(package: str, homes: Mapping[str, Sequence[str]]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Make ``__getattr__`` and ``__dir__`` for a package whose names live in its submodules.

    A name must not be that of its own submodule: importing the submodule would hide it.

    Args:
        package: The package's ``__name__``.
        homes: The public names that each submodule defines.

    Example:
        ``__getattr__, __dir__ = lazy(__name__, {"store": ["Store"]})``
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> object:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(f".{home}", package), name)
        setattr(sys.modules[package], name, value)
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return get, listed
