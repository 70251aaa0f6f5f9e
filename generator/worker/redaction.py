"""Paths of this machine in a text: a stored reason must not name them."""

from __future__ import annotations

import os
import re
from pathlib import PurePath

__all__ = ["redact_paths"]

_ABSOLUTE = re.compile(r"(?<![\w.:/])/[^\s'\"`<>|:,;()\[\]{}]+")


def redact_paths(text: str, path: str = "") -> str:
    """The text with absolute paths shortened to their last part.

    Names of nodes look like paths, such as ``/encoder/layer.0/MatMul``: what leads nowhere on this machine stays.

    Args:
        text: What a runtime says.
        path: A file that it is likely about; its folder is found even where its name has spaces.
    """
    folder = os.path.dirname(path)  # noqa: PTH120  # as it stands in the text
    if len(folder) > 1:
        text = text.replace(folder + "/", "")
    return _ABSOLUTE.sub(_shortened, text)


def _shortened(found: re.Match[str]) -> str:
    text = found.group()
    place = PurePath(text)
    folders = list(place.parents)[:-1]  # not the root
    # A folder of the system may bear the name of a model's first module: it alone makes no path.
    known = [place, *folders[:1], *folders[:-1]]
    return place.name if place.name and any(map(os.path.exists, known)) else text
