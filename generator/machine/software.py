"""The software around a measurement: Python, the C library, packages and their contents, and dlbricks itself."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ...version import __version__

if TYPE_CHECKING:
    from packaging.pylock import Package

LOCK = "pylock.toml"
"""Under this name an environment keeps the lock file that it was made from."""

IMAGE_VARIABLE = "DLBRICKS_IMAGE"
"""Environment variable: the digest of the image that this process's container was started from, which it cannot see."""

_PACKAGE = Path(__file__).resolve().parents[2]
_TOOLS = frozenset({"pip", "setuptools", "wheel"})
_MADE_HERE = frozenset({"RECORD", "RECORD.jws", "INSTALLER", "REQUESTED", "direct_url.json"})
"""Files of a package's metadata that the installation made, or that sign the list of files."""

_SCHEMES = ("purelib/", "platlib/")


@cache
def software_state(needed: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """Return the software of this process, without names of machines, persons or paths.

    Args:
        needed: Packages of the runtime. The result contains these, the requirements of dlbricks, and all packages that
            both require. If dlbricks is not installed as a package, it contains all packages.

    Returns:
        ``python``, ``implementation``, ``compiler``, ``libc``, ``image``, ``dlbricks`` (``version``; ``commit`` and
        ``modified`` of a checkout; ``sources``: SHA-256 of its modules) and ``packages``. A package has ``version``,
        ``contents`` (SHA-256 of the list of its files with their hashes, as pip recorded them) and, if it came from a
        lock file or a wheel, ``wheel`` and its ``sha256``. ``requires`` is ``unknown`` if a requirement of it cannot be
        read. Unknown values are None.
    """
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "compiler": platform.python_compiler(),
        "libc": " ".join(part for part in platform.libc_ver() if part) or None,
        "image": os.environ.get(IMAGE_VARIABLE) or None,
        "dlbricks": {"version": __version__, **_checkout(), "sources": _sources()},
        "packages": _packages(needed),
    }


def wheel_contents(record: str) -> str:
    """Return the SHA-256 of the files of a package and their hashes: equal for a wheel's RECORD and the installed one.

    Scripts, headers and data are left out, since an installation moves them. So are files that the installation makes.
    """
    lines = []
    for row in csv.reader(record.splitlines()):
        file = row[0] if row else ""
        top, _, below = file.partition("/")
        if top.endswith(".data"):
            file = next((below.removeprefix(scheme) for scheme in _SCHEMES if below.startswith(scheme)), "")
        if "//" in file or "/." in file or file[:1] in {"", ".", "/"} or file[-1] == "/":  # hardly one in a thousand
            file = str(PurePosixPath(file))
        folder, _, name = file.rpartition("/")
        generated = name in _MADE_HERE and folder.endswith(".dist-info")
        compiled = name.endswith(".pyc") and name != ".pyc"
        if file not in {".", ".."} and not file.startswith(("/", "../")) and not generated and not compiled:
            lines.append(f"{file},{row[1] if len(row) > 1 else ''}")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _packages(needed: Iterable[str]) -> dict[str, dict[str, str | None]]:
    from packaging.utils import canonicalize_name

    installed: dict[str, metadata.Distribution] = {}
    for package in metadata.distributions():
        name = package.metadata["Name"]
        if name:  # of a package that was removed by half there is none
            installed.setdefault(canonicalize_name(name), package)
    roots = _own_requirements()
    chosen, unread = (set(installed) - _TOOLS, set()) if roots is None else _required([*roots, *needed], installed)
    locked = _locked()
    return {
        name: _described(name, installed[name], locked) | ({"requires": "unknown"} if name in unread else {})
        for name in sorted(chosen - {"dlbricks"})
    }


def _own_requirements() -> list[str] | None:
    """Return the requirements of dlbricks, from its checkout if there is one, since the installation may be older."""
    project = _PACKAGE / "pyproject.toml"
    if project.is_file():
        return list(tomllib.loads(project.read_text())["project"]["dependencies"])
    try:
        return metadata.requires("dlbricks")
    except metadata.PackageNotFoundError:
        return None


def _required(roots: Iterable[str], installed: Mapping[str, metadata.Distribution]) -> tuple[set[str], set[str]]:
    """Return the installed packages that requirements lead to, and the packages with an unreadable requirement.

    An old package may contain text that cannot be read as a requirement.
    """
    from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    seen: set[tuple[str, str]] = set()
    unread: set[str] = set()
    waiting = [(root, "", "") for root in roots]
    while waiting:
        text, extra, of = waiting.pop()
        try:
            requirement = Requirement(text)
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName):
            unread.add(of)
            continue
        name = canonicalize_name(requirement.name)
        if name not in installed or not applies:
            continue
        for requested_extra in {"", *requirement.extras} - {extra for package, extra in seen if package == name}:
            seen.add((name, requested_extra))
            waiting += [(needed, requested_extra, name) for needed in installed[name].requires or ()]
    return {name for name, _ in seen}, unread


def _described(name: str, package: metadata.Distribution, locked: Mapping[str, Package]) -> dict[str, str | None]:
    record = package.read_text("RECORD")
    description = {"version": package.version, "contents": None if record is None else wheel_contents(record)}
    if name in locked and str(locked[name].version) == package.version:
        return description | _wheel_of(locked[name])
    direct = json.loads(package.read_text("direct_url.json") or "{}")
    digest = direct.get("archive_info", {}).get("hashes", {}).get("sha256")
    file = PurePosixPath(direct.get("url", "")).name
    return description | {"wheel": file, "sha256": digest} if digest and file.endswith(".whl") else description


def _locked() -> dict[str, Package]:
    """Return the packages of the lock file that the environment of this process was made from, by name.

    A file of this name with other contents is ignored.
    """
    from packaging.pylock import Pylock, PylockValidationError

    try:
        lock = Pylock.from_dict(tomllib.loads((Path(sys.prefix) / LOCK).read_text()))
    except (FileNotFoundError, tomllib.TOMLDecodeError, PylockValidationError):
        return {}
    return {package.name: package for package in lock.packages}


def _wheel_of(package: Package) -> dict[str, str | None]:
    """Return the wheel of a locked package; empty if it has several wheels, since the installed one is unknown."""
    wheels = package.wheels or ()
    if len(wheels) != 1 or "sha256" not in wheels[0].hashes:
        return {}
    return {"wheel": wheels[0].filename, "sha256": wheels[0].hashes["sha256"]}


def _checkout() -> dict[str, Any]:
    """Return the commit of the checkout that dlbricks runs from, or was installed from."""
    git = shutil.which("git")
    if git and (_PACKAGE / ".git").exists():
        commit, changes = (_git(git, *words) for words in (("rev-parse", "HEAD"), ("status", "--porcelain")))
        return {"commit": commit, "modified": None if changes is None else bool(changes)}
    try:
        direct = json.loads(metadata.distribution("dlbricks").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        direct = {}
    return {"commit": direct.get("vcs_info", {}).get("commit_id"), "modified": None}


def _git(git: str, *words: str) -> str | None:
    command = [git, "-C", str(_PACKAGE), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return done.stdout.strip() if done.returncode == 0 else None


def _sources() -> str:
    """Return the SHA-256 of the installed modules of dlbricks, without tests and benchmarks."""
    digest = hashlib.sha256()
    root_modules = list(_PACKAGE.glob("*.py"))
    rooms = [path.parent for path in _PACKAGE.glob("*/__init__.py")]
    for path in sorted([*root_modules, *(path for room in rooms for path in room.rglob("*.py"))]):
        digest.update(f"{path.relative_to(_PACKAGE).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
