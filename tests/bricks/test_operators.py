"""One row per operator, and no other module with a table of operators."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import onnx
import pytest
from dlbricks.bricks.operators import ELEMENTWISE, MOVES, OPERATORS, RANDOM, VIEWS, Kind, ShapedBy, named

ROOT = Path(__file__).resolve().parents[2]

EXCEPTIONS = {
    "analyzer/findings/analyses/slow_kernels.py": "operators that other analyses of this folder are about",
    "analyzer/rewriting/demand.py": "which part of each operand a part of the result needs: functions of an engine",
    "analyzer/rewriting/evaluation.py": "how the prover computes each as real numbers",
    "analyzer/rewriting/pointwise.py": "kernels that this engine writes, and their formulas",
    "analyzer/rewriting/both_sides.py": "how the prover names the poles of each",
    "bricks/canonical/spatial.py": "default values of attributes, as the standard states them",
    "bricks/features.py": "numbers that kept features contain",
    "bricks/graph/expansion.py": "operators that this module writes",
    "bricks/inference/arithmetic.py": "how constants are folded: functions",
    "generator/network/legality.py": "legal inputs that depend on shapes: functions",
    "generator/network/synthetic/walk.py": "how moments pass: functions",
    "generator/network/synthetic/weights.py": "how moments pass: functions",
    "generator/network/export.py": "one rewriting of attention for one exporter's files",
    "models/binding.py": "below the table",
    "models/subgraphs.py": "below the table",
    "models/zoo/structures.py": "below the table",
}
"""Modules with a table of operators of their own, and why."""


def test_every_operator_of_the_newest_opset_has_a_row():
    newest = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}

    assert newest <= {name for domain, name in OPERATORS if not domain}


def test_every_row_is_an_operator():
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain}

    assert {name for domain, name in OPERATORS if not domain} - known == {"SimplifiedLayerNormalization"}


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_has_an_operator(kind: Kind):
    assert named(kind)


def test_groups_are_consistent():
    assert VIEWS <= MOVES
    assert MOVES.isdisjoint(ELEMENTWISE - VIEWS)
    assert all(OPERATORS["", name].shaped_by is ShapedBy.OPERANDS for name in RANDOM)
    assert all(not set(row.parameters) & set(row.deciding) for row in OPERATORS.values())


def test_no_other_module_has_a_table_of_operators():
    tables = {module for module in _modules() if _has_table(module)}

    assert tables == set(EXCEPTIONS)


def _modules() -> set[str]:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    apart = ("tests/", "benchmarks/", "generator/backends/", "bricks/operators.py")
    return {name for name in listed.split() if not name.startswith(apart)}


def _has_table(module: str) -> bool:
    """Return True if a constant of a module names two operators or more."""
    names = {name for _, name in OPERATORS}
    for statement in ast.parse((ROOT / module).read_text("utf-8")).body:
        value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
        constants = [] if value is None else [node.value for node in ast.walk(value) if isinstance(node, ast.Constant)]
        texts = [set(constant.split()) for constant in constants if isinstance(constant, str)]
        if len(set[str]().union(*(words for words in texts if words <= names))) > 1:
            return True
    return False
