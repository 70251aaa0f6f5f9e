"""Whether cuDNN can be asked for plans in this environment, and why not."""

from __future__ import annotations

import importlib.util

from ....errors import BackendUnavailable
from ...machine.nvidia import DRIVER_LIBRARY, can_load
from ..base import Availability
from ..package import installed

__all__ = ["availability", "require_library"]

_FRONTEND = "nvidia-cudnn-frontend"
_LIBRARIES = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")


def availability() -> Availability:
    """Whether plans can be asked for; imports nothing, loads nothing but the driver's library.

    A GPU is not needed, but the library that comes with its driver is: cuDNN links against it. NVIDIA's toolkits bring
    a stub of it for machines without a driver (``lib64/stubs/libcuda.so``).
    """
    if importlib.util.find_spec("cudnn") is None:
        return Availability(ok=False, reason=f"not installed; pip install {_FRONTEND} {_LIBRARIES[0]}")
    versions = dict(installed((_FRONTEND, *_LIBRARIES)))
    if not versions.keys() & set(_LIBRARIES):
        return Availability(ok=False, reason=f"cuDNN itself is missing; pip install {' or '.join(_LIBRARIES)}")
    if not can_load(DRIVER_LIBRARY):
        reason = (
            f"{DRIVER_LIBRARY} is missing: no NVIDIA driver, and no stub of it from a CUDA toolkit in LD_LIBRARY_PATH"
        )
        return Availability(ok=False, reason=reason)
    return Availability(ok=True, versions=versions)


def require_library() -> Availability:
    """Make sure that plans can be asked for.

    Raises:
        BackendUnavailable: They cannot; the message says what is missing.
    """
    found = availability()
    if not found.ok:
        raise BackendUnavailable(f"cuDNN's plans cannot be asked for here: {found.reason}")
    return found
