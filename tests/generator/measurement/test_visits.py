"""Who is asked for what, and in which order: the visits of a seeded run, line by line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dlbricks.generator.measurement.run import run
from dlbricks.generator.worker.client import Worker
from dlbricks.generator.worker.messages import Load, Request, Time

BACKEND = Path(__file__).parents[1] / "sleeping_backend.py"
GOLDEN = Path(__file__).with_name("visits.txt")


def test_a_seeded_run_visits_what_it_always_visited(install_backend, small_suite, small_models, store, monkeypatch):
    """Two models beside their bricks, two processes of two sessions; a change that is meant is written with
    DLBRICKS_WRITE_GOLDENS=1."""
    install_backend("sleeping", "SleepingBackend", BACKEND.read_text())
    places: list[Worker] = []  # kept: an id is given again once a worker is gone
    said: list[str] = []
    ask = Worker.ask

    def heard(self: Worker, request: Request, *more: Any, **how: Any) -> Any:
        if self not in places:
            places.append(self)
        said.append(f"{places.index(self)} {spelt(request)}")
        return ask(self, request, *more, **how)

    monkeypatch.setattr(Worker, "ask", heard)
    run(
        small_suite,
        store=store,
        models=small_models,
        backend="sleeping",
        cache="hot",
        visits=11,
        processes=2,
        sessions=2,
        seed=3,
    )

    text = "".join(f"{one}\n" for one in said)
    if "DLBRICKS_WRITE_GOLDENS" in os.environ:
        GOLDEN.write_text(text)
    assert text.splitlines() == GOLDEN.read_text().splitlines()


def spelt(request: Request) -> str:
    """A request in one line: what is loaded, or what is executed how often."""
    kind = type(request).__name__.lower()
    if isinstance(request, Time):
        return f"{kind} {short(request.id)} loops={request.loops} warmups={request.warmups} cold={request.cold}"
    if isinstance(request, Load):
        return f"{kind} {short(request.id)} " + " ".join(short(one.id) for one in request.members)
    return kind


def short(name: str) -> str:
    """An identity with keys cut to eight digits."""
    return ":".join(part[:8] for part in name.split(":"))
