"""Names in a model: protobuf promises text, but a broken file may hold anything."""

from __future__ import annotations

from ..errors import BrokenModel

__all__ = ["require_text"]


def require_text(*names: object) -> None:
    """Check that names are text; the protobuf parser hands out plain bytes for what is not UTF-8.

    Raises:
        BrokenModel: One is not; the message shows it.
    """
    for name in names:
        if type(name) is not str:
            raise BrokenModel(f"the name {name!r} is not UTF-8")
