"""The tables of the client libraries that are seen to work, for docs/libraries.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.acceptance.libraries.library import DRIVERS, LIBRARIES, NODE, ROOT, TABLE, Library, version


def configuration(library: Library) -> str:
    """The line that points the library here: what the driver's `configuration` returns, else its `connect`."""
    if library.environment == NODE:
        source = (Path(__file__).parent / "node" / f"{library.driver}.mjs").read_text()
        line = re.search(r"function connect\(.*?return (.*?);\n}", source, re.DOTALL)
        assert line is not None, library.driver
        told = re.sub(r"`\$\{url\}(.*?)`", rf'"{HERE}\1"', line[1])
        return re.sub(r"(?<=[{(] )model(?=,)|(?<=\()model(?=\))", lambda at: _model(at[0], line[1]), told)
    found: dict[str, ast.FunctionDef] = {}
    assigned: dict[str, ast.expr] = {}
    for node in ast.parse((DRIVERS / f"{library.driver}.py").read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
    body = found.get("configuration", found["connect"]).body
    for statement in body[:-1]:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            assigned[statement.targets[0].id] = statement.value
    last = body[-1]
    assert isinstance(last, ast.Return)
    assert last.value is not None
    value = _Filled(assigned).visit(last.value)
    if isinstance(value, ast.Constant):
        return str(value.value)
    return ast.unparse(value.body if isinstance(value, ast.Lambda) else value).replace("'", '"')


HERE, MODEL = "http://127.0.0.1:8080", "smollm2"


def _model(name: str, line: str) -> str:
    return f'model: "{MODEL}"' if "{ model," in line else f'"{MODEL}"'


class _Filled(ast.NodeTransformer):
    """Puts in the address and the model of `make run`, and what names stand for."""

    def __init__(self, assigned: dict[str, ast.expr]) -> None:
        self._assigned = assigned

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        said = {"url": HERE, "model": MODEL}
        return ast.Constant(
            "".join(
                said[part.value.id]
                if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name)
                else str(part.value)
                for part in node.values
                if isinstance(part, (ast.FormattedValue, ast.Constant))
            )
        )

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in ("model", "url"):
            return ast.Constant(MODEL if node.id == "model" else HERE)
        if node.id in self._assigned:
            value: ast.expr = self.visit(self._assigned[node.id])
            return value
        return node


FURTHER = """
## Tried further

Each ran with its line of [clients](clients.md), also from the small model of `make run`. *Tools*: a conversation in
which the model calls a tool twice at once and answers then. *Failure before*: the error of a stream whose worker fails
before its first byte, after the library's own retries. *Over a limit*: what a 429 with `Retry-After` is; `waits` means
that the library asks again after that time, and has its answer.

| library | package | tools | failure before | over a limit | expired key |
|---|---|---|---|---|---|
"""


def tables() -> str:
    """What docs/libraries.md has of each library, by client API, and what was tried further."""
    parts = []
    for api in dict.fromkeys(one.api for one in LIBRARIES):
        title = (ROOT / "docs" / "dialects" / f"{api}.md").read_text().splitlines()[0].removeprefix("# ")
        parts.append(f"\n## {title}\n\n[The API](dialects/{api}.md).\n")
        parts.append("| library | package | configuration | unknown model | broken stream | what it cannot do |")
        parts.append("|---|---|---|---|---|---|")
        for one in LIBRARIES:
            if one.api == api:
                cells = (
                    one.name,
                    f"{one.package} {version(one)}",
                    f"`{configuration(one)}`",
                    _class(one.unknown),
                    _class(one.cut),
                    one.cannot,
                )
                parts.append(f"| {' | '.join(cells)} |")
    further = []
    for one in TABLE:
        assert one.further is not None
        tried = one.further
        tools = "yes" if tried.tools else "-"
        waits = _class(tried.limited) if tried.limited else "waits"
        cells = (one.name, f"{one.package} {version(one)}", tools, _class(tried.before), waits, _class(tried.expired))
        further.append(f"| {' | '.join(cells)} |")
    return "\n".join(parts) + "\n" + FURTHER + "\n".join(further) + "\n"


def _class(name: str) -> str:
    return f"`{name}`" if name else "-"
