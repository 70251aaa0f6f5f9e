"""``compare`` and ``advise`` on the command line: keys and exit codes that scripts rely on."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

COMPARE = {
    "base_ci95_ms", "other_ci95_ms",
    "name", "base", "other", "basis", "base_ms", "other_ms", "ratio", "ratio_ci95", "verdict", "reason", "gain_ms",
    "base_measured_ms", "base_measured_ci95_ms", "other_measured_ms", "other_measured_ci95_ms", "base_estimate_ms",
    "base_estimate_ci95_ms", "other_estimate_ms", "other_estimate_ci95_ms", "base_undisturbed_ms",
    "base_undisturbed_ci95_ms", "other_undisturbed_ms", "other_undisturbed_ci95_ms", "apart", "layers", "missing",
    "error",
}  # fmt: skip
LAYER = {
    "key", "operators", "names", "occurrences", "base_ms", "other_ms", "ratio", "ratio_ci95", "verdict", "reason",
    "gain_ms", "form", "apart",
}  # fmt: skip
ADVISE = {
    "name", "best", "command", "ties", "ranking", "runner_up", "default", "over_runner_up", "over_default",
    "bricks_ms", "lower_bound_ms", "mixing_ms", "mixed", "reason", "remedy", "error",
}  # fmt: skip


@pytest.fixture
def place(bench) -> tuple[str, Path]:
    """The model and a database in which torch takes half as long again."""
    bench.run(bench.plain, ms=1.0, bricks=bench.bricks(0.1))
    bench.run(bench.torch, ms=1.5, bricks=bench.bricks(0.2))
    path = bench.store.place.path
    assert path is not None
    return str(bench.source.path), path


def test_compare_answers_with_the_documented_keys(cli, place) -> None:
    model, database = place

    done = cli("compare", model, "--db", database, "--json")

    (row,) = done.json["results"]
    assert done.code == 0
    assert set(row) == COMPARE
    assert set(row["layers"][0]) == LAYER
    assert (row["verdict"], row["base"], row["other"]) == ("SLOWER", "onnxruntime", "torch")
    assert done.json["minimum_effect"] == pytest.approx(0.03)
    assert (done.json["base"], done.json["by"]) == ("onnxruntime", "combination")
    assert [side["backend"] for side in done.json["sides"]] == ["onnxruntime", "torch"]


def test_a_limit_that_is_crossed_ends_with_4(cli, place) -> None:
    model, database = place

    def code(*options: str) -> int:
        return cli("compare", model, "--db", database, *options).code

    assert code("--fail-on", "slower") == 4
    assert code("--fail-on", "faster") == 0
    assert code("--fail-on", "faster", "--base", "torch") == 4
    assert code("--fail-on", "slower", "--minimum-effect", "80%") == 0
    assert code("--fail-on", "unclear", "--fail-on", "slower") == 4


def test_the_answer_stands_on_stdout_where_a_limit_is_crossed(cli, place) -> None:
    model, database = place

    done = cli("compare", model, "--db", database, "--fail-on", "slower", "--json")

    assert done.code == 4
    assert done.json["results"][0]["verdict"] == "SLOWER"
    assert done.err == ""


def test_one_side_is_incomplete(cli, place) -> None:
    model, database = place

    compared = cli("compare", model, "--db", database, "--backend", "torch")
    advised = cli("advise", model, "--db", database, "--backend", "torch")

    assert compared.code == advised.code == 3
    assert "nothing to compare with: only torch is stored" in compared.out
    assert "run: dlbricks measure" in advised.out


def test_layers_and_plots(cli, place, tmp_path: Path) -> None:
    model, database = place

    done = cli("compare", model, "--db", database, "--layers", "--plot", tmp_path / "bricks.png")

    assert done.code == 0
    assert "by brick" in done.out
    assert done.err == f"drawn: {tmp_path / 'bricks.png'}\n"
    assert (tmp_path / "bricks.png").read_bytes().startswith(b"\x89PNG")


def test_csv_has_a_row_for_each_brick(cli, place) -> None:
    model, database = place

    found = list(csv.DictReader(io.StringIO(cli("compare", model, "--db", database, "--format", "csv").out)))

    assert len(found) == 4
    assert {row["name"] for row in found} == {"branches"}
    assert {row["layer.operators"] for row in found} == {"Conv", "Relu", "Sigmoid", "Add"}
    assert all(float(row["layer.base_ms"]) > 0 for row in found)
    assert not any(value.startswith(("[", "{")) for row in found for value in row.values())
    assert {row["layer.form.inputs"] for row in found} >= {"float[1,4,16,16]"}


def test_wrong_usage_is_one_line(cli, place) -> None:
    model, database = place

    assert cli("compare", model, "--db", database, "--base", "openvino").error.startswith("no side of the comparison")
    assert "is no share" in cli("compare", model, "--db", database, "--minimum-effect", "much").error
    assert cli("compare", model, "--db", database, "--by", "moon").code == 2
    assert cli("compare", model, "--db", "none.db").code == 1


def test_advise_answers_with_the_documented_keys(cli, place) -> None:
    model, database = place

    done = cli("advise", model, "--db", database, "--json")

    (row,) = done.json["results"]
    assert done.code == 0
    assert set(row) == ADVISE
    assert row["best"] == "onnxruntime"
    assert [one["verdict"] for one in row["ranking"]] == [None, "SLOWER"]
    assert row["command"].startswith(f"dlbricks measure {model} --backend onnxruntime")


def test_advise_shows_the_best_and_what_decides_it(cli, place) -> None:
    model, database = place

    out = cli("advise", model, "--db", database).out

    assert "best is onnxruntime, 1.0" in out
    assert "layers that decide it over torch:" in out
    assert "1  onnxruntime" in out
