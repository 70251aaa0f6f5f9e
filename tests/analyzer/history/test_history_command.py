"""``history`` on the command line: keys and exit codes that scripts rely on, and tables."""

from __future__ import annotations

from pathlib import Path

import dlbricks
import onnx
import pytest


@pytest.fixture
def place(nights) -> tuple[str, Path]:
    """The model, and a database in which a new version made it 6 % slower, by its Conv."""
    usual = dict.fromkeys(nights.bricks, 0.1)
    conv, *_ = nights.bricks
    for _ in range(20):
        nights.run(bricks=usual)
    for _ in range(5):
        nights.run(1.06, version="1.31.0", bricks=usual | {conv: 0.13})
    path = nights.store.place.path
    assert path is not None
    return str(nights.source.path), path


def test_a_change_ends_with_4_where_that_was_asked_for(cli, place) -> None:
    model, database = place

    def code(*options: str) -> int:
        return cli("history", model, "--db", database, *options).code

    assert code("--fail-on", "change") == 4
    assert code("--fail-on", "slower") == 4
    assert code("--fail-on", "faster") == 0
    assert code("--fail-on", "change", "--since", "2026-09-25") == 0
    assert code("--fail-on", "change", "--minimum-effect", "20%") == 0
    assert code("--since", "soon") == 2


def test_the_table_names_the_change_and_the_brick_to_blame(cli, place) -> None:
    model, database = place

    out = cli("history", model, "--db", database, "--runs").out

    assert "SLOWER x 1.0" in out
    assert "versions: onnxruntime 1.30.0 → 1.31.0; the machine did not move with it" in out
    blamed = next(line for line in out.splitlines() if "Conv" in line)
    assert blamed.split()[2] == "2", "occurrences"
    assert "latencies on a quiet machine" in out
    assert out.count("2026-09-") >= 15
    assert "and 10 more (--all lists them)" in out


def test_the_frame_has_a_row_per_series_or_per_run(place) -> None:
    model, database = place

    with dlbricks.Store.open(database) as store:
        found = dlbricks.history(dlbricks.find_models([model]), store=store)

    assert len(found.frame()) == 1
    assert list(found.frame(inner=True)["run.run"]) == [point.run for point in found.rows[0].points]
    assert found.to_json()["results"][0]["changes"][0]["cause"] == "versions"
    assert dlbricks.to_markdown(found).startswith("| model |")


def test_runs_that_were_never_quiet_are_counted(cli, nights) -> None:
    for quiet in (0.5, 0.0, 0.0):
        nights.run(quiet=quiet)

    out = cli("history", nights.source.path, "--db", nights.store.place.path).out

    assert "the machine was never quiet in 2 of 3 runs" in out


def test_what_is_not_stored_is_incomplete(cli, nights) -> None:
    done = cli("history", nights.source.path, "--db", nights.store.place.path)

    assert done.code == 3
    assert "nothing is stored" in done.out


def test_a_series_goes_on_where_the_file_changed_under_its_name(cli, tmp_path: Path, write_branches) -> None:
    model, database = tmp_path / "model.onnx", tmp_path / "versions.db"
    write_branches(model)
    assert cli("measure", model, "--db", database, "--visits", "10", "--label", "a1b2c3").code == 0
    text = onnx.printer.to_text(onnx.load(model))
    onnx.save(onnx.parser.parse_model(text.replace("Sigmoid", "Tanh")), model)
    assert cli("measure", model, "--db", database, "--visits", "10", "--label", "d4e5f6").code == 0

    (row,) = cli("history", model, "--db", database, "--json").json["results"]

    assert row["runs"] == 2
    assert [point["label"] for point in row["points"]] == ["a1b2c3", "d4e5f6"]
    assert len({point["versions"]["file"] for point in row["points"]}) == 2
    assert "d4e5f6" in cli("history", model, "--db", database, "--runs").out
    compared = cli("compare", model, "--by", "run", "--db", database)
    assert (compared.code, "dlbricks compare OLD NEW" in compared.out) == (3, True)


def test_other_sizes_and_other_given_values_are_series_of_their_own(cli, tmp_path: Path) -> None:
    model, database = tmp_path / "model.onnx", tmp_path / "sizes.db"
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 8] x, int64[2] size) => (float[a, b] y) '
    onnx.save(onnx.parser.parse_model(text + "{ y = Reshape(x, size) }"), model)
    of_sizes = [("--dim", "n=4", "--value", "size=8,4"), ("--dim", "n=4", "--value", "size=2,16"),
                ("--dim", "n=2", "--value", "size=2,8")]  # fmt: skip
    for words in of_sizes:
        assert cli("measure", model, *words, "--db", database, "--visits", "10").code == 0

    rows = [cli("history", model, *words, "--db", database, "--json").json["results"][0] for words in of_sizes]

    assert [row["runs"] for row in rows] == [1, 1, 1]
    values = "on other values of its inputs: give them with --value or --data"
    smaller, larger = (f"in other sizes (n={size}): give them with --dim or --batch" for size in (2, 4))
    assert rows[0]["left_out"] == [{"runs": 1, "difference": text} for text in (values, smaller)]
    assert rows[2]["left_out"] == [{"runs": 2, "difference": larger}]
    assert f"left out: 1 run {values}" in cli("history", model, *of_sizes[0], "--db", database).out
