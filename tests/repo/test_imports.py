"""The import arrows: which room may import which, and which room alone may touch an outside library."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repo.tree import ROOT, write

CORE = {"core"}
WIRE = {"core", "wire"}
# Room (first name below `gateway`) -> rooms it may import beside itself. `app` and `cli` see all.
ARROWS: dict[str, set[str]] = {
    "core": set(),
    "wire": CORE,
    "translation": CORE,
    "dialects": WIRE | {"translation"},
    "backends": WIRE | {"translation"},
    "background": set(),
    "bucket": CORE | {"config"},
    "light_task": set(),
    "moments": CORE,
    "native": WIRE | {"translation"},
    "offload": CORE,
    "resolve": set(),
    "fleet": CORE | {"background", "config", "redis", "resolve"},
    "redis": CORE | {"config"},
    "transport": CORE | {"light_task", "resolve"},
    "observe": CORE | {"background", "config", "moments", "ratelimit"},
    "config": CORE,
    "auth": CORE | {"background", "config"},
    "server": CORE | {"config", "light_task"},
    "ratelimit": CORE | {"background", "config", "light_task", "moments", "redis"},
    "kernel": CORE | {"auth", "config", "light_task", "native", "offload", "translation", "wire"},
    # A feature builds itself, of what it needs.
    "features": WIRE
    | {
        "auth",
        "background",
        "bucket",
        "config",
        "fleet",
        "kernel",
        "light_task",
        "moments",
        "observe",
        "offload",
        "ratelimit",
        "redis",
    }
    | {"ratelimit", "redis", "tools", "translation", "transport"},
    "tools": CORE | {"config", "resolve"},
}
EVERYTHING = {"app", "asgi", "cli"}

# These translate bytes and values: no I/O, no framework.
PURE = {"core", "wire", "translation", "dialects", "backends"}
PURE_OUTSIDE = {"backports", "brotli", "compression", "cryptography", "msgspec", "python_multipart"}
IMPURE_STDLIB = {"asyncio", "http", "os", "pathlib", "select", "selectors", "signal", "socket", "ssl", "subprocess"}
IMPURE_STDLIB |= {"tempfile", "threading", "urllib"}
# `urllib.parse` is text to text, `http` statuses are a table.
HARMLESS = {"urllib.parse"}
ENVIRONMENT = re.compile("environb?|getenv|putenv")
CLOCKS = {"datetime", "random", "secrets", "time"}

# Outside library -> the only modules that import it.
ONLY: dict[str, tuple[str, ...]] = {
    "jwt": ("gateway.auth.jwt",),
    "opentelemetry": ("gateway.observe.spans",),
    "httptools": ("gateway.transport", "gateway.server", "gateway.tools"),
    "pydantic": ("gateway.config",),
    "pydantic_settings": ("gateway.config",),
    "backports": ("gateway.wire.codings",),
    "brotli": ("gateway.wire.codings",),
    "python_multipart": ("gateway.wire.multipart",),
    "redis": ("gateway.redis",),
    "websockets": ("gateway.server",),
    "obstore": ("gateway.bucket", "gateway.features.batches.bucket", "gateway.features.prompt_log.bucket"),
    "yaml": (
        "gateway.config",
        "gateway.cli.clients",  # this and the next two read no configuration of the gateway's
        "gateway.cli.importing.drafts",
        "gateway.cli.rendered",
    ),
    "zmq": (),
}


def module_name(root: Path, path: Path) -> str:
    """`gateway/core/errors.py` -> `gateway.core.errors`; a package's `__init__.py` is the package."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.Module, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of every import, wherever it stands; `from a import b` gives `a.b`."""
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                above = parts[: len(parts) - node.level + is_package]
                base = ".".join([*above, base] if base else above)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def statements(of: ast.AST) -> Iterator[ast.AST]:
    """All statements below a node, without their expressions: most of a module, in which nothing is imported."""
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        for node in getattr(of, name, ()):
            yield node
            yield from statements(node)


def within(name: str, *modules: str) -> bool:
    """`name` is one of `modules` or inside one."""
    return any(name == module or name.startswith(module + ".") for module in modules)


def room_of(module: str) -> str:
    """First name below the top package, "" for the package itself."""
    return module.partition(".")[2].partition(".")[0]


