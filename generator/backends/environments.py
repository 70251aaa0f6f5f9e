"""Separate virtual environments: for runtimes with special pins, for lock files, and for versions of a runtime.

A file next to the backend pins a runtime's packages, dependencies included; a lock file (``pylock.toml``, PEP 751) may
come from anywhere; a version is a requirement like ``onnxruntime==1.22.1``. The environment is in the cache folder.
Its name contains a digest of the pins or the lock, the version of Python, and the dlbricks that it serves. The running
code of dlbricks is linked into it, unless the lock contains dlbricks. The environment appears complete or not at all.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ...errors import BackendUnavailable, UsageError
from ...models.cache import cache_folder
from ..machine.software import LOCK
from ..machine.system import probe_system
from . import registry
from .base import Backend

_PACKAGE = Path(__file__).resolve().parents[2]
_PIP = ("-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:")
_HASH = re.compile(r"[a-z0-9_]+:[0-9a-f]+", re.ASCII)
_FOREIGN = ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT", "PIP_REQUIREMENT", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT",
            "PIP_USER", "PIP_PYTHON", "PIP_REQUIRE_VIRTUALENV", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV",
            "__PYVENV_LAUNCHER__")  # fmt: skip
"""The caller's settings that would install something else, or elsewhere."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment for a runtime.

    Attributes:
        backend: Name of its backend.
        pins: File that names every package with its version, dependencies included.
        python: Version of Python that the packages are built for, like ``3.11``.
    """

    backend: str
    pins: Path
    python: str

    @property
    def folder(self) -> Path:
        """Folder of the installed environment."""
        parts = (self.pins.read_bytes(), self.python.encode(), os.fsencode(_PACKAGE))
        digest = hashlib.sha256(b"\n".join(parts)).hexdigest()[:16]
        return cache_folder().absolute() / "backends" / f"{self.backend}-{digest}"

    @property
    def interpreter(self) -> Path:
        """Its Python."""
        return self.folder / "bin" / "python"

    @property
    def active(self) -> bool:
        """True if this process runs in it."""
        return Path(sys.prefix).name == self.folder.name

    @property
    def installed(self) -> bool:
        """True if it exists and its Python still exists."""
        return self.active or self.interpreter.exists()

    def versions(self, *names: str) -> tuple[tuple[str, str], ...]:
        """Return installed packages with their versions, without importing them; missing packages are left out."""
        site = _site(Path(sys.prefix) if self.active else self.folder, self.python)
        distributions = {name: list(metadata.distributions(name=name, path=[str(site)])) for name in names}
        return tuple(sorted((name, hits[0].version) for name, hits in distributions.items() if hits))


@dataclass(frozen=True, slots=True)
class Installed:
    """The result of ``install_backend``.

    Attributes:
        backend: Name of the backend.
        folder: Its environment.
        versions: Versions of the packages that decide its latencies.
        fresh: True if it was installed now, False if it existed.
    """

    backend: str
    folder: Path
    versions: Mapping[str, str]
    fresh: bool


def install_backend(name: str, *, again: bool = False, python: str | None = None) -> Installed:
    """Install the environment of a backend; the environment of dlbricks does not change.

    Args:
        name: Name of the backend.
        again: Replace an existing environment.
        python: Base interpreter; by default this one if its version fits, or one on the PATH.

    Returns:
        The environment, after a trial of the backend.

    Raises:
        UsageError: No backend has this name, or it needs no separate environment.
        BackendUnavailable: No suitable Python was found, or a package cannot be installed; an existing one is kept.
    """
    backend = registry.get(name)
    environment = backend.environment
    if not isinstance(environment, Environment):
        raise UsageError(f"backend {name} runs in the environment of dlbricks itself", remedy=_usual_way(backend))
    with _lock(environment.folder):
        fresh = again or not environment.installed
        if fresh:
            chosen = find_python(environment, python)
            _build(environment.folder, f"backend {name}", chosen, lambda new: _fill_from_pins(environment, new))
    return Installed(name, environment.folder, dict(backend.probe().versions), fresh)


def _usual_way(backend: Backend) -> str:
    reason = backend.probe().reason
    return reason if reason else "it is installed already"


def find_python(environment: Environment, chosen: str | None = None) -> str:
    """Find a Python of the version that the packages of an environment are built for.

    Args:
        environment: The environment to build.
        chosen: Interpreter; by default this one if its version fits, or one on the PATH.

    Raises:
        BackendUnavailable: No suitable Python was found.
    """
    running_version = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = f"python{environment.python}"
    interpreter = chosen or (sys.executable if running_version == environment.python else shutil.which(name))
    version = _version(interpreter) if interpreter else None
    if version != environment.python:
        what = (
            f"{interpreter} is {f'Python {version}' if version else 'no Python that runs'}"
            if interpreter
            else f"no {name} here"
        )
        raise BackendUnavailable(
            f"backend {environment.backend} needs Python {environment.python}, for its packages have no wheel for "
            f"others: {what}",
            remedy=f"install Python {environment.python}, or name one with --python",
        )
    assert interpreter is not None  # noqa: S101  # it printed its version
    return interpreter


def _version(python: str) -> str | None:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def locked_environment(lock: Path) -> Path:
    """Return the Python of a lock file's environment; create the environment first if missing (seconds to minutes).

    Wheels come from pip's configured indexes or from the lock's folder. pip gets their versions and hashes, never an
    address from the lock. Only wheels are installed, because builds from source lack a hash. The environment contains
    the lock's dlbricks; without one, or with a folder of sources, it contains the running code.

    Args:
        lock: A ``pylock.toml`` (PEP 751), as ``pip lock`` writes it.

    Returns:
        The interpreter. Equal locks share an environment, which keeps a copy of its lock under the name ``LOCK``.

    Raises:
        UsageError: The file is missing or invalid.
        BackendUnavailable: The lock is for another Python or machine, a package is unavailable or has another hash, or
            the environment cannot be written; nothing is left of it then.
    """
    try:
        text = lock.read_bytes()
    except OSError as error:
        raise UsageError(
            f"no lock file {lock}: {error.strerror}", remedy="name a pylock.toml; pip lock makes one"
        ) from error
    requirements, linked = _requirements(lock, text)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    parts = (hashlib.sha256(text).hexdigest(), sys.version, os.fsencode(_PACKAGE) if linked else b"")
    name = hashlib.sha256(b"\n".join(part if isinstance(part, bytes) else part.encode() for part in parts)).hexdigest()
    folder = cache_folder().absolute() / "environments" / name[:32]

    def fill(new: Path) -> None:
        (new / LOCK).write_bytes(text)
        list_ = new / "requirements.txt"
        list_.write_text("".join(f"{line}\n" for line in requirements))
        command = [str(new / "bin" / "python"), *_PIP, "--require-hashes", "--find-links", str(lock.parent.absolute())]
        if requirements:  # pip takes no empty list
            _call(
                f"lock file {lock}",
                [*command, "--requirement", str(list_)],
                "its packages cannot be installed",
                "check the index that pip uses (pip config list), or put the wheels beside the lock file",
            )
        if linked:
            (_site(new, version) / "dlbricks").symlink_to(_PACKAGE, target_is_directory=True)

    with _lock(folder):
        if not (folder / "bin" / "python").exists():
            _build(folder, f"lock file {lock}", sys.executable, fill)
    return folder / "bin" / "python"


_RUNTIMES = {"onnxruntime": "onnxruntime", "onnxruntime-gpu": "onnxruntime", "openvino": "openvino", "torch": "torch"}
"""Backend of a package whose versions can be compared."""

_ON_GPU = {"onnxruntime-gpu": ("onnxruntime-gpu[cuda,cudnn]", "cupy-cuda12x")}
"""Further requirements of packages that need a GPU: its libraries, and the library with which the worker watches it."""

_WORKER = ("ml_dtypes", "msgspec", "onnx", "onnx-graphsurgeon", "protobuf", "psutil", "typing_extensions")
"""Packages that the worker needs in addition to a runtime and NumPy, in the versions that run here."""


@dataclass(frozen=True, slots=True)
class RuntimeVersion:
    """A version of a runtime, and the Python that has it.

    Attributes:
        name: As answers name it: the requirement, or the path of the interpreter.
        backend: Name of the backend.
        python: The interpreter; its environment has the runtime and dlbricks.
    """

    name: str
    backend: str
    python: Path


def version_of(text: str, backend: str = "onnxruntime", *, copy: int = 0) -> RuntimeVersion:
    """Return a version of a runtime; its environment is created first if it is missing (seconds to a minute).

    The environment has the runtime, NumPy and the worker's packages, from the index that pip is configured for. ``uv``
    installs it if it is on the PATH, otherwise pip.

    Args:
        text: A requirement like ``onnxruntime==1.22.1``, a bare version of the backend, or the path of a Python with
            the runtime and dlbricks in its environment.
        backend: Backend of a bare version or of a path.
        copy: Number of the environment, to compare a version with itself.

    Raises:
        UsageError: The text is of another form, or dlbricks runs no versions of the package.
        BackendUnavailable: It cannot be installed, it needs a GPU and none is here, or the environment cannot be
            written; nothing is left of it then.
    """
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import InvalidVersion, Version

    if os.sep in text:
        if not Path(text).is_file():
            raise UsageError(f"there is no Python {text}", remedy="name the interpreter of an environment")
        return RuntimeVersion(text, backend, Path(text).absolute())
    try:
        requirement = Requirement(text if "=" in text else f"{backend}=={text}")
        (pin,) = requirement.specifier
        Version(pin.version)
    except (InvalidRequirement, InvalidVersion, ValueError) as error:
        raise UsageError(
            f"{text!r} is no version of a runtime", remedy="write onnxruntime==1.22.1, or the path of a Python"
        ) from error
    if requirement.name not in _RUNTIMES or pin.operator != "==":
        raise UsageError(
            f"{text!r} names no version that can be compared", remedy=f"use {', '.join(_RUNTIMES)} with =="
        )
    if requirement.name in _ON_GPU and not probe_system().gpus:
        raise BackendUnavailable(
            f"{requirement} needs a GPU, and no driver reports one here",
            remedy=f"name a version of {_RUNTIMES[requirement.name]}, or run it on a machine with a GPU",
        )
    needs = [
        str(requirement),
        *_ON_GPU.get(requirement.name, ()),
        "numpy",
        *(f"{name}=={metadata.version(name)}" for name in _WORKER),
    ]
    parts = (*needs, str(copy), sys.version, str(_PACKAGE))
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    folder = cache_folder().absolute() / "versions" / f"{requirement.name}-{pin.version}-{digest}"
    with _lock(folder):
        if not (folder / "bin" / "python").exists():
            _build(folder, str(requirement), sys.executable, lambda new: _fill_with(requirement.name, needs, new))
    return RuntimeVersion(str(requirement), _RUNTIMES[requirement.name], folder / "bin" / "python")


def _fill_with(package: str, needs: list[str], new: Path) -> None:
    """Install requirements with their dependencies, and link the running code."""
    python, uv = str(new / "bin" / "python"), shutil.which("uv")
    pip = [python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    command = pip if uv is None else [uv, "pip", "install", "--python", python]
    _call(
        needs[0],
        [*command, "--only-binary", ":all:", *needs],
        "it cannot be installed",
        f"name a version of {package} that has a wheel for Python {sys.version_info.major}.{sys.version_info.minor}",
    )
    (_site(new, f"{sys.version_info.major}.{sys.version_info.minor}") / "dlbricks").symlink_to(
        _PACKAGE, target_is_directory=True
    )


def _requirements(lock: Path, text: bytes) -> tuple[list[str], bool]:
    """Return a lock's choice for this Python as requirement lines for pip, and if dlbricks is a link."""
    from packaging.pylock import PackageDirectory, PackageWheel, Pylock, PylockSelectError, PylockValidationError
    from packaging.utils import parse_wheel_filename

    lines, linked = [], True
    try:
        for package, source in Pylock.from_dict(tomllib.loads(text.decode())).select():
            if isinstance(source, PackageWheel):
                hashes = [f"{kind}:{value}" for kind, value in sorted(source.hashes.items())]
                if not all(_HASH.fullmatch(digest) for digest in hashes):  # a line of pip's list, and no more than that
                    raise UsageError(f"{lock} is no lock file: {package.name} has a hash that is none")
                words = " ".join(f"--hash={digest}" for digest in hashes)
                lines.append(f"{package.name}=={parse_wheel_filename(source.filename)[1]} {words}")
                linked = linked and package.name != "dlbricks"
            elif package.name != "dlbricks" or not isinstance(source, PackageDirectory):
                raise BackendUnavailable(
                    f"lock file {lock}: of {package.name} it has no wheel for this Python and machine",
                    remedy="lock it with one: what is built from sources has no hash",
                )
    except PylockSelectError as error:
        raise BackendUnavailable(
            f"lock file {lock}: {error}", remedy="take a Python and a machine that the lock is for"
        ) from error
    except (ValueError, PylockValidationError) as error:  # of TOML, and of names and versions in it, too
        raise UsageError(f"{lock} is no lock file: {error}", remedy="name a pylock.toml; pip lock makes one") from error
    return sorted(lines), linked


