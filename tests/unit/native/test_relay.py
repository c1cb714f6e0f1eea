"""The native relay does what the gateway does without it: the same bytes in the same turns, the same books."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.kernel.pump import Pump
from gateway.native import BUILT
from gateway.wire.openai.streams import reading
from tests.laws.golden.test_golden import folder, kind, pieces, streams
from tests.laws.golden.transcript import files, load
from tests.support.sampled import examples, sampled
from tests.unit.native.scripts import (
    CHUNKED,
    DONE,
    NUMBERS,
    ROLE,
    STOP,
    STREAMED,
    USAGE,
    as_text,
    choice,
    chunk,
    event,
    framed,
    numbered,
    raw,
    said,
    script,
)  # fmt: skip
from tests.unit.native.stage import CHAT, Asked, Outcome, Stage, Step

pytestmark = pytest.mark.skipif(not BUILT, reason="this installation has no native relay")


async def both(stage: Stage, steps: list[Step], asked: Asked = CHAT) -> tuple[Outcome, Outcome]:
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


MESSAGES, RESPONSES, IDS = (
    next(asked for asked in STREAMED if asked[0] == path)
    for path in ("/v1/messages", "/openai/responses", "/friendli/dedicated/v1/completions")
)
"""Translated streams; the last needs the ids of tokens."""


@pytest.mark.parametrize("asked", STREAMED, ids=lambda asked: asked[0])
async def test_ordinary_chunks_of_every_client(stage: Stage, asked: Asked) -> None:
    relayed = set()
    for wire in (bytes, as_text):
        for chunks in (
            [said(f" {number}") for number in range(12)],
            [numbered(f" {number}", b"%d" % number, usage=False) for number in range(12)],
            [numbered(f" {number}", b"%d" % number, usage=True) for number in range(12)],
        ):
            blocks = [wire(data) for data in (ROLE, *chunks, STOP)]
            python, native = await both(
                stage, [CHUNKED, *turns(*map(framed, blocks), framed(USAGE), framed(DONE) + b"0\r\n\r\n")], asked
            )
            relayed.add(native.relayed)
            assert native.record["outcome"] == "ok"
            same(python, native)
    assert max(relayed) > 8


def golden() -> list[Path]:
    """Transcripts of vLLM's streams of text."""
    found = [path for path in files() if kind(load(path)) == "vllm" and streams(path)]
    return [path for path in found if load(path).made["worker >"].split("\n")[0].endswith("completions")]


@pytest.mark.parametrize("path", sampled(golden(), 4, folder), ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_the_golden_transcripts(stage: Stage, path: Path) -> None:
    transcript = load(path)
    answered = transcript.answered
    assert answered is not None
    asked = transcript.asked.first.split()[1], json.loads(transcript.asked.body)
    blocks = [framed(piece) for piece in pieces(answered)]
    for apart in (
        turns(*blocks),
        [*blocks, "turn"],
        turns(b"".join(blocks)),
        turns(*(b"".join(blocks)).splitlines(True)),
    ):
        same(*await both(stage, [CHUNKED, *apart], asked))


@pytest.mark.parametrize("asked", [CHAT, MESSAGES])
async def test_a_slow_client_stops_the_worker(stage: Stage, asked: Asked) -> None:
    rest = [framed(said(str(number))) for number in range(20)]
    python, native = await both(stage, [*turns(*OPENING, *rest[:10]), "pause", *turns(*rest[10:], *CLOSING)], asked)
    assert native.relayed > 8
    assert max(native.held) > 8, "not read while the client reads nothing"
    assert native.record["outcome"] == "ok"
    same(python, native)


@pytest.mark.parametrize("asked", [CHAT, MESSAGES])
@pytest.mark.parametrize("end", ["leave", "eof", "lost", "interrupt"])
async def test_ends_of_all_kinds(stage: Stage, end: Step, asked: Asked) -> None:
    python, native = await both(stage, [*turns(*OPENING, *[framed(said("x"))] * 10), end, "turn"], asked)
    assert native.relayed > 8
    assert native.record["outcome"] != "ok"
    same(python, native)


async def test_a_reply_that_grows_too_large(stage: Stage) -> None:
    """Its last event would repeat all of it."""
    blocks = [framed(said("y" * 200)) for _ in range(60)]
    python, native = await both(stage, turns(*OPENING, *blocks, *CLOSING), RESPONSES)
    assert native.relayed > 8
    assert native.record["code"] == python.record["code"] == "upstream_too_large"
    same(python, native)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("asked", [MESSAGES, IDS], ids=lambda asked: asked[0])
async def test_numbers(stage: Stage, asked: Asked, number: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = bytes if asked is MESSAGES else as_text
    ordinary = [framed(wire(numbered(str(one), b"%d" % one, asked is MESSAGES))) for one in range(10)]
    odd = framed(wire(numbered("t", number, asked is MESSAGES)))
    opening, closing = CHUNKED + framed(wire(ROLE)), (framed(wire(STOP)), *CLOSING[1:])
    for last in (closing, (*ordinary, *closing)):
        python, native = await both(stage, turns(opening, *ordinary, odd, *last), asked)
        assert native.relayed > 6
        same(python, native)
        with monkeypatch.context() as patched:
            patched.setattr(reading, "TRIES", 0)  # each chunk is parsed
            same(python, await stage.play(turns(opening, *ordinary, odd, *last), False, asked))


@pytest.mark.parametrize("asked", [CHAT, pytest.param(MESSAGES, marks=pytest.mark.long)], ids=lambda asked: asked[0])
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
async def test_odd_chunks_between_ordinary_ones(stage: Stage, odd: bytes, asked: Asked) -> None:
    """They go to the parser, and what follows is relayed again if the parser goes on with it."""
    ordinary = [framed(said(str(number))) for number in range(8)]
    for after in (b"", b"\r\n", b"\n"):
        python, native = await both(stage, turns(*OPENING, *ordinary, odd + after, *ordinary, *CLOSING), asked)
        assert native.relayed > 6
        same(python, native)


async def test_nothing_is_relayed_while_the_reply_keeps_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the decision to commit and its end, a keep-alive's task may still write."""
    relayed: list[Any] = []
    monkeypatch.setattr("gateway.kernel.pump.relay_natively", lambda *given: relayed.append(given[4]))
    reply = SimpleNamespace(committed=True, write=lambda data: None, client=SimpleNamespace(direct=None))
    served, runtime = SimpleNamespace(gaps=None), SimpleNamespace(relay=SimpleNamespace(native=True))
    call = SimpleNamespace(reply=reply, served=served, runtime=runtime, drop_prompt=lambda: None)
    visit = SimpleNamespace(worker=SimpleNamespace(half_open=False))
    pump = Pump(cast(Any, None), cast(Any, SimpleNamespace(produced=1)), cast(Any, call), cast(Any, visit))
    pump._begun()  # as at the first token
    assert relayed == []
    written: list[bytes] = []
    pump._write = written.append  # its output goes there
    pump._begun()  # as at the first token
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


@settings(max_examples=examples(25))
@given(seed=st.integers(0, 2**32), hostile=st.sampled_from([0.05, 0.3, 0.8]))
async def test_any_stream(seed: int, hostile: float) -> None:
    async with Stage() as stage:
        for number in range(8):
            steps, asked = script(Random(f"{seed} {number}"), hostile)
            same(*await both(stage, steps, asked))
