"""Breaks rooms of the gateway, one small change at a time, and lists the changes that the rooms' tests do not notice.

    python -m scripts.mutants ROOM... COUNT [--seed N] [--least SHARE] [--limit SECONDS]

COUNT mutants of each room are drawn from the lines that its tests run, by a seed that is printed first. Each mutant
runs the tests that reach its line, or all tests of the room if the line runs at import. All happens in a copy of the
working tree. Survivors are printed as `file:line  before -> after`, then a table. The exit code is 1 if the share of
killed mutants of a room is below SHARE.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from coverage import CoverageData

ROOT = Path(__file__).resolve().parent.parent
MORE = {
    "backends": [
        "tests/laws/conformance/test_conformance.py",
        "tests/laws/conformance/test_failures.py",
        "tests/laws/conformance/test_constraints.py",
    ],
    "config": [
        "tests/unit/config/test_config.py",
        "tests/unit/config/test_config_reference.py",
        "tests/unit/cli/test_check.py",
    ],
    "core": ["tests/laws/errors", "tests/laws/conformance/test_any_order.py"],
    "dialects": ["tests/laws/conformance/test_conformance.py", "tests/laws/golden"],
    "translation": ["tests/laws/conformance/test_continued.py", "tests/laws/conformance/test_constraints.py"],
}
"""Room -> the tests that cover it beside those of its own folder."""
PYTEST = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-o", "faulthandler_exit_on_timeout=true"]
_PAIRS = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
    *((ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv)),
)
OPPOSITE: dict[type[ast.AST], type[ast.AST]] = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Mutant(NamedTuple):
    """A change of one place in one file."""

    path: str
    node: ast.expr | ast.stmt
    after: str
    """What stands there instead, as source."""

    def __str__(self) -> str:
        before, after = (" ".join(text.split()) for text in (ast.unparse(self.node), self.after))
        return f"{self.path}:{self.node.lineno}  {before} -> {after}"

    def applied(self, source: bytes) -> bytes:
        """`source` with the change. Columns of syntax trees count bytes."""
        lines, node = source.splitlines(keepends=True), self.node
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        head = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
        tail = lines[node.end_lineno - 1][node.end_col_offset :] + b"".join(lines[node.end_lineno :])
        return head + self.after.encode() + tail


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes below, without annotations, assertions and f-strings: Python 3.11 gives no places inside of these."""
    for field, value in ast.iter_fields(tree):
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(node, ast.Assert | ast.JoinedStr):
                continue
            if field not in ("annotation", "returns"):
                yield node
                yield from nodes(node)


def changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """The places to change at `node`, each with what to write there."""
    match node:
        case ast.Compare(ops=[operator]) | ast.BoolOp(op=operator) | ast.BinOp(op=operator) if (
            type(operator) in OPPOSITE
        ):
            other = OPPOSITE[type(operator)]()
            changed = {"ops": [other]} if isinstance(node, ast.Compare) else {"op": other}
            yield node, f"({ast.unparse(type(node)(**vars(node) | changed))})"
        case ast.UnaryOp(ast.Not(), operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.Constant(bool() as value):
            yield node, repr(not value)
        case ast.Constant(int() | float() as value):
            yield from ((node, repr(value + step)) for step in (1, -1))
        case ast.Name(name, ast.Load()) if name in NAMES:
            yield node, NAMES[name]
        case ast.Return(value) if value is not None and not (isinstance(value, ast.Constant) and value.value is None):
            yield node, "return None"
        case ast.Expr(ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break():
            yield node, "pass"
        case ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield node, "pass"
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield node.test, f"(not ({ast.unparse(node.test)}))"


def pytest(tree: Path, arguments: list[str], limit: float | None = None) -> int:
    """Runs tests in `tree`: 0 if all pass. A run that takes longer than `limit` seconds has failed."""
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1" if limit else "", "CI": "1"}
    with (tree / "output").open("wb") as output:
        command = [sys.executable, *PYTEST, *arguments]
        running = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            return running.wait(limit)
        except subprocess.TimeoutExpired:
            return 1
        finally:  # the session's other processes too: servers of tests that ended early
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()


def mutants(tree: Path, room: str, count: int, chosen: random.Random, limit: float) -> list[Mutant]:
    """Draws and tests mutants of `room` in `tree`, and returns those that survive."""
    tests = [f"tests/unit/{room}", *MORE.get(room, [])]
    begin = time.monotonic()
    if pytest(tree, [*tests, f"--cov=gateway/{room}", "--cov-context=test", "--cov-report="]):
        sys.exit(f"{(tree / 'output').read_text()[-3000:]}\nThe tests of {room} fail without any change.")
    whole = 2 * (time.monotonic() - begin) + limit
    data = CoverageData(str(tree / ".coverage"))
    data.read()
    found: list[tuple[Mutant, list[str]]] = []
    for path in sorted((tree / "gateway" / room).rglob("*.py")):
        lines, name = data.contexts_by_lineno(str(path)), str(path.relative_to(tree))
        drawn = [Mutant(name, *change) for node in nodes(ast.parse(path.read_bytes())) for change in changes(node)]
        found += [(mutant, lines[mutant.node.lineno]) for mutant in drawn if mutant.node.lineno in lines]
    survivors = []
    for mutant, contexts in chosen.sample(found, min(count, len(found))):
        # A fixture's set-up belongs to the first test that wanted it, but serves others of its file.
        parts = [context.rpartition("|") for context in contexts]
        reached = {test if phase == "run" else test.partition("::")[0] for test, _, phase in parts}
        (tree / "tests.txt").write_text("\n".join(sorted(reached - {""}) or tests))
        path = tree / mutant.path
        shutil.copy2(path, tree / "unchanged")
        path.write_bytes(mutant.applied(path.read_bytes()))
        if pytest(tree, ["-o", f"faulthandler_timeout={limit}", "@tests.txt"], whole) == 0:
            survivors.append(mutant)
            print(mutant, flush=True)
        os.replace(tree / "unchanged", path)
    return survivors


def main() -> int:
    """Reads the arguments, copies the tree, and prints the table."""
    parser = argparse.ArgumentParser(prog="scripts.mutants", description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("rooms", nargs="+", metavar="ROOM", help="folder of gateway/")
    add("count", type=int, metavar="COUNT", help="mutants of each room")
    add("--seed", type=int, default=random.randrange(10_000), help="of the draw")
    add("--least", type=float, default=0.0, metavar="SHARE", help="share of mutants to kill (0.0)")
    add("--limit", type=float, default=60.0, metavar="SECONDS", help="for one test (60)")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    files = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True).splitlines()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder).resolve()
        for file in files:
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, tree / file)
        (tree / ".venv").symlink_to(ROOT / ".venv")
        for room in given.rooms:
            survived = len(mutants(tree, room, given.count, random.Random(given.seed), given.limit))
            rows.append((room, given.count, given.count - survived, survived))
    for row in (("room", "mutants", "killed", "survived"), *rows):
        print("{:12} {:>8} {:>8} {:>8}".format(*row))
    return int(any(killed < given.least * count for _, count, killed, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
