"""Whether NVIDIA's driver is on this machine, as far as that is known without loading a runtime.

That it is there does not prove that a GPU can be used; but where it is missing, none can.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

__all__ = ["DRIVER_LIBRARY", "can_load", "has_driver", "lacks_of_gpu"]

_SIGNS = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"))
DRIVER_LIBRARY = "libcuda.so.1"
"""What programs link against; it does nothing when it is loaded. A CUDA toolkit has a stub of it."""


def has_driver(signs: Iterable[Path] = _SIGNS, library: str = DRIVER_LIBRARY) -> bool:
    """Whether NVIDIA's driver is found on this machine; True on systems where this module cannot find out.

    Args:
        signs: Files of which the kernel's part of it shows one.
        library: The other part of it: all there is under WSL and on Tegra.
    """
    return sys.platform != "linux" or any(sign.exists() for sign in signs) or can_load(library)


def lacks_of_gpu(install: str = "") -> list[str]:
    """What a GPU is used through and is not here, in words: CuPy, whose stream all libraries share, and the driver.

    Args:
        install: What installs CuPy, where that is to be named.
    """
    lacks = []
    if importlib.util.find_spec("cupy") is None:
        lacks.append("CuPy is not installed" + (f": {install}" if install else ""))
    if not has_driver():
        lacks.append("no NVIDIA driver is found")
    return lacks


def can_load(library: str) -> bool:
    """Whether a shared library is found, and can be loaded."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