def _fill_from_pins(environment: Environment, new: Path) -> None:
    _call(
        f"backend {environment.backend}",
        [str(new / "bin" / "python"), *_PIP, "--requirement", str(environment.pins)],
        "its packages cannot be installed",
        "check the network, or the index that pip uses (pip config list), and install again",
    )
    (_site(new, environment.python) / "dlbricks").symlink_to(_PACKAGE, target_is_directory=True)


def _build(folder: Path, whose: str, python: str, fill: Callable[[Path], None]) -> None:
    """Build an environment in a temporary folder and move it to its place; an existing one is kept until then.

    Args:
        folder: Final folder.
        whose: The backend or lock file, as errors name it.
        python: Its interpreter.
        fill: Installs the packages into a folder that has only Python and pip.
    """
    ours = os.path.lexists(folder / "bin" / "python") or (folder / "pyvenv.cfg").is_file()
    if folder.exists() and not ours and not (folder.is_dir() and not any(folder.iterdir())):
        raise BackendUnavailable(
            f"{folder} exists and is no environment of Python",
            remedy="move it away, or set DLBRICKS_CACHE to another folder",
        )
    for remains in folder.parent.glob(f".{folder.name}-*"):  # of an installation that was killed
        if not folder.exists() and (remains / "old").exists():  # just before the new one was there
            (remains / "old").rename(folder)
        shutil.rmtree(remains, ignore_errors=True)
    aside = folder.parent / f".{folder.name}-{uuid.uuid4().hex}"
    try:
        aside.mkdir()
        new = aside / "new"
        _call(whose, [python, "-m", "venv", str(new)], "an environment cannot be made", "")
        fill(new)
        if folder.exists() or folder.is_symlink():
            folder.rename(aside / "old")
        # Only its Python is used: it finds its packages relative to its folder. The scripts do not, and stay unused.
        try:
            new.rename(folder)
        except BaseException:
            if (aside / "old").exists():
                (aside / "old").rename(folder)
            raise
    except OSError as error:
        raise BackendUnavailable(
            f"the environment of {whose} cannot be written: {error}", remedy="set DLBRICKS_CACHE to a folder with room"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _site(folder: Path, python: str) -> Path:
    return folder / "lib" / f"python{python}" / "site-packages"


def own_variables() -> dict[str, str]:
    """Return this process's environment variables, without the variables that change pip's or Python's search."""
    return {name: value for name, value in os.environ.items() if name not in _FOREIGN}


def _call(whose: str, command: list[str], what: str, remedy: str) -> None:
    done = subprocess.run(
        command, env=own_variables(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        blamed = [line for line in said if line.startswith("ERROR")] or said
        reason = blamed[-1] if blamed else f"exit status {done.returncode}"
        if any("DO NOT MATCH THE HASHES" in line for line in said):
            names = [line.split()[0] for line in said if " from " in line and line.endswith(":")]
            reason = f"another hash than the lock's: {', '.join(names)}"
        raise BackendUnavailable(f"{whose}: {what}: {reason}", remedy=remedy)


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Let one process at a time install; another waits and finds it done."""
    path = folder.with_suffix(".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise BackendUnavailable(
            f"the cache folder cannot be written: {error}", remedy="set DLBRICKS_CACHE to a folder that can"
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
