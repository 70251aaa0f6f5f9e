"""What the documentation says is so: every command and option is documented, and the examples run."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from listings import leaves

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs/reference"
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOK = ROOT / "docs/tutorial/notebook.ipynb"

COMMANDS = dict(leaves())


def section(name: str) -> str:
    """The section of docs/reference/cli.md about a command."""
    match = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", (REFERENCE / "cli.md").read_text(), re.DOTALL | re.MULTILINE)
    assert match, f"docs/reference/cli.md has no section '## {name}'"
    return match[1]


def blocks(path: Path) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    command = COMMANDS[name]
    assert command.help

    (example,) = re.findall(rf"^ +({name}\b.*)$", command.help, re.MULTILINE)

    words = shlex.split(example)[len(name.split()) :]
    command.make_context(name, words)  # raises where an argument or an option is wrong
    for param in command.params:
        assert isinstance(param, click.Argument) or param.help or param.metavar or param.type.name == "choice"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_list_of_options(name: str) -> None:
    """The script that writes the lists has a test for their content."""
    block = f"options-{name.removeprefix('dlbricks ').replace(' ', '-')}"

    assert section(name).count(f"<!-- {block} -->\n") == section(name).count(f"<!-- /{block} -->\n") == 1


def test_every_command_stands_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()

    missing = [name for name in COMMANDS if name.split()[1] not in readme]

    assert not missing


def test_documented_commands_exist() -> None:
    documented = re.findall(r"^## (dlbricks .*)$", (REFERENCE / "cli.md").read_text(), re.MULTILINE)

    assert documented == sorted(documented, key=list(COMMANDS).index) or set(documented) == set(COMMANDS)
    assert len(documented) == len(COMMANDS)


@pytest.mark.parametrize("path", [*DOCS, NOTEBOOK], ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)", path.read_text())

    missing = [target for target in targets if "://" not in target and not (path.parent / target).exists()]

    assert not missing


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_files_that_are_named_exist(path: Path) -> None:
    named = re.findall(r"`((?:\w+/)+[\w.]+\.(?:py|md))`", path.read_text())

    missing = [name for name in named if not (ROOT / name).exists()]

    assert not missing


def test_the_site_has_every_page_and_loads_nothing_from_the_network(tmp_path: Path) -> None:
    """Broken links, anchors and pages outside the navigation are warnings, and these fail the build (mkdocs.yml)."""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}

    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    site = tmp_path / "site"
    found = {
        entry["location"].partition("#")[0]
        for entry in json.loads((site / "search/search_index.json").read_text())["docs"]
    }
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "results" not in path.parts]
    assert found >= {
        f"{path.relative_to(ROOT / 'docs').with_suffix('')}/" if path.stem != "index" else "" for path in pages
    }
    html = "".join(page.read_text() for page in site.rglob("*.html"))
    tags = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", html)
    assert [tag for tag in tags if re.search(r'(?:src|href)="?(?:https?:)?//', tag)] == []


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_examples_are_spelled_right(path: Path) -> None:
    """Every line of a code block that begins with a command: its arguments and options exist."""
    text = path.read_text()
    indented = re.findall(r"^    (dlbricks .*)$", text, re.MULTILINE)
    fenced = [
        line for block in re.findall(r"^```(?:sh|yaml|)\n(.*?)^```", text, re.S | re.M) for line in block.splitlines()
    ]
    lines = [
        line for line in indented + fenced if line.startswith("dlbricks ") and not re.search(r"[$\\<>|…]|\.\.\.", line)
    ]

    for line in lines:
        words = shlex.split(line, comments=True)
        name = next((name for name in COMMANDS if words[: len(name.split())] == name.split()), None)
        if words[1].isupper() or words[1].startswith("-") or "--custom-ops" in words:  # reads the library
            continue
        assert name, f"no such command: {line}"
        COMMANDS[name].make_context(name, words[len(name.split()) :])


def test_the_glossary_is_short() -> None:
    rows = re.findall(r"^\| ([^|]+) \|", (REFERENCE / "glossary.md").read_text(), re.MULTILINE)[1:]

    assert len(rows) == len(set(rows)) <= 25


def run_example(block: str, folder: Path, *, codes: tuple[int, ...] = (0,)) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", block],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in codes, f"{block}\n{done.stdout}{done.stderr}"


@pytest.mark.slow
def test_the_private_round_trip_runs_as_written(tmp_path: Path, write_branches: Callable[[Path], Path]) -> None:
    """The model stays at home, the suite goes out, latencies come back, and nothing names the model on the way."""
    write_branches(tmp_path / "private" / "model.onnx")
    generate, measure, estimate = blocks(ROOT / "docs/how-to/private-models.md")

    run_example(generate, tmp_path)
    away = tmp_path / "away"
    away.mkdir()
    (tmp_path / "outbox").rename(away / "outbox")
    run_example(measure, away)
    (away / "latencies.db").rename(tmp_path / "latencies.db")
    run_example(estimate, tmp_path)

    travelled = [(tmp_path / "latencies.db").read_bytes()]
    travelled += [file.read_bytes() for file in (away / "outbox").rglob("*") if file.is_file()]
    secrets = [b"private", b"model.onnx", str(tmp_path).encode(), os.uname().nodename.encode()]
    assert not [secret for secret in secrets for data in travelled if len(secret) > 2 and secret in data]
    assert not (away / "private").exists()


@pytest.mark.slow
def test_the_examples_of_the_readme_run(tmp_path: Path) -> None:
    (example,) = blocks(ROOT / "README.md")
    report, improve = example.splitlines()

    run_example(report, tmp_path)
    run_example(improve, tmp_path, codes=(0, 3))  # 3: there was no time for some rewrites

    assert (tmp_path / "report.html").stat().st_size > 0


def run_notebook(cells: list[str]) -> tuple[dict[str, Any], list[Any]]:
    """Execute cells one after the other in one namespace; returns it, and the value that each cell ends with."""
    namespace: dict[str, Any] = {}
    values = []
    for number, cell in enumerate(cells):
        *lines, last = ast.parse(cell).body
        tail = [last] if isinstance(last, ast.Expr) else []
        body = ast.Module([*lines, *([] if tail else [last])], [])
        exec(compile(body, f"cell {number}", "exec"), namespace)
        shown = [eval(compile(ast.Expression(one.value), f"cell {number}", "eval"), namespace) for one in tail]
        values.append(shown[0] if shown else None)
    return namespace, values


@pytest.mark.slow
def test_the_page_of_the_api_is_a_session_that_runs(here: Path, write_branches: Callable[[Path], Path]) -> None:
    write_branches(here / "model.onnx")
    by_hand = re.sub(r"^<!-- ([\w-]+) -->.*?<!-- /\1 -->", "", (REFERENCE / "api.md").read_text(), flags=re.S | re.M)
    cells = re.findall(r"^```python\n(.*?)^```", by_hand, re.DOTALL | re.MULTILINE)

    left, values = run_notebook(cells)

    assert values[0] == ["model"]
    assert (here / "report.html").stat().st_size > 0
    (estimate,) = left["estimates"]
    assert estimate.complete
    assert [side.backend for side in (one.choice.stack for one in left["comparison"].sides)] == ["onnxruntime"] * 2
    frames = [value for value in values if type(value).__name__ == "DataFrame"]
    made, estimated, _missed, measured, compared, past = frames
    assert [len(frame) for frame in (made, estimated, measured, compared)] == [1, 1, 1, 1]
    assert len(past) == sum(row.runs for row in left["past"].rows) >= 2
    assert estimated.loc["model", "estimate_ms"] == estimate.latency.ms
    assert list(left["made"].frame()["name"]) == ["model"]
    assert left["made"].to_json()["page"] == "report.html"


@pytest.mark.slow
def test_the_notebook_runs(here: Path, write_branches: Callable[[Path], Path]) -> None:
    """Every code cell in order, with a small model in the place of the one that it names."""
    write_branches(here / "model.onnx")
    cells = [
        "".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"
    ]
    assert sum('"inception_v1"' in cell for cell in cells) == 1

    left, values = run_notebook([cell.replace('"inception_v1"', '"model.onnx"') for cell in cells])

    (estimate,) = left["estimates"]
    (bar,) = left["axes"].containers
    assert estimate.complete
    assert [source.name for source in left["models"]] == ["model"]
    assert sum(rectangle.get_width() for rectangle in bar) == pytest.approx(estimate.sums.sequential_ms)
    assert [type(value).__name__ for value in values].count("DataFrame") == 4


def test_the_notebook_names_no_place_and_was_run_in_order() -> None:
    text = NOTEBOOK.read_text()
    notebook = json.loads(text)

    assert notebook["nbformat"] == 4
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert not re.findall(r"(?<![\w.])/(?:home|root|tmp|work|usr|opt|Users|mnt|var)/", text)
    counts = [cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert "image/png" in text


def test_the_page_of_the_api_has_every_function_that_it_names() -> None:
    text = (REFERENCE / "api.md").read_text()

    for name in ("find_models", "generate", "run", "measure", "estimate", "compare", "advise", "analyze", "report",
                 "tokens", "Store-open", "Tabular-frame", "Tabular-to_json", "to_markdown"):  # fmt: skip
        assert f"<!-- signature-{name} -->" in text
    anchors = {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in re.findall(r"^## (.*)$", text, re.M)}
    assert set(re.findall(r"\]\(#([\w-]+)\)", text)) <= anchors


@pytest.fixture
def workflow(
    here: Path, write_lrn: Callable[[Path], Path], pythons: Callable[..., Path]
) -> Callable[[str], tuple[list[int], str]]:
    """Run the measuring steps of a job of docs/how-to/ci.md; return their exit codes and the summary.

    Both versions are interpreters of this environment.
    """
    write_lrn(here / "models" / "model.onnx")
    script = Path(sys.executable).parent / "dlbricks"
    summary = here / "summary.md"
    page = (ROOT / "docs/how-to/ci.md").read_text()
    (text,) = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    jobs = yaml.safe_load(text)["jobs"]
    versions = {name: str(pythons(name)) for name in ("OLD", "NEW")}

    def run(job: str) -> tuple[list[int], str]:
        environment = {
            **os.environ,
            "PATH": f"{script.parent}:{os.environ['PATH']}",
            "GITHUB_STEP_SUMMARY": str(summary),
            **versions,
        }
        steps = [step["run"] for step in jobs[job]["steps"] if step.get("run", "").startswith("dlbricks")]
        codes = [subprocess.run(["bash", "-e", "-c", step], env=environment, check=False).returncode for step in steps]
        return codes, summary.read_text()

    return run


@pytest.mark.slow
def test_the_workflow_fails_where_something_is_missed(workflow: Callable[[str], tuple[list[int], str]]) -> None:
    (measured, analysed), summary = workflow("missed")

    assert measured == 0
    rows = "\n".join(row for row in summary.splitlines() if "| roofline |" not in row)  # a bound is no prediction
    found = re.findall(r"\| (\d+)% \| (?:(\d+)%|-) \| [^|]+ \|$", rows, re.MULTILINE)
    assert analysed == (4 if any(int(proven or predicted) > 10 for predicted, proven in found) else 0)
    assert "```text\nmodel: " in summary


@pytest.mark.slow
def test_the_workflow_fails_where_a_model_is_slower(workflow: Callable[[str], tuple[list[int], str]]) -> None:
    (compared,), summary = workflow("slower")

    (row,) = [line for line in summary.splitlines() if line.startswith("| model |") and "ms" not in line]
    (verdict,) = re.findall(r"\| (SAME|FASTER|SLOWER|UNCLEAR) \|", row)
    assert compared in {"SLOWER": {4}, "UNCLEAR": {3, 5}}.get(verdict, {0})
