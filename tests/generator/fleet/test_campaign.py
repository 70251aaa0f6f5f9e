"""A campaign's file: what it makes, and what is said where it is wrong."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dlbricks.db.values import Conditions, Runtime
from dlbricks.errors import StoreError, SuiteError, UsageError
from dlbricks.generator.backends import custom_ops
from dlbricks.generator.fleet.campaign import load_campaign
from dlbricks.generator.fleet.cell import Cell, PlannedPace, PlannedStack, PlannedSuite

_LEAST = """
campaign = "november"
nodes = ["alpha", "beta"]
[[stack]]
backend = "onnxruntime"
[[suite]]
path = "{suite}"
"""


@pytest.fixture
def load(small_suite, tmp_path):
    def read(text: str = _LEAST):
        file = tmp_path / "campaign.toml"
        file.write_text(text.replace("{suite}", str(small_suite.path)))
        return load_campaign(file)

    return read


def changed(cell: Cell, part: str, **changes: object) -> Cell:
    """The same cell with other values of one of its parts."""
    return dataclasses.replace(cell, **{part: dataclasses.replace(getattr(cell, part), **changes)})


def test_the_least_file_has_the_defaults_of_run(load, small_suite):
    cells = load().cells

    assert [cell.node for cell in cells] == ["alpha", "beta"]
    one = cells[0]
    assert one.suite == PlannedSuite(small_suite.path.name, small_suite.hash)
    assert one.stack == PlannedStack("onnxruntime", Runtime())
    assert one.conditions == Conditions(1, "model", "float32")
    assert one.pace == PlannedPace(24, None, 2, 2)


def test_a_process_that_read_a_campaign_ends_in_order(load, tmp_path):
    load()
    program = "import sys; from dlbricks.generator.fleet.campaign import load_campaign; load_campaign(sys.argv[1])"
    command = [sys.executable, "-P", "-c", program, str(tmp_path / "campaign.toml")]

    running = [subprocess.Popen(command) for _ in range(6)]  # with the fault one of five ended by a signal

    assert [process.wait() for process in running] == [0] * 6


def test_nodes_stacks_suites_and_conditions_are_multiplied(load, tmp_path):
    (tmp_path / "pylock.toml").write_text('lock-version = "1.0"\n')
    more = """
    name = "whole"
    models = ["squeezenet"]
    batch = "1,4"
    dims = { past = 128, length = "64..256" }
    nodes = ["alpha"]
    [[stack]]
    name = "locked"
    backend = "onnxruntime"
    lock = "pylock.toml"
    options = { optimization = "disabled", spin = 1 }
    nodes = "beta"
    [conditions]
    threads = [1, 0]
    cache = ["model", "hot"]
    dtype = "bfloat16"
    [pace]
    budget_s = 90
    """
    text = _LEAST.replace('[[suite]]\npath = "{suite}"', '[[suite]]\npath = "{suite}"' + more)
    campaign = load(text)

    cells = campaign.cells

    assert {(cell.node, cell.stack.name) for cell in cells} == {("alpha", "onnxruntime")}
    under = [cell.conditions for cell in cells]
    assert [(one.threads, one.cache) for one in under] == [(1, "model"), (1, "hot"), (0, "model"), (0, "hot")]
    assert {one.dtype for one in under} == {"bfloat16"}
    assert {(cell.pace.visits, cell.pace.budget_s) for cell in cells} == {(None, 90.0)}
    suite = cells[0].suite
    assert (suite.models, suite.batch, suite.dims) == (("squeezenet",), "1,4", ("length=64..256", "past=128"))
    everywhere = load(text.replace('nodes = ["alpha"]', "", 1)).cells
    (locked,) = {cell.stack for cell in everywhere if cell.node == "beta" and cell.stack.name == "locked"}
    assert locked.runtime.options == (("optimization", "disabled"), ("spin", "1"))
    assert campaign.locks == {locked.lock_hash: tmp_path / "pylock.toml"}


def test_what_run_takes_beside_is_taken_too(load, tmp_path, monkeypatch):
    """Of the models their control flow, of a stack its libraries and algorithms."""
    from dlbricks.cli.commands import run

    monkeypatch.setattr(custom_ops, "_files", {})  # a process keeps what it was told of
    more = """
    models = ["decoder.onnx"]
    branch = "else"
    trip = ["loop=12", 3]
    values = { size = [1, 3, 64.5], ratio = 0.5 }
    """
    stack = """
    custom_ops = ["/opt/ops.so"]
    algorithm = ["unfused", "extended"]
    """
    text = _LEAST.replace('[[suite]]\npath = "{suite}"', f'{stack}[[suite]]\npath = "{{suite}}"{more}')
    library = tmp_path / "ops.so"
    library.write_bytes(b"operators")

    cell, _ = load(text).cells

    assert (cell.suite.branches, cell.suite.trips) == (("else",), ("loop=12", "3"))
    assert cell.suite.values == ("ratio=0.5", "size=1,3,64.5")
    assert cell.stack.custom_ops == ("/opt/ops.so",)
    runtime = Runtime("onnxruntime", "cpu", (("sleep_us", "5"),))
    here = changed(cell, "stack", runtime=runtime, custom_ops=(str(library),), algorithms=True)
    here = changed(here, "suite", batch="1,2", dims=("past=3",))
    params = run.make_context("run", here.command(tmp_path / "suite", tmp_path / "cell.db")[1:]).params  # as click does
    assert (params["database"], params["node"]) == (str(tmp_path / "cell.db"), "alpha")
    assert (params["campaign"], params["quiet"], params["form"]) == ("november", True, "json")
    assert params["options"].pop("sleep_us") == "5"
    assert (params["batch"], params["dims"], params["sessions"]) == ((1, 2), (("past", (3,)),), 2)
    assert params["values"] == (("ratio", "0.5"), ("size", "1,3,64.5"))
    assert (params["branches"], params["trips"], params["models"]) == (("else",), ("loop=12", "3"), ("decoder.onnx",))
    assert (params["algorithms"], params["named"]) == (True, ("unfused", "extended"))
    assert params["options"]["custom_ops"]
    for change in ({"branches": ()}, {"trips": ()}, {"values": ()}):
        assert changed(cell, "suite", **change).key != cell.key
    for change in ({"custom_ops": ()}, {"algorithms": True}, {"algorithm": ()}):
        assert changed(cell, "stack", **change).key != cell.key


def test_every_option_of_run_is_in_a_cell_or_there_is_a_reason_for_none(load, tmp_path):
    """A new option of ``run`` has to be decided on: a campaign gives it, or this list says why not."""
    from dlbricks.cli.commands import run

    settled = {
        "--dry-run": "plans have their own",
        "--again": "a cell's file begins empty",
        "--since": "likewise",
        "--follow-links": "the node decides: DLBRICKS_FOLLOW_LINKS",
        "--label": "nodes of a campaign measure one state",
        "--data": "own inputs stay on the machine that has their files",
        "--kernels": "views of kernels are of no node, and are not pushed",
        "--format": "it is --json",
        "--priority": "as high as the node grants",
        "--target": "a cell has a pace of its own",
        "--wait": "the node's worker waits for as long as it is asked to",
    }
    suite = {"models": ("m",), "batch": "1", "dims": ("past=1",), "branches": ("then",), "trips": ("1",)}
    suite["values"] = ("ratio=0.5",)
    stack = {"custom_ops": ("ops.so",), "algorithms": True, "algorithm": ("unfused",)}
    runtime = Runtime("onnxruntime", "cpu", (("a", "1"),))
    full = changed(changed(load().cells[0], "suite", **suite), "stack", runtime=runtime, **stack)
    both = (full, changed(full, "pace", budget_s=1.0))
    words = {word for one in both for word in one.command(tmp_path, tmp_path / "cell.db")}

    missing = [one.opts for one in run.params if one.param_type_name == "option" and not words & {*one.opts}]

    assert {name for names in missing for name in names} == settled.keys()


def test_a_cell_of_before_is_the_same_and_is_read(load):
    """Cells that were planned by a version without control flow keep their keys: nothing is measured twice."""
    cell = load().cells[0]
    before = {
        "campaign", "node", "stack", "suite", "suite_hash", "lock_hash", "backend", "device", "options", "threads",
        "cache", "dtype", "models", "batch", "dims", "visits", "budget_s", "processes", "sessions",
    }  # fmt: skip

    assert cell.record().keys() == before
    suited = changed(cell, "suite", models=("m",), dims=("past=1",), trips=("1",))
    full = changed(suited, "stack", runtime=Runtime("onnxruntime", "cpu", (("a", "1"),)))
    for one in (cell, full):
        assert Cell.of(json.loads(json.dumps(one.record()))) == one
    with pytest.raises(StoreError, match="not of this version: novelty"):
        Cell.of({**cell.record(), "novelty": 1})


def test_a_cell_is_what_it_measures_whatever_its_parts_are_called(load):
    one = load().cells[0]
    renamed = changed(changed(one, "stack", name="other"), "suite", name="another")

    assert renamed.key == one.key
    for other in (
        dataclasses.replace(one, campaign="december"),
        dataclasses.replace(one, node="gamma"),
        changed(one, "conditions", threads=2),
        changed(one, "suite", hash="0" * 64),
        changed(one, "pace", visits=3),
    ):
        assert other.key != one.key


_WRONG = {
    "no TOML": ("campaign = ", "is no TOML"),
    "no campaign": (_LEAST.replace('campaign = "november"', ""), "missing required field `campaign`"),
    "a bad name": (_LEAST.replace("november", "the november"), "campaign = 'the november': wants up to 63 letters"),
    "a bad node": (_LEAST.replace("beta", "be ta"), "nodes = 'be ta': wants up to 63 letters"),
    "no nodes": (_LEAST.replace('["alpha", "beta"]', "[]"), r"nodes = \[\]: wants at least one"),
    "a node twice": (_LEAST.replace("beta", "alpha"), "names something twice"),
    "an unknown key": (_LEAST.replace("path =", "folder = 1\npath ="), r"suite\[0\]: .*unknown field `folder`"),
    "an unknown table": (_LEAST + "[speed]\n", "unknown field `speed`"),
    "no stack": (re.sub(r"\[\[stack\]\]\n.*\n", "", _LEAST), "missing required field `stack`"),
    "no backend": (_LEAST.replace('backend = "onnxruntime"', ""), r"stack\[0\]: .*missing required field `backend`"),
    "a cache that there is not": (_LEAST + '[conditions]\ncache = "warm"\n', "conditions.cache: .* 'warm'"),
    "half a thread": (_LEAST + "[conditions]\nthreads = 0.5\n", "conditions.threads: .*, got `float`"),
    "a budget of nothing": (_LEAST + "[pace]\nbudget_s = 0\n", "pace.budget_s: Expected `float` > 0"),
    "two paces": (_LEAST + "[pace]\nbudget_s = 9\nvisits = 9\n", "pace.visits stands beside budget_s"),
    "a foreign node": (_LEAST.replace("path =", 'nodes = ["gamma"]\npath ='), "names 'gamma', which is no node"),
    "two of one name": (_LEAST + '[[stack]]\nbackend = "onnxruntime"\ndevice = "cuda"\n', "two of stack have one name"),
    "the same twice": (
        _LEAST + '[[stack]]\nname = "other"\nbackend = "onnxruntime"\n', "on other and .* on onnxruntime are the same"
    ),
    "nothing": (
        _LEAST.replace("path =", 'nodes = ["alpha"]\npath =').replace("[[suite]]", 'nodes = ["beta"]\n[[suite]]'),
        "asks for nothing",
    ),
    "an option that is true": (
        _LEAST.replace("[[suite]]", "options = { spin = true }\n[[suite]]"),
        r"stack\[0\].options.*, got `bool`",
    ),
    "a dimension of many sizes": (
        _LEAST.replace("path =", "dims = { past = [64, 128] }\npath ="), r"suite\[0\].dims.*, got `array`"
    ),
    "a folder that gives no name": (
        _LEAST.replace("{suite}", "{suite}/.."), r"suite\[0\].name = '\.\.': wants up to 63 letters"
    ),
    "a branch that there is not": (
        _LEAST.replace("path =", 'branch = "perhaps"\npath ='), r"suite\[0\].branch = 'perhaps': "
    ),
    "values without a model": (
        _LEAST.replace("path =", "values = { ratio = 0.5 }\npath ="), r"suite\[0\].values are inputs of whole models"
    ),
    "a value that is true": (
        _LEAST.replace("path =", "values = { ratio = true }\npath ="), r"suite\[0\].values.*, got `bool`"
    ),
    "half an iteration": (_LEAST.replace("path =", "trip = 0.5\npath ="), r"suite\[0\].trip = 0.5: "),
    "perhaps all algorithms": (
        _LEAST.replace("[[suite]]", "algorithms = 1\n[[suite]]"), r"stack\[0\].algorithms: Expected `bool`, got `int`"
    ),
    "a lock that is not there": (_LEAST.replace("[[suite]]", 'lock = "none.toml"\n[[suite]]'), "lock .*none.toml"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), _WRONG.values(), ids=_WRONG)
def test_what_is_wrong_is_named(load, tmp_path, text, said):
    with pytest.raises(UsageError, match=said) as error:
        load(text)

    assert "campaign.toml" in str(error.value)
    with pytest.raises(UsageError, match=r"missing\.toml cannot be read"):
        load_campaign(tmp_path / "missing.toml")
    with pytest.raises(SuiteError, match="is not a suite"):
        load(_LEAST.replace("{suite}", str(tmp_path / "nowhere")))


def test_the_example_of_the_page_is_one(small_suite, tmp_path):
    page = (Path(__file__).resolve().parents[3] / "docs/how-to/fleet.md").read_text()
    (example,) = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "november.toml").write_text(example)
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks/pylock.ort.toml").write_text('lock-version = "1.0"\n')
    shutil.copytree(small_suite.path, tmp_path / "suites/vision")

    cells = load_campaign(tmp_path / "november.toml").cells

    assert {(cell.campaign, cell.node, cell.suite.name, cell.stack.name) for cell in cells} == {
        ("2026-11", "alpha", "vision", "ort-1.31")
    }
    assert [(cell.conditions.threads, cell.conditions.dtype) for cell in cells] == [
        (1, "float32"), (1, "bfloat16"), (4, "float32"), (4, "bfloat16"),
    ]  # fmt: skip
