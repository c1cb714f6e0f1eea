"""No class of the gateway has many attributes or a constructor of many parameters, but for those that say why here."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.repo.test_imports import statements
from tests.repo.tree import ROOT, tracked

MOST_ATTRIBUTES = 20
MOST_PARAMETERS = 8
"""Of a constructor, `self` not counted."""
_SCHEMA = "a member for each option or field of the format that it is"
_HOT = (
    "the state of one connection or request, read for each block: one object, since each further one is another lookup"
)
WIDE = {
    "gateway.config.model.Config": _SCHEMA,
    "gateway.config.model.Model": _SCHEMA,
    "gateway.config.serving.Listen": _SCHEMA,
    "gateway.core.ports.account.RequestRecord": _SCHEMA,
    "gateway.core.messages.Chat": _SCHEMA,
    "gateway.dialects.friendli.requests._CompleteIn": _SCHEMA,
    "gateway.features.console.requests.RequestView": _SCHEMA,
    "gateway.core.errors.GatewayError": "its parameters are optional facts about one error, given by name",
    "gateway.core.failures.Cause": "the closed set of causes, one member each",
    "gateway.core.routing_facts.RoutingFacts": "what pick policies read of one request, made once a request",
    "gateway.observe.metrics.Metrics": "one attribute for each family that counts on the way of a request",
    "gateway.fleet.worker.Worker": _HOT,
    "gateway.ratelimit.redis.batcher.Batcher": "one stream of calls: its queue, timers and breaker end together",
    "gateway.kernel.call.Call": "the one owner of a request's material, which its steps hand on to each other",
    "gateway.server.connection.ClientConnection": _HOT,
    "gateway.server.cycle.RequestCycle": _HOT,
    "gateway.transport.connection.WorkerConnection": _HOT,
}
"""Class -> the reason for which it may be wider."""


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def attributes(found: ast.ClassDef) -> set[str]:
    """The names of a class's fields, its slots, and what its methods assign to `self`."""
    names: set[str] = set()
    for statement in found.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names.add(statement.target.id)
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            slots = statement.targets[0].id == "__slots__"
            texts = (part.value for part in ast.walk(statement.value) if isinstance(part, ast.Constant))
            names.update(map(str, texts) if slots else [statement.targets[0].id])
    for inner in statements(found):
        targets = [*getattr(inner, "targets", ()), getattr(inner, "target", None)]
        targets += [item.optional_vars for item in getattr(inner, "items", ())]
        for node in (node for target in targets if target for node in ast.walk(target)):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
                names.add(node.attr)
    return names


def parameters(found: ast.ClassDef) -> int:
    """The number of parameters of the class's constructor; 0 without one."""
    for node in found.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]) - 1
    return 0


def wide(source: str) -> Iterator[tuple[str, int, int]]:
    """(class, attributes, parameters) of the classes of a module that have too many of either."""
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            count, given = len(attributes(node)), parameters(node)
            if count > MOST_ATTRIBUTES or given > MOST_PARAMETERS:
                yield node.name, count, given


def test_no_class_is_too_wide() -> None:
    found = {
        f"{path.relative_to(ROOT).with_suffix('')}.{name}".replace("/", "."): (count, given)
        for path in tracked("gateway/*.py")
        for name, count, given in wide(path.read_text())
    }
    assert {name: sizes for name, sizes in found.items() if name not in WIDE} == {}
    assert WIDE.keys() - found.keys() == set(), "a reason without a class"


def test_a_wide_class_is_found() -> None:
    fields = "".join(f"    a{number}: int\n" for number in range(21))
    given = ", ".join(f"b{number}" for number in range(9))
    assigned = "".join(f"        self.c{number} = 1\n" for number in range(21))
    assert list(wide(f"class A:\n{fields}")) == [("A", 21, 0)]
    assert list(wide(f"class B:\n    def __init__(self, {given}): ...\n")) == [("B", 0, 9)]
    assert list(wide(f"class C:\n    def f(self):\n{assigned}")) == [("C", 21, 0)]
    assert list(wide('class D:\n    __slots__ = ("a", "b")\n    def __init__(self, a): self.a = a\n')) == []
