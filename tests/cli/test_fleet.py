"""The commands of a fleet: what they print, and how they end."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def file(cli, branches: Path, here: Path) -> Path:
    """A campaign of two cells, one on each of two nodes."""
    pytest.importorskip("procrastinate")
    assert cli("generate", branches, "--graph", "source", "-o", "suite").code == 0
    path = here / "campaign.toml"
    path.write_text(
        'campaign = "c"\nnodes = ["alpha", "beta"]\n[[stack]]\nbackend = "onnxruntime"\n[[suite]]\npath = "suite"\n'
        '[conditions]\ncache = "hot"\n[pace]\nvisits = 10\nprocesses = 1\nsessions = 1\n'
    )
    return path


@pytest.mark.slow
def test_from_a_file_to_results(cli, file, url, here, monkeypatch):
    monkeypatch.setenv("DLBRICKS_DB", url)

    planned, again = cli("fleet", "plan", file, "--json"), cli("fleet", "plan", file)
    before = cli("fleet", "status")
    done = cli("fleet", "work", "--node", "alpha", "--state", here / "state", "--busy", "100%", "--once", "--json")
    after = cli("fleet", "status", "--json")

    assert {name: planned.json[name] for name in ("new", "waiting", "blobs")} == {"new": 2, "waiting": 0, "blobs": 1}
    assert {row["node"]: row["state"] for row in planned.json["results"]} == {"alpha": "new", "beta": "new"}
    assert again.out.endswith("campaign c, 2 cells: 2 waiting already\n")
    assert "ready in" in " ".join(before.out.split())
    assert (done.code, done.json["jobs"], done.json["complete"]) == (0, 1, 1)
    assert "done: c: suite on onnxruntime, 1 thread, hot, float32" in done.err
    (campaign,) = after.json["results"]
    assert (campaign["cells"], campaign["complete"], campaign["waiting"]) == (2, 1, 1)
    assert campaign["bricks_measured"] == campaign["bricks"] == 4
    assert [node["node"] for node in after.json["nodes"]] == ["alpha", "beta"]
    assert cli("estimate", here / "branches.onnx", "--json").json["results"][0]["estimate_ms"] > 0


def test_what_is_missing_is_said(cli, file, url, monkeypatch):
    monkeypatch.delenv("DLBRICKS_DB", raising=False)

    assert "a worker needs the name of its node" in cli("fleet", "work").error
    assert "a fleet meets in a PostgreSQL database" in cli("fleet", "work", "--node", "alpha").error
    assert "campaign none.toml cannot be read" in cli("fleet", "plan", "none.toml").error
    assert "holds no fleet; begin one" in cli("fleet", "status", "--db", url).error
    bad = cli("fleet", "work", "--node", "../alpha", "--db", url)
    assert (bad.code, bad.error.partition(";")[0]) == (2, "'../alpha' cannot be the name of a node")
