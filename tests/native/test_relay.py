"""The native relay does what the gateway does without it: the same bytes in the same turns, the same books."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.native import BUILT
from gateway.pipeline.pump import Pump
from tests.golden.test_golden import pieces, streams
from tests.golden.transcript import files, load
from tests.native.scripts import CHUNKED, DONE, ROLE, STOP, USAGE, choice, chunk, event, framed, raw, said, script
from tests.native.stage import Outcome, Stage, Step

pytestmark = pytest.mark.skipif(not BUILT, reason="this installation has no native relay")


async def both(stage: Stage, steps: list[Step], asked: dict[str, Any] | None = None) -> tuple[Outcome, Outcome]:
    python, native = await stage.play(steps, False, asked), await stage.play(steps, True, asked)
    assert python.relayed == 0
    return python, native


def same(python: Outcome, native: Outcome) -> None:
    native.relayed = 0
    assert native == python


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with Stage() as running:
        yield running


def turns(*reads: Step) -> list[Step]:
    return [step for read in reads for step in (read, "turn")]


OPENING = (CHUNKED + framed(ROLE), framed(said("a")), framed(said("b")), framed(said("c")))
CLOSING = (framed(STOP), framed(USAGE), framed(DONE) + b"0\r\n\r\n")


async def test_ordinary_chunks_are_relayed(stage: Stage) -> None:
    python, native = await both(stage, turns(*OPENING, *[framed(said(f" {i}")) for i in range(100)], *CLOSING))
    assert native.relayed > 95
    assert native.worker == "kept"
    assert native.record["outcome"] == "ok"
    same(python, native)


def golden() -> list[Path]:
    """Transcripts of streamed chats whose client speaks the worker's wire."""
    return [path for path in files() if path.parent.name == "openai" and "chat_stream" in path.name and streams(path)]


@pytest.mark.parametrize("path", golden(), ids=lambda path: path.stem)
async def test_the_golden_transcripts(stage: Stage, path: Path) -> None:
    answered = load(path).answered
    assert answered is not None
    blocks = [framed(piece) for piece in pieces(answered)]
    for apart in (
        turns(*blocks),
        [*blocks, "turn"],
        turns(b"".join(blocks)),
        turns(*(b"".join(blocks)).splitlines(True)),
    ):
        same(*await both(stage, [CHUNKED, *apart]))


async def test_a_slow_client_stops_the_worker(stage: Stage) -> None:
    rest = [framed(said(str(number))) for number in range(20)]
    python, native = await both(stage, [*turns(*OPENING, *rest[:10]), "pause", *turns(*rest[10:], *CLOSING)])
    assert native.relayed > 8
    assert max(native.held) > 8, "not read while the client reads nothing"
    assert native.record["outcome"] == "ok"
    same(python, native)


@pytest.mark.parametrize("end", ["leave", "eof", "lost", "interrupt"])
async def test_ends_of_all_kinds(stage: Stage, end: Step) -> None:
    python, native = await both(stage, [*turns(*OPENING, *[framed(said("x"))] * 10), end, "turn"])
    assert native.relayed > 8
    assert native.record["outcome"] != "ok"
    same(python, native)


@pytest.mark.parametrize(
    "odd",
    [
        framed(said("")),
        framed(raw(b"\\ud83d")),
        framed(raw(b"\xff")),
        framed(raw(b'a","x":"b')),
        framed(said('é\n"日本\\')),
        framed(said("y" * 5000)),
        framed(said("y" * 2000) * 2),
        framed(event(chunk(choice(content="t"), id="other"))),
        framed(said("one") + said("two")),
        framed(said("one")) + framed(said("two")),
        framed(said("one")) + framed(said("two"))[:-1],
        framed(said("one"))[:-2],
        framed(said("one"))[1:],
        framed(b"data: {}\n\n"),
        b"0\r\n\r\n",
        b"1\r\n\n\r\n",
        b"a8;x=y\r\n" + said(" lorem"),
        b"ffffffffffffffffffffff\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
    ],
)
async def test_odd_chunks_between_ordinary_ones(stage: Stage, odd: bytes) -> None:
    """They go to the parser, and what follows is relayed again if the parser goes on with it."""
    ordinary = [framed(said(str(number))) for number in range(8)]
    for after in (b"", b"\r\n", b"\n"):
        python, native = await both(stage, turns(*OPENING, *ordinary, odd + after, *ordinary, *CLOSING))
        assert native.relayed > 6
        same(python, native)


async def test_nothing_is_relayed_while_the_reply_keeps_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the decision to commit and its end, a keep-alive's task may still write."""
    relayed: list[Any] = []
    monkeypatch.setattr("gateway.pipeline.pump.relay_natively", lambda *given: relayed.append(given[4]))
    reply = SimpleNamespace(committed=True, write=lambda data: None, client=SimpleNamespace(direct=None))
    served, runtime = SimpleNamespace(gaps=None), SimpleNamespace(relay=SimpleNamespace(native=True))
    call = SimpleNamespace(reply=reply, served=served, runtime=runtime, drop_prompt=lambda: None)
    visit = SimpleNamespace(worker=SimpleNamespace(half_open=False))
    pump = Pump(cast(Any, None), cast(Any, SimpleNamespace(produced=1)), cast(Any, call), cast(Any, visit))
    pump._begun()
    assert relayed == []
    written: list[bytes] = []
    pump._write = written.append
    pump._begun()
    assert relayed == [written.append]


async def test_several_reads_in_a_turn(stage: Stage) -> None:
    """As one HTTP chunk or as several: the content is the same."""
    steps: list[Step] = [*turns(*OPENING), *[framed(said(str(number))) for number in range(9)], *CLOSING, "turn"]
    python = await stage.play(steps, False, all_at_once=True)
    native = await stage.play(steps, True, all_at_once=True)
    framing = re.compile(rb"(?:^|(?<=\n))[0-9a-f]+\r\n|(?<=\n\n)\r\n")
    assert native.relayed > 5
    assert [framing.sub(b"", sent) for sent in native.sent] == [framing.sub(b"", sent) for sent in python.sent]
    assert (native.lane, native.record) == (python.lane, python.record)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), hostile=st.sampled_from([0.05, 0.3, 0.8]))
async def test_any_stream(seed: int, hostile: float) -> None:
    async with Stage() as stage:
        for number in range(8):
            steps, asked = script(Random(f"{seed} {number}"), hostile)
            same(*await both(stage, steps, asked))
