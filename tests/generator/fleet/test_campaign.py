"""A campaign's file: what it makes, and what is said where it is wrong."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest
from dlbricks.errors import StoreError, SuiteError, UsageError
from dlbricks.generator.backends import custom_ops
from dlbricks.generator.fleet.campaign import load_campaign
from dlbricks.generator.fleet.cell import Cell

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


def test_the_least_file_has_the_defaults_of_run(load, small_suite):
    cells = list(load().cells())

    assert [cell.node for cell in cells] == ["alpha", "beta"]
    one = cells[0]
    assert (one.suite_hash, one.suite, one.stack) == (small_suite.hash, small_suite.path.name, "onnxruntime")
    assert (one.device, one.options, one.lock_hash) == ("cpu", (), None)
    assert (one.threads, one.cache, one.dtype) == (1, "model", "float32")
    assert (one.visits, one.budget_s, one.processes, one.sessions) == (24, None, 2, 2)


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
    campaign = load(_LEAST.replace('[[suite]]\npath = "{suite}"', '[[suite]]\npath = "{suite}"' + more))

    cells = list(campaign.cells())

    assert {(cell.node, cell.stack) for cell in cells} == {("alpha", "onnxruntime")}
    assert [(cell.threads, cell.cache) for cell in cells] == [(1, "model"), (1, "hot"), (0, "model"), (0, "hot")]
    assert {(cell.dtype, cell.visits, cell.budget_s) for cell in cells} == {("bfloat16", None, 90.0)}
    assert cells[0].models == ("squeezenet",)
    assert (cells[0].batch, cells[0].dims) == ("1,4", ("length=64..256", "past=128"))
    locked = campaign.stacks[1]
    assert locked.options == (("optimization", "disabled"), ("spin", "1"))
    assert locked.lock_hash is not None


def test_what_run_takes_beside_is_taken_too(load, tmp_path, monkeypatch):
    """Of the models their control flow, of a stack its libraries and algorithms."""
    from dlbricks.cli.commands import run

    monkeypatch.setattr(custom_ops, "_files", {})  # a process keeps what it was told of
    more = """
    models = ["decoder.onnx"]
    branch = "else"
    trip = ["loop=12", 3]
    """
    stack = """
    custom_ops = ["/opt/ops.so"]
    algorithm = ["unfused", "extended"]
    """
    text = _LEAST.replace('[[suite]]\npath = "{suite}"', f'{stack}[[suite]]\npath = "{{suite}}"{more}')
    library = tmp_path / "ops.so"
    library.write_bytes(b"operators")

    cell, _ = load(text).cells()

    assert (cell.branches, cell.trips, cell.custom_ops) == (("else",), ("loop=12", "3"), ("/opt/ops.so",))
    here = dataclasses.replace(cell, custom_ops=(str(library),), algorithms=True)
    params = run.make_context("run", here.command(tmp_path / "suite", tmp_path / "cell.db")[1:]).params
    assert (params["branches"], params["trips"], params["models"]) == (("else",), ("loop=12", "3"), ("decoder.onnx",))
    assert (params["algorithms"], params["named"]) == (True, ("unfused", "extended"))
    assert params["options"]["custom_ops"]
    for change in ({"branches": ()}, {"trips": ()}, {"custom_ops": ()}, {"algorithms": True}, {"algorithm": ()}):
        assert dataclasses.replace(cell, **change).key != cell.key


def test_every_option_of_run_is_in_a_cell_or_there_is_a_reason_for_none(load, tmp_path):
    """A new option of ``run`` has to be decided on: a campaign gives it, or this list says why not."""
    from dlbricks.cli.commands import run

    settled = {
        "--dry-run": "plans have their own",
        "--again": "a cell's file begins empty",
        "--since": "likewise",
        "--kernels": "views of kernels are of no node, and are not pushed",
        "--format": "it is --json",
    }
    plain = next(load().cells())
    full = dataclasses.replace(
        plain,
        options=(("a", "1"),),
        models=("m",),
        batch="1",
        dims=("past=1",),
        branches=("then",),
        trips=("1",),
        custom_ops=("ops.so",),
        algorithms=True,
        algorithm=("unfused",),
    )
    words = {*full.command(tmp_path, tmp_path / "cell.db"), *dataclasses.replace(full, budget_s=1.0).command(
        tmp_path, tmp_path / "cell.db")}  # fmt: skip

    missing = [one.opts for one in run.params if one.param_type_name == "option" and not words & {*one.opts}]

    assert {name for names in missing for name in names} == settled.keys()


def test_a_cell_of_before_is_the_same_and_is_read(load):
    """Cells that were planned by a version without control flow keep their keys: nothing is measured twice."""
    cell = next(load().cells())
    before = {
        "campaign", "node", "stack", "suite", "suite_hash", "lock_hash", "backend", "device", "options", "threads",
        "cache", "dtype", "models", "batch", "dims", "visits", "budget_s", "processes", "sessions",
    }  # fmt: skip

    assert cell.record().keys() == before
    assert Cell.of(json.loads(json.dumps(cell.record()))) == cell


def test_a_cell_is_what_it_measures_whatever_its_parts_are_called(load):
    one = next(load().cells())
    renamed = dataclasses.replace(one, stack="other", suite="another")

    assert renamed.key == one.key
    for change in (
        {"campaign": "december"},
        {"node": "gamma"},
        {"threads": 2},
        {"suite_hash": "0" * 64},
        {"visits": 3},
    ):
        assert dataclasses.replace(one, **change).key != one.key


def test_a_cell_survives_json(load):
    for cell in load(_LEAST + '[conditions]\ncache = ["hot", "cold"]\n').cells():
        full = dataclasses.replace(cell, options=(("a", "1"),), models=("m",), dims=("past=1",), trips=("1",))

        assert Cell.of(json.loads(json.dumps(full.record()))) == full


def test_a_cell_of_another_version_is_refused(load):
    record = next(load().cells()).record()

    with pytest.raises(StoreError, match="not of this version: novelty"):
        Cell.of({**record, "novelty": 1})


def test_the_command_is_one_that_dlbricks_takes(load, tmp_path):
    """Click itself reads it."""
    from dlbricks.cli.commands import run

    plain = next(load(_LEAST + "[pace]\nbudget_s = 0.5\nsessions = 3\n").cells())
    cell = dataclasses.replace(
        plain, options=(("sleep_us", "5"),), models=("squeezenet", "alexnet"), batch="1,2", dims=("past=3",)
    )

    context = run.make_context("run", cell.command(tmp_path / "suite", tmp_path / "cell.db")[1:])

    given = context.params
    assert given["database"] == str(tmp_path / "cell.db")
    assert (given["node"], given["campaign"], given["budget_s"]) == ("alpha", "november", 0.5)
    assert (given["options"], given["models"]) == ({"sleep_us": "5"}, ("squeezenet", "alexnet"))
    assert (given["batch"], given["dims"], given["sessions"]) == ((1, 2), (("past", (3,)),), 3)
    assert (given["quiet"], given["form"]) == (True, "json")


_WRONG = {
    "no TOML": ("campaign = ", "is no TOML"),
    "no campaign": (_LEAST.replace('campaign = "november"', ""), "campaign is missing"),
    "a bad name": (_LEAST.replace("november", "the november"), "campaign = 'the november': wants up to 63 letters"),
    "no nodes": (_LEAST.replace('["alpha", "beta"]', "[]"), r"nodes = \[\]: wants at least one"),
    "a node twice": (_LEAST.replace("beta", "alpha"), "names something twice"),
    "an unknown key": (_LEAST.replace("path =", "folder = 1\npath ="), "suite 1: folder is unknown here"),
    "an unknown table": (_LEAST + "[speed]\n", "speed is unknown here"),
    "no stack": (re.sub(r"\[\[stack\]\]\n.*\n", "", _LEAST), "stack is missing"),
    "no backend": (_LEAST.replace('backend = "onnxruntime"', ""), "stack 1: backend is missing"),
    "a cache that there is not": (_LEAST + '[conditions]\ncache = "warm"\n', "cache = 'warm': wants model, hot"),
    "half a thread": (_LEAST + "[conditions]\nthreads = 0.5\n", "conditions.threads = 0.5: wants a whole number"),
    "a budget of nothing": (_LEAST + "[pace]\nbudget_s = 0\n", "pace.budget_s = 0: wants a positive number"),
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
        "stack 1: options = .*wants a text or a number",
    ),
    "a dimension of many sizes": (
        _LEAST.replace("path =", "dims = { past = [64, 128] }\npath ="), "suite 1: dims = .*wants a text or a number"
    ),
    "a folder that gives no name": (
        _LEAST.replace("{suite}", "{suite}/.."), r"suite 1: name = '\.\.': wants up to 63 letters"
    ),
    "a branch that there is not": (
        _LEAST.replace("path =", 'branch = "perhaps"\npath ='), "suite 1: branch = 'perhaps': "
    ),
    "half an iteration": (_LEAST.replace("path =", "trip = 0.5\npath ="), "suite 1: trip = 0.5: "),
    "perhaps all algorithms": (
        _LEAST.replace("[[suite]]", "algorithms = 1\n[[suite]]"), "stack 1: algorithms = 1: wants true or false"
    ),
    "a lock that is not there": (_LEAST.replace("[[suite]]", 'lock = "none.toml"\n[[suite]]'), "lock .*none.toml"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), _WRONG.values(), ids=_WRONG)
def test_what_is_wrong_is_named(load, text, said):
    with pytest.raises(UsageError, match=said) as error:
        load(text)

    assert "campaign.toml" in str(error.value)


def test_a_file_or_a_suite_that_is_not_there(load, tmp_path):
    with pytest.raises(UsageError, match=r"missing\.toml cannot be read"):
        load_campaign(tmp_path / "missing.toml")
    with pytest.raises(SuiteError, match="is not a suite"):
        load(_LEAST.replace("{suite}", str(tmp_path / "nowhere")))


def test_the_example_of_the_page_is_one(small_suite, tmp_path):
    page = (Path(__file__).resolve().parents[3] / "docs/fleet.md").read_text()
    (example,) = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "november.toml").write_text(example)
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks/pylock.ort.toml").write_text('lock-version = "1.0"\n')
    shutil.copytree(small_suite.path, tmp_path / "suites/vision")

    cells = list(load_campaign(tmp_path / "november.toml").cells())

    assert {(cell.campaign, cell.node, cell.suite, cell.stack) for cell in cells} == {
        ("2026-11", "alpha", "vision", "ort-1.31")
    }
    assert [(cell.threads, cell.dtype) for cell in cells] == [
        (1, "float32"), (1, "bfloat16"), (4, "float32"), (4, "bfloat16"),
    ]  # fmt: skip
