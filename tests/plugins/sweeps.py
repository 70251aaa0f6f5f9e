"""Sweeps: checks with many cases, of which a seeded sample runs by default and all of them with ``--sweep all``.

``@pytest.mark.sweep(n)`` keeps n of the cases of a function (of each class of cases, where ``by`` names a parameter),
drawn with ``--seed``, which defaults to a constant: the same tests for everybody, every time. ``@pytest.mark.slow``
marks a test whose kind of check runs elsewhere in a smaller form, or that takes many seconds, and the fixture
``thorough`` shows a test with a loop of its own how much to do. Properties try fewer examples, too. ``--sweep rest``
runs what ``--sweep sample`` leaves out.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from collections import defaultdict

import hypothesis
import pytest

# Else every run rewrites all tests, and each of the hundreds of processes that tests start compiles all it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sweeps")
    group.addoption("--sweep", choices=("sample", "rest", "all"), default="sample", help="which cases of sweeps to run")
    group.addoption("--seed", default="dlbricks", help="seed of the sample")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sweep(n, by=None): of its cases, n run by default (of each value of 'by')")
    config.addinivalue_line("markers", "slow: takes more than a few seconds: not in the sample")
    hypothesis.settings.register_profile("sample", max_examples=40)
    if config.getoption("sweep") == "sample":
        hypothesis.settings.load_profile("sample")


def pytest_report_header(config: pytest.Config) -> str:
    return f"sweeps: {config.getoption('sweep')}, seed {config.getoption('seed')!r}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: many tests wait for a process that they started, or for a time limit."""
    return (os.cpu_count() or 1) + 1


@pytest.fixture
def thorough(request: pytest.FixtureRequest) -> bool:
    """Whether to do all of a long check, not a sample of it."""
    return request.config.getoption("sweep") != "sample"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = config.getoption("sweep")
    if chosen == "all":
        return
    sample = _sample(items, config.getoption("seed"))
    if chosen == "rest":
        keep = [item for item in items if item not in sample or _goes_on(item)]
    else:
        keep = [item for item in items if item in sample]
    kept = set(keep)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = keep


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: no garbage collection need look at it again."""
    gc.collect()
    gc.freeze()


def _goes_on(item: pytest.Item) -> bool:
    """Whether a test of the sample does more of its check when asked for all."""
    property_based = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    return property_based or "thorough" in getattr(item, "fixturenames", ())


def _sample(items: list[pytest.Item], seed: str) -> set[pytest.Item]:
    sample, cases = set[pytest.Item](), defaultdict[tuple[str, object], list[pytest.Item]](list)
    for item in items:
        mark = item.get_closest_marker("sweep")
        if item.get_closest_marker("slow"):
            continue
        if mark is None:
            sample.add(item)
        else:
            function = item.nodeid.partition("[")[0]
            by = mark.kwargs.get("by")
            cases[function, str(item.callspec.params[by]) if by else None].append(item)
    for (function, kind), members in cases.items():
        size = members[0].get_closest_marker("sweep").args[0]
        sample.update(random.Random(f"{seed}:{function}:{kind}").sample(members, min(size, len(members))))
    return sample
