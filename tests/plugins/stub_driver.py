"""A stand-in for NVIDIA's driver: every function answers "no device". With it cuDNN plans without a GPU."""

from __future__ import annotations

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

_NAME = re.compile(rb"(?<=\0)cu[A-Z][A-Za-z0-9]+(?:_v\d|_ptsz|_ptds)*(?=\0)")
_READERS = ("libcudnn_graph.so.9", "libcudnn_engines_runtime_compiled.so.9")
"""Libraries that link against the driver, or look functions up in it by name."""
_NO_DEVICE = 100
"""``CUDA_ERROR_NO_DEVICE`` of cuda.h."""


def library_folder() -> Path | None:
    """The folder of cuDNN's libraries; None where the wheel is not installed."""
    spec = find_spec("nvidia.cudnn") if find_spec("nvidia") else None
    folders = [Path(place) / "lib" for place in (spec.submodule_search_locations if spec else None) or ()]
    return next((folder for folder in folders if (folder / _READERS[0]).exists()), None)


def build(folder: Path, functions: str = "") -> Path:
    """Compile the stand-in, and return its file; some functions may be written in C instead of generated."""
    names = {"cuInit", "cuDriverGetVersion", "cuGetErrorString", "cuModuleGetFunction", "cuModuleLoadData"}
    names |= {"cuModuleUnload", "cuTensorMapEncodeIm2col", "cuTensorMapEncodeTiled"}
    libraries = library_folder()
    for reader in _READERS if libraries else ():
        names |= {name.decode() for name in _NAME.findall((libraries / reader).read_bytes())}
    written = set(re.findall(r"\b(cu[A-Z]\w*)\(", functions))
    source = "".join(f"int {name}(void) {{ return {_NO_DEVICE}; }}\n" for name in sorted(names - written))
    library = folder / "libcuda.so.1"
    (folder / "driver.c").write_text(functions + source)
    command = ["gcc", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-o", library, folder / "driver.c"]
    subprocess.run(command, check=True)
    return library
