"""Wheels of one module, made on the spot: what an installation is tried with where no index is asked."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path


def write_wheel(folder: Path, name: str, version: str = "1.0", *, text: str = "") -> Path:
    """Write a wheel whose module says its version.

    Args:
        folder: Where it goes.
        name: Of the package and its module.
        version: Of the package.
        text: Added to the module.
    """
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    parts = {
        f"{name}.py": f"version = '{version}'\n{text}",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{part},{_digest(said.encode())},{len(said.encode())}" for part, said in parts.items()]
    with zipfile.ZipFile(path, "w") as archive:
        for part, said in parts.items():
            archive.writestr(zipfile.ZipInfo(part), said)
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "\n".join([*lines, f"{info}/RECORD,,", ""]))
    return path


def record_of(wheel: Path) -> str:
    """The list of a wheel's files."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/RECORD")]
        return archive.read(name).decode()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digest(data: bytes) -> str:
    return f"sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')}"
