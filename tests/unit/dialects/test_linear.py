"""No pass over a request takes longer than in proportion to it: twice as much of anything, or of any two things that
refer to each other, is at most twice the work.

Work is counted for each line of code by itself, so that a loop in a loop is seen among any amount of other work.
"""

from __future__ import annotations

import ast
import json
import linecache
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import pytest

from gateway import backends, dialects
from gateway.core.errors import GatewayError
from gateway.core.estimate import Estimator
from gateway.core.messages import QUESTIONS
from gateway.core.ports import Capabilities, Settings
from gateway.translation import totals
from gateway.translation.ability import refuse_beyond
from tests.chaos.hostile import KINDS
from tests.chaos.row import FULL, SEED
from tests.laws.fidelity.matrix import asking
from tests.repo.tree import ROOT
from tests.support.clients import DIALECTS, WAYS, Way
from tests.support.steps import lines
from tests.unit.dialects.crowds import crowded, crowds

# Four times as many. Below all bounds of what is bounded to fewer would be too few to see anything.
FEW, MANY = 16, 64
# A line may run so often for each thing, whatever it does when there are few: some are reached only if there are many.
FREE = 8
DRAWN = 100
SOME = frozenset({"vision", "tools", "reasoning", "json", "json_schema", "regex", "completions", "embeddings"})
Make = Callable[[int], dict[str, Any]]


def handle(way: Way, members: dict[str, Any]) -> None:
    """What the loop and the thread do with a request until it is sent, or refused. One dialect stands before every
    backend, the others before one: they hand on the same canonical request."""
    dialect = dialects.create(way.dialect, Settings(extras="pass"))
    before = list(backends.REGISTRY)[: None if way.dialect == WAYS[0].dialect else 1]
    request = asking(way.example, members)
    op: Any = None
    try:
        op = dialect.read(request)
        if type(op) in QUESTIONS:
            return
        refuse_beyond(op, Capabilities("m", 4096, SOME))
        Estimator().cost(op, 4096)
        for name in before:
            try:
                backends.create(name).write(totals.first_request(op), Capabilities("m"))
            except GatewayError as error:
                dialect.refuse(error, request, op)
    except GatewayError as error:
        dialect.refuse(error, request, op)


