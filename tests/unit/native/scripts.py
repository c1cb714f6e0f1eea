"""Scripts at random: what workers send, in order or not, and how their bytes arrive."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

from tests.support.clients import WAYS
from tests.unit.native.stage import CHAT, Asked, Step

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"
TEXTS = (" lorem", "a", " ipsum dolor", "é", "日本", '"', "\\", "\n", "\t", "\x7f", "😀", "a" * 200, "b" * 3000, "")
RAW = (
    b"\\ud83d",
    b"\\ud83d\\ude00",
    b"\\u0041",
    b"\x01",
    b"\xff",
    b'a","x":"b',
    b'\\"',
    b"\\",
    b"\\x",
    b"a\rb",
    b"\r\n",
)
"""What stands in a string as it is: rare, lone, or not JSON."""
NUMBERS = (
    *(b"0", b"7", b"999999999", b"2147483647", b"2147483648", b"4294967295", b"9999999990", b"12345678901"),
    *(b"01", b"-1", b"1.0", b"1e3", b"", b'"7"', b"null"),
)
"""What stands in place of a number: some are ordinary, others are only read where a chunk is parsed."""
STREAMED: list[Asked] = list(
    {
        (way.dialect, way.operation, way.example.route): (way.path("m"), way.body(stream=True, seed=1))
        for way in WAYS
        if way.operation in ("chat", "complete") and way.answers(stream=True)
    }.values()
)
"""A streamed request of each kind."""
_SAID = re.compile(rb'"delta":\{(?:"role":"assistant",)?"content":("[^"\\]*")\}')


def event(body: Any, ascii_only: bool = False) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=ascii_only, separators=(",", ":")).encode() + b"\n\n"


def chunk(*choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "sim", "choices": choices, **more}


def choice(finish: str | None = None, index: int = 0, **delta: Any) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}


ROLE = event(chunk(choice(role="assistant", content="")))
STOP = event(chunk(choice("stop")))
USAGE = event(chunk(usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}))


def said(text: str, **more: Any) -> bytes:
    return event(chunk(choice(content=text), **more))


def raw(text: bytes) -> bytes:
    return said("@").replace(b"@", text)


def numbered(text: str, number: bytes, usage: bool) -> bytes:
    """With the id of its token, or the usage so far, of `number` tokens."""
    if usage:
        counts = {"prompt_tokens": 3, "total_tokens": 77777, "completion_tokens": 77777}
        return said(text, usage=counts).replace(b"77777", number)
    return event(chunk({**choice(content=text), "token_ids": [77777]})).replace(b"77777", number)


def as_text(data: bytes) -> bytes:
    """The event of a chat as that of a prompt's continuation."""
    data = _SAID.sub(rb'"text":\1', data).replace(b'"delta":{}', b'"text":""')
    return data.replace(b"chat.completion.chunk", b"text_completion")


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def ordinary(random: Random) -> bytes:
    return said(random.choice(TEXTS[:3]))


