"""What can be told of CUDA without loading it: whether a build of a runtime has it, and whether its driver is here.

Neither proves that a GPU can be used; a runtime finds that out when it is set up. But where one is missing, none can.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
from collections.abc import Iterable
from pathlib import Path

__all__ = ["DRIVER_LIBRARY", "built_without_cuda", "can_load", "has_driver", "missing_for_torch"]

_SIGNS = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"))
DRIVER_LIBRARY = "libcuda.so.1"
"""What programs link against; it does nothing when it is loaded. A CUDA toolkit has a stub of it."""
_CUDA = re.compile(r"^cuda\b[^=\n]*=(.*)$", re.MULTILINE)


def has_driver(signs: Iterable[Path] = _SIGNS, library: str = DRIVER_LIBRARY) -> bool:
    """Whether NVIDIA's driver is found on this machine; True on systems where this module cannot tell.

    Args:
        signs: Files of which the kernel's part of it shows one.
        library: The other part of it: all there is under WSL and on Tegra.
    """
    return sys.platform != "linux" or any(sign.exists() for sign in signs) or can_load(library)


def can_load(library: str) -> bool:
    """Whether a shared library is found, and can be loaded."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


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
