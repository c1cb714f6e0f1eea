"""What is known of a client library, and at which version it is locked."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import yaml
from msgspec import Struct

ROOT = Path(__file__).resolve().parents[3]
DRIVERS = Path(__file__).parent / "drivers"
NODE = "node"
GROUPS = ("python", "azure", "sagemaker2", "sagemaker3", "agents", "crewai")
# Environment -> its lock.
LOCKS = {
    ".venv": "dev",
    ".venv-friendli": "friendli",
    **{f".venv-clients-{name}": f"clients-{name}" for name in GROUPS},
}


class Further(Struct, frozen=True):
    """What is tried with a library of the table of docs/clients.md.

    before   the class of the error for a stream whose worker fails before it
    expired  the class of the error for an expired key
    limited  the class of the error over a limit; "" for one that waits as it is told, and asks again
    tools    whether a conversation with a tool is tried
    says     a part of the text of the error for the expired key
    """

    before: str
    expired: str
    limited: str = ""
    tools: bool = True
    says: str = "expired"


class Library(Struct, frozen=True):
    """A library that is driven by `make test-clients`.

    package      its name in the lock, or in package-lock.json
    driver       the module in drivers/, or in node/
    environment  a virtual environment in the root of the repository, or NODE
    api          the client API that it speaks, as the dialects are called
    unknown      the class of the error for an unknown model; "" for one that names no model
    cut          the class of the error for a stream that breaks off; "" where none is streamed
    cannot       what it cannot do, in words for its user
    says         a part of the text of the error for the model `nobody`
    further      what else is tried with it
    """

    name: str
    package: str
    driver: str
    environment: str
    api: str
    unknown: str
    cut: str
    cannot: str
    says: str = "nobody"
    further: Further | None = None


def version(library: Library) -> str:
    """As locked. Raises KeyError for a package that is not."""
    if library.environment == NODE:
        node = json.loads((Path(__file__).parent / "node" / "package-lock.json").read_text())
        return str(node["packages"][f"node_modules/{library.package}"]["version"])
    return locked(LOCKS[library.environment])[library.package]


def locked(name: str) -> dict[str, str]:
    """Package -> its version in a lock of requirements/."""
    lock = (ROOT / "requirements" / f"{name}.txt").read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ;]+)", lock, re.MULTILINE))


LIBRARIES: tuple[Library, ...] = msgspec.convert(
    yaml.safe_load(Path(__file__).with_name("libraries.yaml").read_text()), tuple[Library, ...]
)
TABLE = tuple(one for one in LIBRARIES if one.further is not None)
"""Those of the table of docs/clients.md."""
BUILT_FOR_AGENTS = (".venv", NODE, ".venv-clients-agents")
"""Environments of `make test-agents`; others are built by `make test-clients` alone."""
