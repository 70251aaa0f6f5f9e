"""``compare`` and ``advise`` on the command line: keys and exit codes that scripts rely on."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def place(bench) -> tuple[str, Path]:
    """The model and a database in which torch takes half as long again."""
    bench.run(bench.plain, ms=1.0, bricks=bench.bricks(0.1))
    bench.run(bench.torch, ms=1.5, bricks=bench.bricks(0.2))
    path = bench.store.place.path
    assert path is not None
    return str(bench.source.path), path


def test_a_limit_that_is_crossed_ends_with_4(cli, place) -> None:
    model, database = place

    def code(*options: str) -> int:
        done = cli("compare", model, "--db", database, *options, "--json")
        assert (done.json["results"][0]["error"], done.err) == (None, "")  # the answer stands on stdout all the same
        return done.code

    assert code("--fail-on", "slower") == 4
    assert code("--fail-on", "faster") == 0
    assert code("--fail-on", "faster", "--base", "torch") == 4
    assert code("--fail-on", "slower", "--minimum-effect", "80%") == 0
    assert code("--fail-on", "unclear", "--fail-on", "slower") == 4


def test_layers_and_plots(cli, place, tmp_path: Path) -> None:
    model, database = place

    done = cli("compare", model, "--db", database, "--layers", "--plot", tmp_path / "bricks.png")

    plain = cli("compare", model, "--db", database).out

    assert done.code == 0
    assert "by brick" in done.out
    assert "Sigmoid" in done.out
    assert "would gain if it ran the brick as fast" in done.out
    assert "SLOWER" in plain
    assert "base: onnxruntime; SAME is within 0.03" in plain
    assert "Sigmoid" not in plain
    assert done.err == f"drawn: {tmp_path / 'bricks.png'}\n"
    assert (tmp_path / "bricks.png").read_bytes().startswith(b"\x89PNG")


def test_wrong_usage_is_one_line(cli, place) -> None:
    model, database = place

    assert cli("compare", model, "--db", database, "--base", "openvino").error.startswith("no side of the comparison")
    assert "is not a share" in cli("compare", model, "--db", database, "--minimum-effect", "much").error
    assert cli("compare", model, "--db", database, "--by", "moon").code == 2
    assert cli("compare", model, "--db", "none.db").code == 1


def test_one_side_is_incomplete(cli, place) -> None:
    model, database = place

    compared = cli("compare", model, "--db", database, "--backend", "torch")
    advised = cli("advise", model, "--db", database, "--backend", "torch")

    assert compared.code == advised.code == 3
    assert "nothing to compare with: only torch is stored" in compared.out
    assert "another runtime is measured by: dlbricks measure" in advised.out
