"""Our own connection to Redis: answers in any pieces, and what is no answer."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.redis.connection import Connection, Refused

ROOT = Path(__file__).parents[3]


class Transport:
    """Counts how often it was ended."""

    def __init__(self) -> None:
        self.aborted = 0
        self.written: list[bytes] = []

    def abort(self) -> None:
        self.aborted += 1

    def write(self, data: bytes) -> None:
        self.written.append(data)


def connected(heard: list[bytes | Exception]) -> tuple[Connection, Transport]:
    made, transport = Connection(heard.append, heard.append), Transport()
    made.connection_made(cast(Any, transport))
    return made, transport


ANSWERS = st.one_of(
    st.binary(max_size=40).map(lambda body: (b"$%d\r\n%b\r\n" % (len(body), body), body)),
    st.sampled_from(["READONLY nothing is written here", "OOM"]).map(lambda text: (f"-{text}\r\n".encode(), text)),
    st.just((b"+OK\r\n", b"OK")),
)


@given(st.lists(ANSWERS, max_size=6), st.integers(1, 100))
def test_answers_in_any_pieces(answers: list[tuple[bytes, bytes | str]], size: int) -> None:
    heard: list[bytes | Exception] = []
    made, transport = connected(heard)
    whole = b"".join(raw for raw, _ in answers)
    for at in range(0, len(whole), size):
        made.data_received(whole[at : at + size])
    assert [str(one) if isinstance(one, Refused) else one for one in heard] == [told for _, told in answers]
    assert transport.aborted == 0


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"$-1\r\n",
        b"$99999999\r\n",
        b"$1x\r\n",
        b"*1\r\n",
        b"$" + b"1" * (1 << 21),
    ],
)
def test_what_is_no_answer_ends_the_connection(data: bytes) -> None:
    heard: list[bytes | Exception] = []
    made, transport = connected(heard)
    made.data_received(data)
    assert [str(one) for one in heard] == ["not a Redis server's answer"]
    assert transport.aborted == 1
    made.connection_lost(None)
    made.data_received(b"+OK\r\n")
    assert len(heard) == 1


async def test_logging_in_comes_before_all_answers() -> None:
    heard: list[bytes | Exception] = []
    made, transport = connected(heard)
    entering = asyncio.create_task(made.log_in([(b"AUTH", b"secret"), (b"SELECT", b"3")]))
    await asyncio.sleep(0)
    assert transport.written == [b"*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n"]
    made.data_received(b"+OK\r\n+OK\r\n")
    await entering
    made.data_received(b"+PONG\r\n")
    assert heard == [b"PONG"]


@pytest.mark.parametrize("end", ["refused", "closed"])
async def test_a_login_that_fails_says_why(end: str) -> None:
    heard: list[bytes | Exception] = []
    made, _ = connected(heard)
    entering = asyncio.create_task(made.log_in([(b"AUTH", b"wrong")]))
    await asyncio.sleep(0)
    if end == "refused":
        made.data_received(b"-WRONGPASS invalid username-password pair\r\n")
        with pytest.raises(Refused, match="WRONGPASS"):
            await entering
    else:
        made.connection_lost(None)
        with pytest.raises(ConnectionResetError):
            await entering
    assert heard == []


def test_nothing_private_of_redis_py_is_used() -> None:
    """A new redis-py may change what begins with an underscore; then this sentence is shorter than a search."""
    found = []
    for path in sorted([*ROOT.glob("gateway/redis/*.py"), ROOT / "workers/registry.py"]):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        own = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "redis":
                names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
                found += [f"{path.name}:{node.lineno}: {name}" for name in names if name.startswith("_")]
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                private = not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
                if private and node.attr not in own:
                    found.append(f"{path.name}:{node.lineno}: {node.attr}")
    assert not found, f"these private parts of redis-py may change with any release: {', '.join(found)}"
