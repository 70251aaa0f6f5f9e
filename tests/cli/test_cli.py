"""The command line: keys and exit codes that scripts rely on, what goes to stdout, and what is left out."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from dlbricks.cli import main
from dlbricks.generator.machine.nvml import has_driver

Cli = Callable[..., Any]

GENERATE = {"name", "layers", "folded", "sequences", "unique", "macs", "weight_bytes", "skipped", "error"}
MEASURE = {
    "name", "backend", "latency_ms", "ci95_ms", "undisturbed_ms", "p50_ms", "p90_ms", "p99_ms", "load_ms",
    "first_run_ms", "verdict", "error", "threads",
}  # fmt: skip
ALGORITHMS = ["basic", "extended", "unfused", "unpacked"]
ESTIMATE = {
    "name", "system", "stack", "backend", "device", "threads", "cache", "dtype", "granularity", "graph", "batch",
    "dims",
    "estimate_ms", "ci95_ms", "sequential_ms", "critical_path_ms", "lower_bound_sequential_ms",
    "lower_bound_critical_path_ms", "benanza_ratio_sequential", "benanza_ratio_critical_path", "measured_ms", "ratio",
    "ratio_ci95", "paired", "disturbed", "disturbance", "undisturbed_ms", "measured_undisturbed_ms", "quiet",
    "host_ms", "coverage", "known_ms", "missing",
}  # fmt: skip


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, write_branches: Callable[[Path], Path]) -> Path:
    """A folder with a model, its suite, and a database that holds its bricks and itself."""
    folder = tmp_path_factory.mktemp("measured")
    write_branches(folder / "branches.onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys.modules["dlbricks.cli.commands"], "prepare", lambda: None)  # as for the fixture cli
        for line in ("generate branches.onnx -g 1 --graph source -o suite", "run suite --with branches.onnx"):
            patch.setattr(sys, "argv", ["dlbricks", *line.split()])
            with pytest.raises(SystemExit) as ended:
                main()
            assert not ended.value.code
    return folder


@pytest.fixture
def work(measured: Path, here: Path) -> Path:
    """A working folder with copies of what ``measured`` holds."""
    shutil.copytree(measured, here, dirs_exist_ok=True)
    return here


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


# generate -----------------------------------------------------------------------------------------------------------


def test_generate_answers_with_the_documented_keys(cli: Cli, branches: Path) -> None:
    done = cli("generate", branches, "-g", "1", "--graph", "source", "-o", "suite", "--json")

    answer = done.json
    (row,) = answer["results"]
    assert done.code == 0
    assert answer["schema"] == 1
    assert set(row) >= GENERATE
    assert (row["name"], row["layers"], row["folded"], row["sequences"], row["unique"]) == ("branches", 6, 0, 6, 4)
    assert (row["macs"], row["skipped"], row["error"]) == (2 * 4 * 4 * 9 * 16 * 16, [], None)
    assert {name: answer[name] for name in ("suite", "granularity", "layers", "folded", "sequences", "unique")} == {
        "suite": "suite", "granularity": 1, "layers": 6, "folded": 0, "sequences": 6, "unique": 4,
    }  # fmt: skip
    assert len(list(Path("suite/bricks").iterdir())) == 4


def test_several_values_of_a_dimension_give_one_model_each(cli: Cli, here: Path) -> None:
    done = cli("generate", "gpt2", "nosuch", "--dim", "sequence_length=8,16", "-o", "suite", "--json")

    eight, wrong, sixteen = done.json["results"]
    assert (eight["name"], sixteen["name"]) == ("gpt2@sequence_length=8", "gpt2@sequence_length=16")
    assert (eight["bound"]["sequence_length"], sixteen["bound"]["sequence_length"]) == (8, 16)
    assert wrong["name"] == "nosuch"
    assert cli("generate", "gpt2", "--dim", "sequence_length=8,x", "-o", "suite").code == 2


@pytest.mark.parametrize("command", ["generate {} -o suite", "measure {}", "models export {} -o out"])
def test_a_typing_error_is_the_error_alone(cli: Cli, here: Path, command: str) -> None:
    done = cli(*command.format("sqeezenet").split())

    assert done.code == 1
    assert done.out == ""
    assert "did you mean squeezenet" in done.error
    assert list(here.glob("*.db*")) == []


@pytest.mark.parametrize(
    "command", ["run suite --with nosuch", "run suite --option nosuch=1", "measure branches.onnx --dtype nosuch"]
)
def test_a_refused_command_leaves_no_database(cli: Cli, branches: Path, command: str) -> None:
    assert cli("generate", branches, "-o", "suite").code == 0

    done = cli(*command.split())

    assert done.code in {1, 2}
    assert "nosuch" in done.error
    assert list(Path().glob("*.db*")) == []


# run and measure ----------------------------------------------------------------------------------------------------


def test_run_reuses_what_is_stored(cli: Cli, work: Path) -> None:
    done = cli("run", "suite", "--json")

    answer = done.json
    assert done.code == 0
    assert answer["results"] == []
    assert {name: answer[name] for name in ("bricks", "measured", "reused", "failed")} == {
        "bricks": 4, "measured": 0, "reused": 4, "failed": 0,
    }  # fmt: skip
    assert all(isinstance(answer[name], float) for name in ("wall_s", "timed_s", "prepare_s"))
    assert [part["threads"] for part in answer["by_threads"]] == [1]
    assert cli("run", "suite", "--threads", "1").out.startswith(
        "4 bricks: 4 skipped (measured before), 0 failed, 0 measured"
    )


def test_a_dry_run_forecasts_and_stores_nothing(cli: Cli, work: Path) -> None:
    before = Path("dlbricks.db").read_bytes()
    fresh = cli("run", "suite", "--with", "branches.onnx", "--again", "all", "--dry-run", "--db", "fresh.db", "--json")
    short = cli("run", "suite", "--again", "all", "--dry-run", "--budget", "0.1s")

    assert (fresh.code, fresh.json["dry_run"], fresh.json["forecast_s"] > 0) == (0, True, True)
    counts = ("bricks", "measured", "reused", "remaining", "models", "models_remaining")
    assert [fresh.json[name] for name in counts] == [4, 0, 0, 4, 0, 1]
    assert not Path("fresh.db").exists()
    assert short.code == 0
    assert "4 bricks: 0 skipped (measured before), 0 failed, 4 to be measured in about" in short.out
    assert "more than --budget (0.1 s)" in short.out
    assert "not measured when" not in short.out
    assert Path("dlbricks.db").read_bytes() == before


def test_visits_are_counted_and_no_match_for_a_budget(cli: Cli, work: Path) -> None:
    done = cli("run", "suite", "--visits", "12", "--again", "all", "--json")
    both = cli("run", "suite", "--visits", "12", "--budget", "5s")
    none = cli("measure", "branches.onnx", "--visits", "0")

    assert (done.code, done.json["measured"]) == (0, 4)
    assert (both.code, none.code) == (2, 2)
    assert "--budget takes as many visits as fit into it; leave --visits out" in both.error


def test_models_may_follow_with_as_a_list(cli: Cli, work: Path) -> None:
    shutil.copy("branches.onnx", "other.onnx")

    done = cli("run", "suite", "--with", "branches.onnx", "other.onnx", "--dry-run", "--json")

    assert done.code == 0
    assert done.json["models"] == 1  # stored already; the same network twice is one model
    assert cli("run", "suite", "other.onnx").error.startswith("'other.onnx' is a second suite")


@pytest.mark.slow
def test_algorithms_are_measured_counted_and_compete(cli: Cli, work: Path) -> None:
    counts = ("measured", "reused", "remaining", "algorithms", "algorithms_remaining")

    forecast = cli("run", "suite", "--algorithms", "--dry-run", "--json")
    done = cli("run", "suite", "--algorithms", "--json")
    again = cli("run", "suite", "--algorithms")

    assert [forecast.json[name] for name in counts] == [0, 4, 0, 0, 16]
    assert [done.json[name] for name in counts] == [0, 4, 0, 16, 0]
    assert (forecast.code, done.code, again.code) == (0, 0, 0)
    assert done.json["algorithms_failed"] == len(done.json["results"]) == 0
    assert "other algorithms: 16 skipped (measured before), 0 not offered, 0 failed, 0 measured" in again.out
    (row,) = cli("estimate", "branches.onnx", "--explain", "--json").json["results"]
    assert {part["fastest_variant"] for part in row["parts"]} <= {"", *ALGORITHMS}
    assert all(part["lower_bound_ms"] <= part["latency_ms"] for part in row["parts"])


@pytest.mark.slow
def test_a_precision_is_computed_in_and_selected(cli: Cli, work: Path) -> None:
    assert cli("run", "suite", "--with", "branches.onnx", "--dtype", "int8", "--json").json["measured"] == 4
    assert cli("estimate", "branches.onnx").code == 2  # which precision is meant?

    done = cli("estimate", "branches.onnx", "--dtype", "int8", "--json")

    (row,) = done.json["results"]
    assert (done.code, row["dtype"]) == (0, "int8")
    assert row["measured_ms"] > 0
    assert cli("measure", "branches.onnx", "--dtype", "int8", "--json").code == 0
    refused = cli("run", "suite", "--dtype", "bfloat16")
    assert (refused.code, refused.out) == (2, "")
    assert "it has float32, int8" in refused.error


def test_measure_answers_with_the_documented_keys(cli: Cli, work: Path) -> None:
    Path("broken.onnx").write_bytes(b"no model")

    done = cli("measure", "branches.onnx", "broken.onnx", "--visits", "12", "--json")

    whole, broken = done.json["results"]
    assert done.code == 3
    assert set(whole) >= MEASURE
    assert set(broken) == set(whole)
    assert whole["ci95_ms"][0] <= whole["latency_ms"] <= whole["ci95_ms"][1]
    assert 0 < whole["p90_ms"] <= whole["p99_ms"]
    assert whole["undisturbed_ms"] > 0
    assert whole["load_ms"] > 0
    assert whole["first_run_ms"] > 0
    assert (broken["latency_ms"], broken["verdict"]) == (None, None)
    assert "broken.onnx" in broken["error"]


UNBOUND = ("--option", "pinning=off")
"""Several threads need no core each."""


@pytest.mark.slow
def test_several_numbers_of_threads_are_measured_in_turn_into_one_database(cli: Cli, work: Path) -> None:
    more = (*UNBOUND, "--visits", "4", "--db", "threads.db")
    command = ("run", "suite", "--with", "branches.onnx", "--threads", "1,2", *more)
    assert cli("run", "suite", *more).code == 0

    forecast = cli(*command, "--dry-run", "--json").json
    done = cli(*command, "--json")
    again = cli("run", "suite", "--threads", "2,1", *more)

    parts = done.json["by_threads"]
    assert [part["threads"] for part in forecast["by_threads"]] == [1, 2]
    assert [forecast[name] for name in ("bricks", "reused", "remaining", "models_remaining")] == [8, 4, 4, 2]
    assert done.code == again.code == 0
    assert [(part["threads"], part["measured"], part["reused"]) for part in parts] == [(1, 0, 4), (2, 4, 0)]
    assert [done.json[name] for name in ("measured", "reused", "models", "run")] == [4, 4, 2, None]
    assert len({part["run"] for part in parts} - {None}) == 2
    assert done.json["wall_s"] == pytest.approx(sum(part["wall_s"] for part in parts))
    assert [line for line in again.out.splitlines() if not line.startswith(" ")] == ["2 threads:", "1 thread:"]
    assert again.out.count("  4 bricks: 4 skipped (measured before), 0 failed, 0 measured") == 2
    ask = ("estimate", "branches.onnx", "--db", "threads.db", "--threads")
    one, two = cli(*ask, "1,2,1", "--json").json["results"]
    assert [(row["name"], row["threads"]) for row in (one, two)] == [("branches@t1", 1), ("branches@t2", 2)]
    assert None not in {one["estimate_ms"], two["estimate_ms"]}
    assert cli(*ask, "1,2", "--plot", "plots").code == 0
    assert {path.name for path in Path("plots").iterdir()} >= {"layers-branches@t1.png", "layers-branches@t2.png"}
    missing = cli(*ask, "1,7")
    assert missing.code == 3
    assert "branches@t7: 6 sequences not measured" in missing.out


# estimate -----------------------------------------------------------------------------------------------------------


def test_estimate_answers_with_the_documented_keys(cli: Cli, work: Path) -> None:
    done = cli("estimate", "branches.onnx", "--json")

    (row,) = done.json["results"]
    assert done.code == 0
    assert set(row) >= ESTIMATE
    assert row["coverage"] == {"sequences": 1.0, "macs": 1.0}
    assert row["missing"] == []
    assert row["ci95_ms"][0] <= row["estimate_ms"] <= row["ci95_ms"][1]
    assert 0 < row["critical_path_ms"] < row["sequential_ms"] == row["known_ms"]
    assert row["lower_bound_sequential_ms"] <= row["sequential_ms"]
    assert row["measured_ms"] > 0
    assert row["ratio"] == pytest.approx(row["estimate_ms"] / row["measured_ms"])
    assert row["ratio_ci95"][0] < row["ratio"] < row["ratio_ci95"][1]
    assert row["paired"] is True
    assert row["disturbed"] is (row["disturbance"] > 0.1)
    assert row["undisturbed_ms"] > 0
    assert 0 <= row["quiet"] <= 1
    strict = cli("estimate", "branches.onnx", "--strict")
    assert strict.code == (3 if row["disturbed"] or row["unstable_share"] > 0.5 else 0)
    assert strict.out == cli("estimate", "branches.onnx").out


def test_an_incomplete_estimate_has_no_totals_and_says_what_is_missing(cli: Cli, work: Path) -> None:
    done = cli("estimate", "branches.onnx", "-g", "2", "--json")

    (row,) = done.json["results"]
    assert done.code == 3
    assert (row["estimate_ms"], row["sequential_ms"], row["critical_path_ms"], row["ratio"]) == (None, None, None, None)
    assert row["known_ms"] >= 0
    assert 0 <= row["coverage"]["sequences"] < 1
    assert row["missing"][0]["command"].startswith("dlbricks generate branches.onnx -g 2")
    assert "dlbricks generate branches.onnx -g 2" in cli("estimate", "branches.onnx", "-g", "2").out


@pytest.mark.slow
def test_the_missing_command_measures_what_is_missing(cli: Cli, work: Path) -> None:
    (row,) = cli("estimate", "branches.onnx", "-g", "2", "--json").json["results"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    subprocess.run(
        row["missing"][0]["command"], shell=True, check=True, capture_output=True, env={**os.environ, "PATH": path}
    )

    assert cli("estimate", "branches.onnx", "-g", "2").code == 0


def test_explain_shows_where_the_time_goes(cli: Cli, work: Path) -> None:
    (row,) = cli("estimate", "branches.onnx", "--explain", "--json").json["results"]

    assert [part["op_types"] for part in row["parts"]] == [["Conv"], ["Relu"], ["Conv"], ["Sigmoid"], ["Add"], ["Relu"]]
    on_path = [part["op_types"][0] for part in row["path"]]
    assert on_path in (["Conv", "Relu", "Conv", "Add", "Relu"], ["Conv", "Relu", "Sigmoid", "Add", "Relu"])
    assert sum(part["latency_ms"] for part in row["path"]) == pytest.approx(row["critical_path_ms"])
    terms = row["attribution"]
    assert list(terms) == ["bricks", "fusion", "layout", "overhead", "cache", "unexplained"]
    assert row["attribution_reason"] is None
    assert terms["bricks"]["ms"] == row["sequential_ms"]
    assert terms["fusion"]["ms"] is None
    assert "--graph fused" in terms["fusion"]["command"]
    text = cli("estimate", "branches.onnx", "--explain").out
    assert "from bricks to model, source graph, cache model" in text
    assert "critical path, 5 of 6 sequences" in text
    assert "path" not in cli("estimate", "branches.onnx", "--json").json["results"][0]


def test_estimates_are_drawn_into_a_folder_or_a_file(cli: Cli, work: Path) -> None:
    shutil.copy("branches.onnx", "again.onnx")

    done = cli("estimate", "branches.onnx", "again.onnx", "--plot", "plots")
    single = cli("estimate", "branches.onnx", "--plot", "one.svg")

    assert done.code == single.code == 0
    assert {path.name for path in Path("plots").iterdir()} == {
        "estimates.png", "layers-branches.png", "layers-again.png",
    }  # fmt: skip
    assert Path("one.svg").read_text().startswith("<?xml")
    assert cli("estimate", "branches.onnx", "--plot", "one.xyz").code == 2


# what there is ------------------------------------------------------------------------------------------------------


def test_bricks_are_listed_shown_and_exported(cli: Cli, work: Path) -> None:
    listed = cli("brick", "list", "--suite", "suite", "--json").json
    sigmoid = next(row for row in listed["results"] if row["operators"] == ["Sigmoid"])

    shown = cli("brick", "show", sigmoid["key"][:20], "--suite", "suite", "--json").json
    exported = cli("brick", "export", sigmoid["key"][:20], "--suite", "suite", "-o", "out.onnx")

    assert len(listed["results"]) == 4
    assert all(row["latency_ms"] > 0 for row in listed["results"])
    assert shown["brick"]["key"] == sigmoid["key"]
    assert [row["verdict"] for row in shown["results"]]
    assert exported.code == 0
    again = ("brick", "export", sigmoid["key"][:20], "--suite", "suite", "-o", "out.onnx")
    assert cli(*again).code == 2
    assert cli(*again, "--force").code == 0
    onnx.checker.check_model("out.onnx", full_check=True)


def test_models_are_listed_and_exported(cli: Cli, here: Path) -> None:
    listed = cli("models", "list", "--json").json["results"]
    done = cli("models", "export", "squeezenet", "nosuch", "-o", "zoo", "--json")

    assert {"squeezenet", "bert_base", "gpt2", "vit_b16"} <= {row["name"] for row in listed if row["available"]}
    assert done.code == 3
    exported, unknown = done.json["results"]
    assert exported["file"] == "zoo/squeezenet.onnx"
    assert "nosuch" in unknown["error"]
    model = onnx.load("zoo/squeezenet.onnx")
    assert len(model.graph.input) == 1
    assert cli("generate", "zoo/squeezenet.onnx", "-o", "s", "--json").json["layers"] == 66


def test_a_database_in_the_folder_of_a_suite_survives_the_next_generation(cli: Cli, branches: Path) -> None:
    assert cli("generate", branches, "-o", "out").code == 0
    assert cli("run", "out", "--db", "out/m.db", "--budget", "1s").code in {0, 3}
    known = cli("db", "info", "--db", "out/m.db", "--json").json["counts"]

    assert cli("generate", branches, "-g", "2", "-o", "out").code == 0

    assert cli("db", "info", "--db", "out/m.db", "--json").json["counts"] == known
    assert cli("brick", "list", "--suite", "out", "--json").json["granularity"] == 2


def test_backends_say_whether_they_run_here(cli: Cli) -> None:
    (ort,) = [row for row in cli("backends", "list", "--json").json["results"] if row["name"] == "onnxruntime"]

    assert ort["available"] is True
    assert "cpu" in ort["devices"]
    assert ort["options"]["optimization"] == "all"
    assert ort["dtypes"] == ["float32", "int8", "float16"]
    assert list(ort["algorithms"]) == ALGORITHMS
    assert all(ort["algorithms"].values())  # each says what is different


@pytest.mark.skipif(has_driver(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("given", "code", "missing"),
    [
        ((), 1, "no backend can run on device 'cuda' here; 'dlbricks backends list' shows what is missing"),
        (("--backend", "torch"), 1, "backend torch cannot run on device 'cuda' here: .*no NVIDIA driver is found"),
        (("--backend", "openvino"), 2, "backend openvino has no device 'cuda'; it has cpu"),
    ],
    ids=["all", "torch", "openvino"],
)
def test_without_a_gpu_its_ceilings_are_not_measured_and_it_is_said_why(
    cli: Cli, here: Path, given: tuple[str, ...], code: int, missing: str
) -> None:
    done = cli("system", "--ceilings", "--device", "cuda", *given)

    assert done.code == code
    assert re.search(missing, done.error)
    assert not [*here.iterdir()]


def test_the_system_is_shown_as_recorded(cli: Cli, work: Path) -> None:
    (row,) = cli("system", "--json").json["results"]

    assert row["key"] in {entry["system"] for entry in cli("db", "info", "--json").json["results"]}
    assert isinstance(row["quiet"], bool)
    assert row["quiet"] == (not row["reasons"])
    assert os.uname().nodename not in json.dumps(row) or len(os.uname().nodename) < 3


def test_measurements_are_exported_and_merged(cli: Cli, work: Path) -> None:
    exported = cli("db", "export", "out.db", "--measurements-only")
    table = cli("db", "export", "out.csv")
    merged = cli("db", "merge", "out.db", "--db", "home.db", "--json")

    assert exported.code == table.code == merged.code == 0
    assert merged.json["results"][0]["measurements"] >= 4
    assert cli("db", "merge", "out.db", "--db", "home.db", "--json").json["results"][0]["measurements"] == 0
    assert {row["subject"] for row in rows(Path("out.csv").read_text())} == {"brick", "model", "reference"}
    assert cli("estimate", "branches.onnx", "--db", "home.db").code == 0
    assert cli("db", "upgrade", "--db", "home.db").out == "home.db: up to date already\n"


def test_an_export_names_bricks_and_models_where_asked_and_never_with_measurements_only(cli: Cli, work: Path) -> None:
    named = cli("db", "export", "named.csv", "--suite", "suite", "--with", "branches.onnx")

    assert named.code == 0, named.err
    found = rows(Path("named.csv").read_text())
    conv = next(row for row in found if row["operators"] == "Conv")
    assert (conv["inputs"], conv["weights"]) == ("float[1,4,16,16]", "float[4,4,3,3]")
    assert (conv["outputs"], conv["strides"], conv["model"]) == ("float[1,4,16,16]", "1x1", "branches x 2")
    assert [row["model"] for row in found if row["subject"] == "model"] == ["branches"]
    refused = cli("db", "export", "out.csv", "--suite", "suite", "--measurements-only")
    assert (refused.code, Path("out.csv").exists()) == (2, False)


# how it answers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    ["models list", "backends list", "system", "db info", "brick list", "estimate branches.onnx", "run suite"],
)
def test_every_format_holds_the_same_results(cli: Cli, work: Path, command: str) -> None:
    results = cli(*command.split(), "--format", "json").json["results"]
    table = cli(*command.split(), "--format", "table")
    parsed = rows(cli(*command.split(), "--format", "csv").out)

    assert table.code == 0
    assert len(parsed) == (results[0]["sequences"] if "estimate" in command else len(results))
    assert table.out.endswith("\n")
    if results:
        plain = {key for row in results for key, value in row.items() if not isinstance(value, list | dict)}
        assert {key for key in plain if "ci95" not in key} <= set(parsed[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["generate", "-o", "s"], "Missing argument 'MODEL...'"),
        (["generate", "squeezenet"], "Missing option '-o' / '--out'"),
        (["generate", "squeezenet", "-o", "s", "-g", "0"], "0 is not in the range x>=1"),
        (["generate", "squeezenet", "-o", "s", "--batch", "1,x"], "'1,x' is not a list of batch sizes"),
        (["generate", "squeezenet", "-o", "s", "--batch", "0"], "'0' is not a list of batch sizes"),
        (["generate", "squeezenet", "-o", "s", "--dim", "a"], "'a' is not NAME=N"),
        (["generate", "squeezenet", "-o", "s", "--decoys", "3"], "decoys are drawn from a secret"),
        (["generate", "squeezenet", "-o", "s", "--graph", "compiled"], "'compiled' is not one of"),
        (
            ["generate", "squeezenet", "-o", "s", "--graph", "source", "--threads", "2"],
            "--threads means nothing for the model's own graph",
        ),
        (
            ["generate", "squeezenet", "-o", "s", "--graph", "source", "--option", "a=b"],
            "--option means nothing for the model's own graph",
        ),
        (["run", "s", "--threads", "1,x"], "'1,x' is not a list of numbers of threads"),
        (["estimate", "squeezenet", "--threads", ""], "'' is not a list of numbers of threads"),
        (["run", "s", "--budget", "soon"], "'soon' is not a time; write 90, 90s, 5m or 1h"),
        (["run", "s", "--budget", "-1"], "'-1' is not a positive time"),
        (["run", "s", "--cache", "warm"], "'warm' is not one of 'model', 'hot', 'cold'"),
        (["run", "s", "--option", "x"], "'x' is not NAME=VALUE"),
        (["measure", "squeezenet", "--option", "no=1"], "backend onnxruntime has no option 'no'"),
        (["measure", "squeezenet", "--backend", "nosuch"], "there is no backend 'nosuch'"),
        (
            ["measure", "squeezenet", "--backend", "openvino", "--device", "cuda"],
            "backend openvino has no device 'cuda'",
        ),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(cli: Cli, here: Path, arguments: list[str], message: str) -> None:
    done = cli(*arguments)

    assert done.code == 2
    assert message in done.error
    assert done.out == ""


@pytest.mark.parametrize(("text", "seconds"), [("90", 90.0), ("1.5s", 1.5), ("5m", 300.0), ("1h", 3600.0)])
def test_times_have_units(text: str, seconds: float) -> None:
    from dlbricks.cli import options

    assert options.seconds(text) == seconds


# in a process of its own --------------------------------------------------------------------------------------------


def start(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dlbricks", *arguments]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)


def test_a_closed_pipe_is_quiet(here: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m dlbricks models list | true", shell=True, capture_output=True, text=True, check=False
    )

    assert done.stderr == ""


@pytest.mark.slow
def test_an_interrupted_run_says_so_and_goes_on_later(cli: Cli, work: Path) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; children would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    running = start("run", "suite", "--again", "all", "--visits", "2000", "--db", "other.db")
    deadline = time.monotonic() + 400
    while not Path("other.db").exists() or "measuring" not in _lines_so_far(running):
        assert time.monotonic() < deadline
        assert running.poll() is None
    running.send_signal(signal.SIGINT)

    _, err = running.communicate(timeout=60)

    assert running.returncode == 130
    assert err.splitlines()[-1].startswith("dlbricks: interrupted; ")
    assert cli("run", "suite", "--db", "other.db").code == 0
    assert cli("estimate", "branches.onnx", "--db", "other.db").code == 0


def _lines_so_far(running: subprocess.Popen[str]) -> str:
    assert running.stderr is not None
    return running.stderr.readline()


def test_a_name_in_another_encoding_is_written(here: Path, write_branches: Callable[[Path], Path]) -> None:
    os.rename(write_branches(here / "x.onnx"), os.fsencode(here) + b"/\xff\x1b[2J.onnx")  # noqa: PTH104

    done = start("generate", ".", "-o", "suite", env=os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0"})
    out, err = done.communicate(timeout=60)

    assert done.returncode == 0, err
    assert "\x1b" not in out
    assert r"\udcff\x1b[2J" in out


def test_explain_gives_no_time_to_what_is_not_measured(cli: Cli, work: Path) -> None:
    done = cli("estimate", "squeezenet", "--explain")

    assert done.code == 3
    assert "squeezenet: 66 sequences not measured\n" in done.out
    assert "26 x Conv: not measured" in done.out
    assert "0.000" not in done.out


def test_an_export_replaces_no_other_file(cli: Cli, here: Path) -> None:
    model = here / "zoo" / "squeezenet.onnx"
    model.parent.mkdir()
    model.write_bytes(b"trained for weeks")

    done = cli("models", "export", "squeezenet", "-o", "zoo", "--json")

    assert done.code == 1
    assert "--force" in done.json["results"][0]["error"]
    assert model.read_bytes() == b"trained for weeks"
    assert cli("models", "export", "squeezenet", "-o", "zoo", "--force").code == 0
    assert cli("models", "export", "squeezenet", "-o", "zoo").code == 0  # the same again
