"""Client libraries against a gateway with a simulated worker: what they return and raise (`make test-clients`; most of
those of the table of docs/clients.md `make test-agents`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.libraries.conftest import Keyed
from tests.acceptance.libraries.drive import AT, TEXT
from tests.acceptance.libraries.environment import drive, ready
from tests.acceptance.libraries.library import BUILT_FOR_AGENTS, LIBRARIES, TABLE, Library, version
from tests.acceptance.libraries.readme import readme_lines
from tests.support.harness import Stack

pytestmark = pytest.mark.libraries
WORDS = "Three colours are"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(({"itl_ms": 2},)) as running:
        yield running


def name_of(error: dict[str, Any]) -> str:
    """The class of an error, without its module; "" if there was none."""
    return str(error["raised"][0]).rpartition(".")[2] if error["raised"] else ""


def rows(libraries: Iterable[Library]) -> list[Any]:
    """`make test-agents` runs those of the table whose environment it builds, and `make test-clients` the others."""
    return [
        pytest.param(
            one,
            id=f"{one.environment}-{one.driver}",
            marks=pytest.mark.agents if one in TABLE and one.environment in BUILT_FOR_AGENTS else (),
        )
        for one in libraries
    ]


def check(library: Library, told: dict[str, Any]) -> None:
    assert told["whole"] == TEXT
    assert (told["streamed"] is not None) == bool(library.cut)
    if library.cut:
        assert "".join(told["streamed"]) == TEXT
        assert len([piece for piece in told["streamed"] if piece]) > 1, "it came in pieces"
        assert name_of(told["cut"]) == library.cut, told["cut"]
    assert name_of(told["unknown"]) == library.unknown, told["unknown"]
    assert not library.unknown or library.says in told["unknown"]["said"]
    assert told["strayed"] == [], "it left this machine"


@pytest.mark.parametrize("library", rows(one for one in LIBRARIES if one.further is None))
def test_a_library(library: Library, stack: Stack, tmp_path: Path) -> None:
    assert ready(library), "make test-clients"
    check(library, drive(library, stack.url, tmp_path))


@pytest.mark.parametrize("library", rows(TABLE))
def test_a_library_with_the_line_of_the_readme(
    library: Library, keyed: Keyed, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Also with tools, a worker that fails before the stream, a limit, and an expired key."""
    assert ready(library), "make test-clients"
    further = library.further
    assert further is not None
    given = {"line": readme_lines()[library.name], "keys": keyed.keys}
    with keyed.over_the_limit():
        told = drive(library, keyed.stack.url, tmp_path, given)
    check(library, told)
    assert told["tools"] == ([AT, TEXT] if further.tools else None)
    assert name_of(told["before"]) == further.before, told["before"]
    assert name_of(told["expired"]) == further.expired, told["expired"]
    assert further.says in told["expired"]["said"]
    assert name_of(told["limited"]) == further.limited, told["limited"]
    assert not any(key in told[name]["said"] for key in keyed.keys.values() for name in ("expired", "limited"))
    record_property("client", f"{library.name} {version(library)}")


@pytest.mark.parametrize("library", rows(one for one in TABLE if one.cut))
def test_a_real_answer(
    library: Library, gateway: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Its beginning, streamed, from the small model of `make run`, with its line of docs/clients.md."""
    given = {"line": readme_lines()[library.name], "prompt": WORDS}
    told = drive(library, gateway, tmp_path, given)
    assert "".join(told["streamed"]).strip()
    assert len(told["streamed"]) > 1
    assert told["strayed"] == []
    record_property("client", f"{library.name} {version(library)}")