def feature_of(module: str) -> str:
    """The feature that a module belongs to, "" for one outside."""
    parts = module.split(".")
    return parts[2] if parts[:2] == ["gateway", "features"] and len(parts) > 2 else ""


def exists(root: Path, dotted: str) -> bool:
    """`dotted` is a module or package of the tree."""
    path = root.joinpath(*dotted.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def reads_environment(node: ast.AST) -> bool:
    """`os.environ` or `os.getenv`, also imported by name."""
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id == "os" and bool(ENVIRONMENT.fullmatch(node.attr))
    named = node.names if isinstance(node, ast.ImportFrom) and node.module == "os" else ()
    return any(ENVIRONMENT.fullmatch(alias.name) for alias in named)


def wrong_arrow(root: Path, module: str, target: str) -> str | None:
    """Why `module` must not import `target`, or None."""
    room, top = room_of(module), target.split(".")[0]
    mine = module.split(".")[0]
    if top in {"tests", "bench", "scripts"}:
        return "the product imports nothing that only develops it"
    if mine == "workers":
        return "a worker knows nothing of the gateway" if top == "gateway" else None
    if top == "workers":
        return None if room == "cli" else "only the command line starts workers"
    if top == "gateway":
        other = ".".join(target.split(".")[:2])
        if room == "features" == room_of(target) and (mine := feature_of(module)):
            asked = feature_of(target)
            if asked not in ("", mine) and exists(root, f"gateway.features.{asked}"):
                return "a feature knows no other feature"
        if room in EVERYTHING or room == room_of(target) or not exists(root, other):
            return None
        if room not in ARROWS:
            return f"room {room!r} has no arrows; give it some here"
        return None if room_of(target) in ARROWS[room] else f"{room} must not see {room_of(target)}"
    if top in ONLY and not within(module, *ONLY[top]):
        return f"only {', '.join(ONLY[top])} may import it"
    if room in PURE and not within(target, *HARMLESS):
        outside = top not in sys.stdlib_module_names and top not in PURE_OUTSIDE
        if outside or top in IMPURE_STDLIB or (room in ("core", "translation") and top in CLOCKS):
            return f"{room} does no I/O; core and translation read no clock"
    return None


def violations(root: Path) -> list[str]:
    """Every arrow in gateway/ and workers/ that must not be, as `file:line: target: why`."""
    found = []
    for path in sorted([*root.glob("gateway/**/*.py"), *root.glob("workers/**/*.py")]):
        module, text = module_name(root, path), path.read_text()
        tree = ast.parse(text, str(path))
        place = path.relative_to(root)
        looks = within(module, "gateway") and not within(module, "gateway.config")
        # The protocols in core/ports say what others await; they have no body that does.
        awaits = (ast.Await,) if path.parent.name == "ports" else (ast.Await, ast.AsyncFunctionDef)
        still = awaits if within(module, "gateway.core", "gateway.translation") else ()
        for line, target in imports(tree, module, path.name == "__init__.py"):
            if (why := wrong_arrow(root, module, target)) is not None:
                found.append(f"{place}:{line}: {target}: {why}")
        for node in ast.walk(tree) if still or ENVIRONMENT.search(text) else ():
            if looks and reads_environment(node):
                found.append(f"{place}:{getattr(node, 'lineno', 0)}: only gateway.config reads the environment")
            if isinstance(node, still):
                found.append(f"{place}:{getattr(node, 'lineno', 0)}: {room_of(module)} awaits nothing")
    return found


def names_of_parts(root: Path) -> set[str]:
    """Names of the dialects and backends there are: what the kernel must not know."""
    files = [*root.glob("gateway/dialects/[!_]*"), *root.glob("gateway/backends/[!_]*")]
    return {path.stem for path in files}


def literal_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Identifiers, attributes and whole string constants with their lines; docstrings are longer and so never match."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def partial_to(root: Path) -> list[str]:
    """Where the kernel names a dialect or a backend."""
    names = names_of_parts(root)
    found = []
    for path in sorted(root.glob("gateway/kernel/**/*.py")):
        for line, name in literal_names(ast.parse(path.read_text())):
            if name.lower() in names:
                found.append(f"{path.relative_to(root)}:{line}: names {name}")
    return found


def test_arrows_hold() -> None:
    assert violations(ROOT) == []


def test_the_kernel_names_no_dialect_and_no_backend() -> None:
    assert partial_to(ROOT) == []


TREE = {
    "gateway/__init__.py": "",
    "gateway/core/__init__.py": "",
    "gateway/core/errors.py": "import enum, msgspec\nfrom typing import Any\n",
    "gateway/wire/sse.py": "from gateway.core import errors\nimport json\n",
    "gateway/dialects/openai.py": "from gateway.wire import sse\nfrom urllib.parse import quote\nimport time\n",
    "gateway/dialects/azure.py": "from gateway.dialects.openai import X\nfrom . import openai\n",
    "gateway/backends/vllm.py": "from ..core.errors import Kind\n",
    "gateway/redis/client.py": "import redis.asyncio\nfrom gateway.config import load\n",
    "gateway/ratelimit/redis/store.py": "from gateway.redis import client\nfrom gateway.core.errors import Kind\n",
    "gateway/transport/pooled.py": "import asyncio, httptools\n",
    "gateway/config/load.py": "import os, yaml\nfrom pydantic import BaseModel\nx = os.environ\n",
    "gateway/auth/keys.py": "from gateway.core import errors\n",
    "gateway/features/guards/__init__.py": "from gateway.core import errors\n",
    "gateway/kernel/pump.py": "from gateway.core import errors\n",
    "gateway/kernel/serving.py": "from gateway import auth\nfrom gateway.kernel import pump\n",
    "gateway/app/routes.py": "from gateway.dialects import openai\nimport starlette\n",
    "gateway/app/deployment.py": "from gateway.ratelimit.redis import store\nfrom gateway.app import routes\n",
    "gateway/cli/__init__.py": "def worker():\n    from workers import embedded\n",
    "workers/embedded/__init__.py": "import os\nx = os.environ\n",
}


def test_a_good_tree_passes(tmp_path: Path) -> None:
    write(tmp_path, TREE)
    assert violations(tmp_path) == []
    assert partial_to(tmp_path) == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("gateway/core/errors.py", "from gateway.wire import sse"),
        ("gateway/core/errors.py", "import httpx"),
        ("gateway/core/errors.py", "import time"),
        ("gateway/core/errors.py", "async def f(): ..."),
        ("gateway/wire/sse.py", "from gateway.dialects.openai import X"),
        ("gateway/wire/sse.py", "import asyncio"),
        ("gateway/dialects/openai.py", "from gateway.backends import vllm"),
        ("gateway/dialects/openai.py", "import urllib.request"),
        ("gateway/backends/vllm.py", "from ..transport import pooled"),
        ("gateway/ratelimit/window.py", "import redis"),
        ("gateway/ratelimit/window.py", "from gateway.auth import keys"),
        ("gateway/fleet/pool.py", "def f():\n    import httptools"),
        ("gateway/fleet/pool.py", "from gateway import ratelimit"),
        ("gateway/observe/log.py", "import os\nx = os.getenv('A')"),
        ("gateway/observe/log.py", "from os import environ"),
        ("gateway/app/deployment.py", "import yaml"),
        ("gateway/app/deployment.py", "from workers import embedded"),
        ("gateway/auth/keys.py", "from gateway.kernel import pump"),
        ("gateway/kernel/serving.py", "from gateway.ratelimit import window"),
        ("gateway/newroom.py", "from gateway.core import errors"),
        ("gateway/kernel/serving.py", "from gateway.features.limits import Limits"),
        ("gateway/features/limits/__init__.py", "from gateway.features import guards"),
        ("gateway/cli/__init__.py", "from tests.repo import tree"),
        ("workers/embedded/__init__.py", "from gateway.core import errors"),
        ("workers/embedded/__init__.py", "import gateway"),
    ],
)
def test_each_wrong_arrow_is_found(tmp_path: Path, file: str, text: str) -> None:
    write(tmp_path, {**TREE, "gateway/ratelimit/__init__.py": "", file: text + "\n"})
    assert [line.partition(":")[0] for line in violations(tmp_path)] == [file]


@pytest.mark.parametrize("text", ["x = 'openai'", "x.vllm", "OpenAI = 1", "if dialect.name == 'azure': pass"])
def test_a_name_in_the_kernel_is_found(tmp_path: Path, text: str) -> None:
    write(tmp_path, {**TREE, "gateway/kernel/serving.py": text + "\n"})
    assert len(partial_to(tmp_path)) == 1
