"""Waits of tests: long enough for a machine that does something else as well."""

from __future__ import annotations

import ast
import re

from tests.repo.tree import ROOT, tracked

LEAST_S = 30
"""A bound is there to end a test whose event never comes, and says nothing of how soon it has to come."""


def test_no_wait_is_bounded_by_what_a_quiet_machine_needs() -> None:
    """The rows of the scoreboard measure times, and have bounds of their own."""
    short = []
    for path in tracked("tests/*.py"):
        if path.relative_to(ROOT).parts[1] == "chaos":
            continue
        if not re.search(r"\b(until|soon)\(", text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("until", "soon"):
                bounds = [*node.args[1:], *(keyword.value for keyword in node.keywords)]
                if any(ast.literal_eval(bound) < LEAST_S for bound in bounds if isinstance(bound, ast.Constant)):
                    short.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert short == []