def superlinear(work: Callable[[int], object], within: str = "/gateway/") -> dict[tuple[str, int], tuple[int, int]]:
    """The lines that run too often in files whose path holds `within`: (file, line) -> (times with FEW things, times
    with MANY)."""
    many = lines(lambda: work(MANY), within)
    often = {line: times for line, times in many.items() if times > FREE * MANY}
    few = lines(lambda: work(FEW), within) if often else {}
    return {line: (few[line], times) for line, times in often.items() if times > FREE * MANY + MANY // FEW * few[line]}


def bodies(way: Way, drawn: int) -> Iterator[tuple[str, Make]]:
    """Every kind of hostile body, and pairs of lists that refer to each other: all of those if FULL, else so many."""
    yield from KINDS.get(way.operation, {}).items()
    found = list(crowds(way.dialect, way.operation))
    random.Random(SEED).shuffle(found)
    for body, one, other, naming in islice(found, None if FULL else drawn):
        yield f"{one} and {other}, {naming}", partial(crowded, body, one, other, naming)


@pytest.mark.parametrize("drawn", [8, pytest.param(DRAWN, marks=pytest.mark.long)])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_loop_in_a_loop_over_what_a_client_sends(dialect: str, drawn: int) -> None:
    seen = set()
    for way in WAYS:
        if way.dialect != dialect or way.operation in seen:
            continue
        seen.add(way.operation)
        for name, make in bodies(way, drawn):
            found = superlinear(lambda n, way=way, make=make: handle(way, make(n)))  # type: ignore[misc]
            assert not found, (str(way), name)


def nested(around: str, inner: Any) -> Any:
    text = json.dumps(inner)
    for _ in range(DEEP):
        text = around.replace("INNER", text, 1)
    return json.loads(text)


DEEP, DECODED = 150, 24
_TOOL = {"type": "function", "name": "f", "zz": 1}
_BLOCK = {"type": "text", "text": "a", "zz": 1}


def _turn(block: Any) -> dict[str, Any]:
    return {"max_tokens": 5, "messages": [{"role": "user", "content": [block]}]}


_SPACE = '{"type":"namespace","name":"n","tools":[INNER]}'
NESTED: list[tuple[str, Callable[[Any], dict[str, Any]], str, Any]] = [
    ("anthropic", _turn, '{"type":"tool_result","tool_use_id":"c","content":[INNER]}', _BLOCK),
    ("anthropic", _turn, '{"type":"search_result","content":[INNER]}', _BLOCK),
    ("anthropic", _turn, '{"type":"document","source":{"type":"content","content":[INNER]}}', _BLOCK),
    (
        "responses",
        lambda tool: {"input": "a", "tools": [tool]},
        '{"type":"namespace","name":"n","tools":[INNER]}',
        _TOOL,
    ),
    ("responses", lambda tool: {"input": [tool]}, '{"type":"additional_tools","tools":[INNER]}', _TOOL),
]


@pytest.mark.parametrize(("dialect", "make", "around", "inner"), NESTED)
def test_what_is_nested_is_not_decoded_for_each_level_around_it(
    dialect: str, make: Callable[[Any], dict[str, Any]], around: str, inner: Any
) -> None:
    assert not decoded_again(dialect, make(nested(around, inner)))


def decoded_again(dialect: str, members: dict[str, Any]) -> dict[tuple[str, int], int]:
    """The lines that decode or encode once for each level of this body, and how often they run."""
    way = next(way for way in WAYS if way.dialect == dialect)
    counted = lines(lambda: handle(way, members), "/gateway/")
    return {
        line: times
        for line, times in counted.items()
        if times > DECODED and any(word in linecache.getline(*line) for word in (".decode(", "encode("))
    }


def searches(source: str) -> list[str]:
    """The lines of a module that look in a loop for something in a list. The count of lines takes each for one."""
    found = set()
    for function in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)):
        lists = set()
        for node in ast.walk(function):
            if isinstance(node, (ast.arg, ast.AnnAssign)) and node.annotation is not None:
                name = node.arg if isinstance(node, ast.arg) else ast.unparse(node.target)
                lists |= {name} if ast.unparse(node.annotation).startswith("list[") else set()
            elif isinstance(node, ast.Assign) and isinstance(node.value, (ast.List, ast.ListComp)):
                lists |= {ast.unparse(target) for target in node.targets}
        for loop in (node for node in ast.walk(function) if isinstance(node, (ast.For, ast.comprehension))):
            for node in (node for node in ast.walk(loop) if isinstance(node, ast.Compare)):
                looked = zip(node.ops, node.comparators, strict=True)
                if any(isinstance(how, (ast.In, ast.NotIn)) and ast.unparse(at) in lists for how, at in looked):
                    found.add(f"{node.lineno}: {ast.unparse(node)}")
    return sorted(found)


@pytest.mark.parametrize("room", ["dialects", "backends"])
def test_no_loop_looks_for_something_in_a_list(room: str) -> None:
    paths = sorted((ROOT / "gateway" / room).rglob("*.py"))
    assert {str(path): found for path in paths if (found := searches(path.read_text()))} == {}


@pytest.mark.parametrize(
    "body",
    [
        "def f(left: list[str]) -> None:\n for a in b:\n  if a not in left: pass",
        "def f() -> None:\n left = []\n for a in b: a in left",
        "def f() -> None:\n left: list[str] = g()\n return [a for a in b if a in left]",
    ],
)
def test_a_search_of_a_list_is_seen(body: str) -> None:
    assert searches(body)
    assert not searches(body.replace("list[str]", "dict[str, None]").replace("[]", "{}"))


def test_what_is_quadratic_is_seen() -> None:
    def quadratic(n: int) -> None:
        """A quarter of the pairs is enough."""
        for one in range(n):
            [other for other in range(one // 2) if other != one]

    def work(n: int) -> None:
        sum(one for one in range(n))
        quadratic(n)

    assert superlinear(work, __file__)
    assert not superlinear(lambda n: sum(one for one in range(n)), __file__)
