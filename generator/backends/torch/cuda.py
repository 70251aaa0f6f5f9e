"""Whether a build of PyTorch can use a GPU here, told without loading it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from ...machine.nvidia import has_driver

__all__ = ["built_without_cuda", "missing_for_torch"]

_CUDA = re.compile(r"^cuda\b[^=\n]*=(.*)$", re.MULTILINE)


def built_without_cuda(version: Path) -> bool:
    """Whether a build of PyTorch has no CUDA.

    The versions of its packages do not always tell: the index that one came from decides. Its build writes down what
    it was built for.

    Args:
        version: Its file ``torch/version.py``; where it cannot be read, or does not tell, the answer is no.
    """
    try:
        found = _CUDA.search(version.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return False
    return found is not None and found.group(1).strip() == "None"


def missing_for_torch() -> str:
    """What the installed PyTorch lacks to run on an NVIDIA GPU here, in one line; empty where nothing is known to."""
    spec = importlib.util.find_spec("torch")
    folders = (spec.submodule_search_locations if spec is not None else None) or ()
    lacks = []
    if any(built_without_cuda(Path(folder) / "version.py") for folder in folders):
        lacks.append("built without CUDA")
    if not has_driver():
        lacks.append("no NVIDIA driver is found")
    return "; ".join(lacks)