def unusual(random: Random) -> bytes:
    """An event that is none of the most ordinary."""
    return random.choice(
        (
            lambda: event(chunk(choice(content=random.choice(TEXTS))), random.random() < 0.5),
            lambda: raw(random.choice(RAW)),
            lambda: raw(random.randbytes(random.randint(1, 6))),
            lambda: event(chunk(choice(content="b", index=random.randint(0, 2)))),
            lambda: event(chunk(choice(reasoning="so"))),
            lambda: event(chunk(choice(reasoning_content="so", content="x"))),
            lambda: event(chunk(choice(content="a"), id="other")),
            lambda: said("a", usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}),
            lambda: event(chunk(choice(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": "{}"}}]))),
            lambda: event({"error": {"message": "no", "type": "x", "code": 500}}),
            lambda: random.choice((STOP, USAGE, DONE, ROLE)),
            lambda: random.choice(
                (b": ping\n\n", b"\n", b"\n\n", b"data:\n\n", b"event: a\n", b"data: {}\n\n", b"data: ")
            ),
            lambda: ordinary(random).replace(b"data: ", b"data:"),
            lambda: ordinary(random).replace(b"\n", b"\r\n"),
            lambda: ordinary(random)[: random.randint(1, 40)],
            lambda: ordinary(random) + ordinary(random),
        )
    )()


def odd(random: Random, data: bytes) -> bytes:
    """A chunk in an unusual or wrong frame."""
    size = len(data)
    middle = random.randint(0, size)
    return random.choice(
        (
            lambda: b"%X\r\n%b\r\n" % (size, data),
            lambda: b"0" * random.randint(1, 20) + framed(data),
            lambda: b"%x;a=b\r\n%b\r\n" % (size, data),
            lambda: b"%x ;a\r\n%b\r\n" % (size, data),
            lambda: b"%x\n%b\n" % (size, data),
            lambda: b"%x\r\n%b\r\n" % (size + random.choice((-2, -1, 1, 2)), data),
            lambda: b"%x\r\n%b" % (size, data),
            lambda: b"\r\n" + framed(data),
            lambda: b" " + framed(data),
            lambda: b"0\r\n\r\n",
            lambda: b"0\r\na: b\r\n\r\n",
            lambda: framed(data[:middle]) + framed(data[middle:]) if 0 < middle < size else framed(data),
            lambda: framed(framed(data)),
            lambda: framed(data + framed(data)),
            lambda: b"ffffffffffffffff\r\n" + data,
            lambda: b"-1\r\n" + data,
            lambda: b"HTTP/1.1 200 OK\r\n\r\n",
        )
    )()


def damaged(random: Random, data: bytes) -> bytes:
    """`data` with a byte or a piece that is other, missing, or there twice."""
    at = random.randint(0, max(0, len(data) - 1))
    end = min(len(data), at + random.randint(1, 8))
    other = random.choice(
        (random.randbytes(end - at), b"", data[at:end] * 2, b"\r\n", b"0", b'"', b"\\", b"\n\n", b"da")
    )
    return data[:at] + other + data[end:]


def script(random: Random, hostile: float) -> tuple[list[Step], Asked]:
    """A script, and the client's request. hostile: the share of what is unusual."""
    path, body = CHAT if random.random() < 0.3 else random.choice(STREAMED)
    more: dict[str, Any] = {}
    if path == CHAT[0] and random.random() < 0.3:
        more["stream_options"] = {"include_usage": True}
    if path == CHAT[0] and random.random() < 0.15:
        more["n"] = 2
    text = random.random() < (0.1 if "messages" in body else 0.7)
    kind = random.choice((None, None, "ids", "usage"))
    head = CHUNKED
    if random.random() < hostile / 4:
        head = random.choice((HEAD + b"\r\n", HEAD + b"content-length: 3000\r\n\r\n", CHUNKED.replace(b"1.1", b"1.0")))
    frame = (lambda data: data) if head is not CHUNKED and random.random() < 0.7 else framed

    def usual() -> bytes:
        if kind is None:
            return ordinary(random)
        number = random.choice(NUMBERS if random.random() < hostile else NUMBERS[:4])
        return numbered(random.choice(TEXTS[:3]), number, kind == "usage")

    wire = as_text if text else bytes
    pieces: list[bytes] = [head, frame(wire(ROLE)), frame(wire(usual()))]
    for _ in range(random.randint(0, 24)):
        data = wire(unusual(random) if random.random() < hostile else usual())
        piece = odd(random, data) if random.random() < hostile / 2 else frame(data)
        pieces.append(damaged(random, piece) if random.random() < hostile / 3 else piece)
    if random.random() < 0.7:
        pieces += [frame(wire(STOP)), frame(USAGE), frame(DONE) + (b"0\r\n\r\n" if frame is framed else b"")]
    return _arrived(random, pieces, hostile), (path, {**body, **more})


def _arrived(random: Random, pieces: list[bytes], hostile: float) -> list[Step]:
    """How the pieces arrive, and what else happens."""
    steps: list[Step] = []
    held = b""
    for piece in pieces:
        held += piece
        while len(held) > 1 and random.random() < hostile / 4:
            cut = random.choice((random.randint(1, len(held) - 1), random.randint(1, min(8, len(held) - 1))))
            steps.append(held[:cut])
            held = held[cut:]
            if random.random() < 0.7:
                steps.append("turn")
        if random.random() < 0.85:
            steps.append(held)
            held = b""
            if random.random() < 0.85:
                steps.append("turn")
        if random.random() < 0.08:
            steps.append(random.choice(("pause", "resume", "resume", "turn")))
        if random.random() < hostile / 40:
            steps.append(random.choice(("leave", "eof", "lost", "interrupt")))
    return [*steps, held] if held else steps
