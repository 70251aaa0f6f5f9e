"""Commands that answers print have the options of the call, and run as they are printed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.analyzer.shell import improve_command
from dlbricks.models import find_models
from dlbricks.models.control_flow import read_choices

# Nothing of it can be run without its options: a size without a default, a branch that the condition does not decide,
# iterations that are not known, and an input whose made-up value the runtime refuses.
MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 8, odd] x, int64[3] size, bool c, int64 count) => (float[a, b, d] y)
<bool on = {1}> {
    t = Reshape(x, size)
    [branch] r = If (c) <
        then_branch = one () => (float[a, b, d] p) { p = Tanh(t) },
        else_branch = two () => (float[a, b, d] q) { q = Erf(t) }>
    [loop] y = Loop (count, on, r) <
        body = step (int64 i, bool goes, float[a, b, d] v) => (bool more, float[a, b, d] w) {
            w = Relu(v) more = Identity(goes) }>
}"""

_COMMAND = re.compile(r"dlbricks (?:generate|run|measure|analyze|improve|compare) [^`;\n]*")


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The model and all options that it takes; a database of another name."""
    monkeypatch.chdir(tmp_path)
    Path("a model.onnx").write_bytes(onnx.parser.parse_model(MODEL).SerializeToString())
    np.savez("own.npz", c=np.array(True))
    return shlex.split(
        "'a model.onnx' --batch 2 --dim odd=6 --branch branch=else --trip loop=2 --value size=4,4,6 --data own.npz"
    )


def printed(*texts: str) -> Iterator[list[str]]:
    """Yield the arguments of each command in some texts, once, in their order."""
    found = (match.strip() for text in texts for match in _COMMAND.findall(text))
    for command in dict.fromkeys(step.strip() for one in found for step in one.split("&&")):
        words = shlex.split(command)
        if words[2] not in {"MODEL", "SUITE", "OLD"}:
            yield words[1:]


def test_what_an_estimate_lacks_is_measured_by_the_commands_that_it_prints(cli, options: list[str]):
    cli("measure", *options, "--db", "own.db", "--visits", "2", "--processes", "1", "--sessions", "1")
    Path("own.db").rename("other.db")

    lacking = cli("estimate", *options, "--db", "other.db", "--threads", "1")
    commands = list(printed(lacking.out))
    for words in commands:
        assert cli(*words).code == 0, words
    (row,) = json.loads(cli("estimate", *options, "--db", "other.db", "--json").out)["results"]

    assert lacking.code == 3
    assert [words[0] for words in commands] == ["generate", "run"]
    assert row["coverage"]["sequences"] == 1.0
    assert row["measured_ms"] is not None


def test_what_a_report_left_untried_is_tried_by_the_commands_that_it_prints(cli, options: list[str]):
    told = cli("report", *options, "--db", "other.db", "--budget", "3s", "--no-prove", "-q")

    commands = {words[0]: words for words in printed(told.out)}

    assert "analyze" in commands
    for words in commands.values():
        assert words[words.index("--db") + 1] == "other.db", words
        done = cli(*words, "--visits", "6", "--processes", "1")
        assert done.code == 0, (words, done.err)


def test_elements_that_are_no_numbers_are_told_before_anything_is_measured(cli, tmp_path: Path, write_branches):
    path = write_branches(tmp_path / "branches.onnx")
    (given,) = onnx.load(path).graph.input
    values = np.zeros([size.dim_value for size in given.type.tensor_type.shape.dim], np.float32)
    values.flat[:3] = np.nan
    np.savez(tmp_path / "own.npz", **{given.name: values})

    told = cli("generate", path, "--graph", "source", "--data", tmp_path / "own.npz", "-o", tmp_path / "suite")

    assert told.code == 0
    assert f"own.npz: '{given.name}': 3 of its elements are NaN" in told.err


def test_a_search_for_rewrites_runs_as_it_is_printed(cli, options: list[str]):
    control, _ = read_choices(("branch=else",), ("loop=2",))
    given = {"batches": (2,), "dims": {"odd": 6}, "values": {"size": "4,4,6"}, "data": [Path("own.npz")]}
    (source,) = find_models([options[0]], control=control, **given)

    _, *words = shlex.split(improve_command(source, 1, database="other.db"))
    done = cli(*words, "--budget", "5s")

    assert done.code == 0, done.err
    assert {*options} <= {*words}
