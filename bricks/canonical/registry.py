"""The rules by operator: each brings one operator of ONNX's own domain into canonical form."""

from __future__ import annotations

from collections.abc import Callable

from .draft import Draft

__all__ = ["Rule", "find_rule", "rule"]

Rule = Callable[[Draft], None]
"""Changes a draft in place; raises ``OpsetBound`` where it cannot, ``ValueError`` where the operator is not legal."""

_RULES: dict[str, Rule] = {}


def rule(*op_types: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of one or more operators."""

    def register(function: Rule) -> Rule:
        for op_type in op_types:
            if op_type in _RULES:
                raise ValueError(f"{op_type} has two rules")
            _RULES[op_type] = function
        return function

    return register


def find_rule(op_type: str) -> Rule | None:
    """The rule of an operator; None where defaults are all there is to do."""
    return _RULES.get(op_type)
