"""Skipped tests on continuous integration: each for a reason that holds there, or the run fails.

A test that skips because a package is not installed, on a machine where it is, would hide that nothing of it was tried.
"""

from __future__ import annotations

import importlib.util
import os
import re

import pytest

_INHERENT = re.compile(
    r"(PyTorch|MXNet|OpenVINO) (has no|cannot)|does not compute in \w+ on this CPU|one core|"
    r"no CUDA device|there is (a CUDA device|CUDA)|root may|"
    r"cuDNN, or (gcc|the library of a driver|the cuBLAS that it plans with)|cuDNN is installed here|"
    r"the zoo extra is installed|no PostgreSQL server|"
    r"runs in another environment|no Chromium is found|dlbricks backends install mxnet|needs Python 3\.11"
)
"""What a runtime does not express, and what a machine cannot show that has no GPU, driver, server or second core (or
has what a test wants to be missing)."""

_MODULES = {"pytorch": "torch"}
"""Where the name in a reason, in lower case, is not that of the module."""

_ABSENT = re.compile(r"could not import '([\w.]+)'|^([\w., ]+?) (?:is|are) not installed")

_unexplained: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _unexplained and _strict(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _unexplained and _strict(config):
        terminalreporter.section("skipped on continuous integration without a reason that holds here", red=True)
        for line in _unexplained:
            terminalreporter.line(line)


def _strict(config: pytest.Config) -> bool:
    """On continuous integration, in the process that reports."""
    return os.environ.get("CI", "").lower() not in {"", "0", "false"} and not hasattr(config, "workerinput")


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not report.skipped or hasattr(report, "wasxfail") or not isinstance(report.longrepr, tuple):
        return
    reason = report.longrepr[2].removeprefix("Skipped: ")
    if not holds(reason):
        _unexplained.append(f"{report.nodeid}: {reason}")


def holds(reason: str) -> bool:
    """Whether a reason to skip holds on this machine."""
    absent = _ABSENT.search(reason)
    if absent is None:
        return bool(_INHERENT.search(reason))
    modules = re.findall(r"[\w.]+", re.sub(r"\band\b", "", absent[1] or absent[2]))
    names = (module.partition(".")[0].lower() for module in modules)
    return any(importlib.util.find_spec(_MODULES.get(name, name)) is None for name in names)
