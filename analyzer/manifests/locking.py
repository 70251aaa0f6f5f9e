"""The lock file of an environment that was measured: versions and hashes of its wheels, none of them guessed."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...errors import BackendUnavailable
from ...generator.backends.environments import own_variables
from ...generator.machine.software import wheel_contents

__all__ = ["lock_of", "with_hashes"]

Packages = Mapping[str, Mapping[str, Any]]
"""By name ``version``, ``contents`` and, where known, ``wheel`` and ``sha256`` (``software_state``)."""

_PIP = ("-m", "pip", "download", "--no-input", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:")


def lock_of(packages: Packages, *, python: str | None) -> tuple[str | None, tuple[str, ...]]:
    """A lock file as of PEP 751.

    Args:
        packages: What was installed.
        python: Version of the Python that it was installed for.

    Returns:
        Its text, or None where hashes are missing or nothing is known; and the packages whose hash is missing.
    """
    lacking = tuple(sorted(name for name, one in packages.items() if not (one.get("sha256") and one.get("wheel"))))
    if lacking or not packages or python is None:
        return None, lacking
    minor = ".".join(python.split(".")[:2])
    lines = ['lock-version = "1.0"', f'requires-python = "=={minor}.*"', 'created-by = "dlbricks"']
    for name, one in sorted(packages.items()):
        lines += ["", "[[packages]]", f"name = {_quoted(name)}", f"version = {_quoted(one['version'])}", ""]
        lines += ["[[packages.wheels]]", f"path = {_quoted(one['wheel'])}"]
        lines += [f"hashes = {{sha256 = {_quoted(one['sha256'])}}}"]
    return "".join(f"{line}\n" for line in lines), ()


def with_hashes(packages: Packages) -> dict[str, dict[str, Any]]:
    """The same with the hashes of wheels that were missing, as far as pip finds these wheels.

    Each is downloaded from where pip is configured to look, for this Python and machine; its hash is taken only where
    its files are those that were installed, by their own hashes. What is no name with a version stays without: a
    database may hold what other machines wrote, and to pip it may be an address or an option.

    Args:
        packages: What was installed.

    Raises:
        BackendUnavailable: This Python has no pip.
    """
    lacking = {
        name: pinned
        for name, one in packages.items()
        if not one.get("sha256") and one.get("contents") and (pinned := _pinned(name, one.get("version"))) is not None
    }
    found: dict[str, dict[str, Any]] = {name: dict(one) for name, one in packages.items()}
    with TemporaryDirectory(prefix="dlbricks-wheels-") as folder:
        wanted = list(lacking.values())
        if wanted and not _download(wanted, Path(folder)):
            for one in wanted:  # what is to be had of them
                _download([one], Path(folder))
        by_contents = {contents: path for path in sorted(Path(folder).glob("*.whl")) if (contents := _contents(path))}
        for name in lacking:
            path = by_contents.get(packages[name]["contents"])
            if path is not None:
                found[name] |= {"wheel": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    return found


def _pinned(name: str, version: object) -> str | None:
    """One package as pip is asked for it; None: it is no normalized name with a version."""
    from packaging.utils import is_normalized_name
    from packaging.version import InvalidVersion, Version

    if not is_normalized_name(name) or not isinstance(version, str):
        return None
    try:
        return f"{name}=={Version(version)}"
    except InvalidVersion:
        return None


def _download(wanted: Sequence[str], folder: Path) -> bool:
    command = [sys.executable, *_PIP, "--dest", str(folder), "--", *wanted]
    done = subprocess.run(
        command, env=own_variables(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if "No module named pip" in done.stderr:
        raise BackendUnavailable(
            "hashes are asked of pip, which this Python does not have", remedy=f"{sys.executable} -m ensurepip"
        )
    return done.returncode == 0


def _contents(path: Path) -> str | None:
    with zipfile.ZipFile(path) as wheel:
        record = next((name for name in wheel.namelist() if name.endswith(".dist-info/RECORD")), None)
        return None if record is None else wheel_contents(wheel.read(record).decode())


def _quoted(text: str) -> str:
    return json.dumps(text)  # a string of JSON is one of TOML
