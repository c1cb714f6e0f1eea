"""Prints the reference of the kernel in Markdown, made from its docstrings: `make kernel`.

The files come in the order of the map in `gateway/kernel/__init__.py`, which is that of a request.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

KERNEL = Path(__file__).resolve().parent.parent / "gateway" / "kernel"

Defined = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def reference() -> str:
    """All public classes, functions and methods, with their signatures and docstrings."""
    top = ast.get_docstring(_parsed("__init__.py")) or ""
    parts = ["# Kernel", top.partition("\n\n")[0]]
    for name in files():
        tree = _parsed(name)
        parts += [f"## {name}", ast.get_docstring(tree) or ""]
        for one in _public(tree):
            parts += [f"### `{_signature(one)}`", ast.get_docstring(one) or ""]
            for method in _public(one) if isinstance(one, ast.ClassDef) else ():
                parts += [f"#### `{_signature(method)}`", ast.get_docstring(method) or ""]
    return "\n\n".join(part for part in parts if part) + "\n"


def files() -> list[str]:
    """The modules that the map of the kernel names."""
    return re.findall(r"^(\w+\.py) ", ast.get_docstring(_parsed("__init__.py")) or "", re.MULTILINE)


def _parsed(name: str) -> ast.Module:
    return ast.parse((KERNEL / name).read_text())


def _public(tree: ast.Module | ast.ClassDef) -> Iterator[Defined]:
    return (one for one in tree.body if isinstance(one, Defined) and not one.name.startswith("_"))


def _signature(one: Defined) -> str:
    if isinstance(one, ast.ClassDef):
        return f"class {one.name}" + (f"({', '.join(map(ast.unparse, one.bases))})" if one.bases else "")
    returns = f" -> {ast.unparse(one.returns)}" if one.returns is not None else ""
    return f"{'async ' * isinstance(one, ast.AsyncFunctionDef)}{one.name}({ast.unparse(one.args)}){returns}"


if __name__ == "__main__":
    print(reference(), end="")
