"""What it takes to be a dialect or a backend here: the registries, and everything that must stand beside an entry."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.rows import ROWS
from gateway import backends, dialects
from gateway.core.errors import Kind
from gateway.core.messages import PLACEHOLDERS, Chat, Complete
from gateway.core.ports import Settings
from gateway.dialects._shared.api import Api
from tests.repo.tree import ROOT
from tests.support.clients import GENERATING, MEDIA

OPERATIONS = {"chat", "complete", "embed", "count", "rerank", "score", "tokenize", "detokenize", *MEDIA}
every_dialect = pytest.mark.parametrize("name", dialects.REGISTRY)
every_backend = pytest.mark.parametrize("name", backends.REGISTRY)


def sources(name: str) -> list[Path]:
    """The file of a dialect, or all of its package's."""
    path = Path(sys.modules[dialects.REGISTRY[name].__module__].__file__ or "")
    return list(path.parent.glob("*.py")) if path.stem == "__init__" else [path]


@pytest.mark.parametrize("package", [dialects, backends])
def test_nothing_in_the_folder_is_unregistered(package: object) -> None:
    registry = dialects.REGISTRY if package is dialects else backends.REGISTRY
    folder = ROOT / "gateway" / ("dialects" if package is dialects else "backends")
    registered = {made.__module__.rsplit(".", 1)[1] for made in registry.values()}
    modules = [*folder.glob("[!_]*.py"), *(path.parent for path in folder.glob("[!_]*/__init__.py"))]
    assert {path.stem for path in modules} == registered
    for name, made in registry.items():
        assert made.__module__.endswith(f".{name}"), f"{name} lives in a file or a package of its own name"


@every_dialect
def test_a_dialect_says_who_it_is(name: str) -> None:
    dialect = dialects.create(name, Settings())
    assert dialect.name == name
    assert dialect.routes
    assert dialect.prefixes == dialects.REGISTRY[name].prefixes
    changed = dialects.create(name, Settings(("/elsewhere",), "drop"))
    assert (changed.prefixes, changed.extras) == (("/elsewhere",), "drop")
    assert dialect.prefixes == dialects.REGISTRY[name].prefixes, "another's settings are not its own"
    assert set(dialect.passthrough) <= {
        backends.create(one).reply_wire(Chat(model="m", messages=())) for one in backends.REGISTRY
    }
    assert (sys.modules[type(dialect).__module__].__doc__ or "").strip()


@every_dialect
def test_a_dialect_has_a_form_for_every_error(name: str) -> None:
    table = dialects.create(name, Settings()).errors
    assert set(table) == set(Kind)
    for kind, (status, type_, code) in table.items():
        assert 400 <= status < 600, kind
        assert type_, kind
        assert code, kind


@every_dialect
def test_a_dialect_declares_what_becomes_of_each_field(name: str) -> None:
    dialect = dialects.create(name, Settings())
    assert dialect.fields
    assert set(dialect.fields) <= OPERATIONS
    assert {route.name for route in dialect.routes} & OPERATIONS <= set(dialect.fields)
    for operation, fields in dialect.fields.items():
        names = [field.name for field in fields]
        assert len(names) == len(set(names)), operation
        for field in fields:
            assert field.to is not None or field.handling != "renamed", f"{operation}: {field.name}"


@every_dialect
def test_no_two_routes_of_a_dialect_collide(name: str) -> None:
    routes = dialects.create(name, Settings()).routes
    places = [(route.method, route.path, route.absolute) for route in routes]
    assert len(places) == len(set(places))


@every_dialect
def test_a_dialect_has_its_page(name: str) -> None:
    page = ROOT / "docs" / "dialects" / f"{name}.md"
    assert page.is_file(), f"write docs/dialects/{name}.md: paths, fields, errors, oddities"
    text = page.read_text()
    for route in dialects.create(name, Settings()).routes:
        path = route.path.split("{")[0].rstrip("/")
        assert path in text, f"docs/dialects/{name}.md says nothing of {route.path}"


@every_dialect
def test_a_dialect_has_transcripts(name: str) -> None:
    found = [path.stem for path in (ROOT / "tests" / "laws" / "golden" / name).glob("*.txt")]
    assert len(found) >= 5
    assert any("stream" in stem for stem in found) or name not in GENERATING
    assert any(stem.startswith("error") for stem in found)


@every_dialect
def test_a_dialect_has_a_client_that_somebody_else_wrote(name: str) -> None:
    """Or, where there is none, the bytes of its specification's samples."""
    folder = ROOT / "tests" / "laws" / "contract"
    files = [path for path in folder.rglob("*") if path.suffix in (".py", ".mjs") and "node_modules" not in path.parts]
    own = {"sagemaker": "boto3", "azure_inference": "azure_client"}.get(name, name)
    assert [path for path in files if own in path.name or f"/{name}" in path.read_text()], f"no contract test of {name}"


def unit_tests(room: str, name: str) -> list[Path]:
    """Of a file or of a package."""
    folder = ROOT / "tests" / "unit" / room
    return [*folder.glob(f"test_{name}.py"), *folder.glob(f"{name}/test_*.py")]


@every_dialect
def test_a_dialect_has_unit_tests(name: str) -> None:
    assert unit_tests("dialects", name)


@every_dialect
def test_a_dialect_is_measured(name: str) -> None:
    kinds = {row.kind for row in ROWS if row.name.split(" ")[0] == name}
    wanted = {"plain", "stream"} if name in GENERATING else {"plain"}
    assert kinds == wanted, f"bench/rows.py needs {wanted} of {name}"


@every_backend
def test_a_backend_says_who_it_is(name: str) -> None:
    backend = backends.create(name)
    assert backend.name == name
    for op in (Chat(model="m", messages=()), Complete(model="m", prompts=("a",))):
        assert backend.reply_wire(op)
    document = sys.modules[type(backend).__module__].__doc__ or ""
    assert document.startswith("Backend for ")


@every_backend
def test_a_backend_has_unit_tests(name: str) -> None:
    assert unit_tests("backends", name)


# -- nobody names another -------------------------------------------------------------------------------------------


def words(path: Path) -> Iterator[str]:
    """Identifiers, and strings that are no documentation."""
    tree = ast.parse(path.read_text())
    documents = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            yield node.value


@every_dialect
def test_no_dialect_knows_another(name: str) -> None:
    """A dialect's name may also be a wire's, which is not a dialect. `_shared` belongs to all dialects."""
    own = dialects.REGISTRY[name]
    assert own.__bases__ == (Api,)
    classes = {made.__name__ for made in dialects.REGISTRY.values() if made is not own}
    for path in sources(name):
        found = set(words(path))
        for word in found:
            if word.startswith("gateway.dialects.") and not word.startswith("gateway.dialects._shared."):
                assert word.startswith(f"{own.__module__}."), f"{path.name}: {word} is another's"
        assert not classes & found, path.name


@pytest.mark.parametrize("room", ["kernel", "server", "core", "fleet", "ratelimit"])
def test_what_serves_all_names_none(room: str) -> None:
    place = ROOT / "gateway" / room
    named = re.compile(r"\b(" + "|".join(dialects.REGISTRY) + r")\b", re.IGNORECASE)
    assert list(place.rglob("*.py"))
    for path in place.rglob("*.py"):
        for word in set(words(path)) - PLACEHOLDERS:  # names of models
            assert not named.search(word), f"{path.relative_to(ROOT)}: {word!r}"
            assert "gateway.backends" not in word, path
