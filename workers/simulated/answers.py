"""Replies of invented words on the engine's clock.

The words depend on prompt, seed and choice only, so they are the same in every process. A reply is a slice of one fixed
cycle of four-character words, each of which is a token, also in a text.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
import zlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

import msgspec

from workers.simulated.engine import Engine, Entry, Full
from workers.simulated.requests import Generate, Refused

CYCLE = 4096
_letters = random.Random(33)
_TEXT = "".join(" " + "".join(_letters.choices("abcdefghijklmnoprstuvw", k=3)) for _ in range(CYCLE))
_WORDS = frozenset(_TEXT[at : at + 4] for at in range(0, 4 * CYCLE, 4))


class Choice(NamedTuple):
    """text: that of `words` tokens; ended: by itself, which takes one more token, and not because of a limit.
    calls: the function of which the text is the arguments; "" for a text for the user."""

    text: str
    words: int
    ended: bool
    calls: str = ""

    @property
    def tokens(self) -> int:
        return self.words + self.ended

    @property
    def finish(self) -> str:
        return "length" if not self.ended else "tool_calls" if self.calls else "stop"


def calling(name: str, arguments: str, limit: int) -> Choice:
    """A reply of at most `limit` tokens that calls a function."""
    words = -(-len(arguments) // 4)
    return Choice(arguments[: 4 * limit], min(words, limit), words < limit, name)


def draw(prompt: str, request: Generate, index: int, limit: int, words: int) -> Choice:
    """An invented reply of at most `limit` tokens; `words` is its natural length, 0 to draw that too.
    A prompt that ends with the beginning of its own reply gets the rest of it."""
    most = 0
    while prompt[len(prompt) - 4 * most - 4 : len(prompt) - 4 * most] in _WORDS:
        most += 1
    for there in range(most, -1, -1):
        base = prompt[: len(prompt) - 4 * there]
        seed = zlib.crc32(base.encode("utf-8", "surrogatepass"), (request.seed or 0) + index * 2654435761 & 0xFFFFFFFF)
        start = (seed >> 8) % CYCLE
        if not there or _slice(start, there) == prompt[len(base) :]:
            break
    natural = limit if request.ignore_eos else max((words or 8 + seed % 25) - there, request.min_tokens)
    length = min(natural, limit)
    return Choice(_slice(start + there, length), length, natural < limit)


def _slice(start: int, words: int) -> str:
    return (_TEXT * ((start + words) // CYCLE + 1))[4 * start : 4 * (start + words)]


class Sequences:
    """All choices of one reply, as a job of the engine. `due` is set whenever it is time for tokens."""

    def __init__(self, engine: Engine, choices: list[Choice], entry: Entry) -> None:
        self.engine = engine
        self.entry = entry
        self.weight = len(choices)
        self.need = entry.prompt_tokens + sum(choice.tokens for choice in choices)
        self.uncached = entry.prompt_tokens - entry.cached_tokens
        self.scheduled = self.admitted = 0.0
        self.due = asyncio.Event()

    def prefilled(self) -> None:
        self.admitted = self.entry.first_token = time.monotonic()
        self.due.set()

    def step(self) -> bool:
        self.due.set()
        return True

    async def tokens(self, longest: int) -> AsyncIterator[int]:
        """The number of each token, when it is due. Raises Refused if the queue is full."""
        try:
            self.engine.submit(self)
        except Full:
            message = "The server is overloaded: too many requests are queued."
            raise Refused(503, "ServiceUnavailableError", message) from None
        await self.due.wait()
        if self.engine.itl:
            self.engine.decode(self)
        for at in range(longest):
            if at and self.engine.itl:
                self.due.clear()
                await self.due.wait()
            self.entry.tokens += self.weight
            yield at


def used(read: int, made: int, wanted: bool = True) -> dict[str, dict[str, Any]]:
    """The member `usage` of a reply, if it is wanted."""
    counts = {"prompt_tokens": read, "total_tokens": read + made, "completion_tokens": made}
    return {"usage": counts} if wanted else {}


class Reply:
    """The JSON of one reply: a chat's, or that of a completion."""

    def __init__(self, chat: bool, model: str, choices: list[Choice], usage: dict[str, Any]) -> None:
        self.kind = "chat.completion" if chat else "text_completion"
        self.chat, self.choices, self.usage = chat, choices, usage
        self.head = {"id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex[:16]}", "created": int(time.time())}
        self.head |= {"model": model}

    def whole(self) -> bytes:
        choices = [
            self._choice(index, "message", {"role": "assistant"}, choice.text, choice.finish, choice.calls)
            for index, choice in enumerate(self.choices)
        ]
        return msgspec.json.encode({**self.head, "object": self.kind, "choices": choices, "usage": self.usage})

    def chunk(self, at: int, running: bool) -> bytes:
        """The events of token `at`, before the first one also those that open a chat. running: with usage so far."""
        read = self.usage["prompt_tokens"]
        out = b""
        for index in range(len(self.choices) if self.chat and not at else 0):
            opened = self._choice(index, "delta", {"role": "assistant"}, "", None, self.choices[index].calls)
            out += self._event(opened, **used(read, 0, running))
        for index, choice in enumerate(self.choices):
            if at < choice.tokens:
                piece = choice.text[4 * at : 4 * at + 4]  # nothing for the last token of a reply that ends by itself
                finish = choice.finish if at == choice.tokens - 1 else None
                delta = self._choice(index, "delta", {}, piece, finish, choice.calls)
                out += self._event(delta, **used(read, at + 1, running))
        return out

    def _choice(
        self, index: int, name: str, role: Mapping[str, str], text: str, finish: str | None, calls: str
    ) -> dict[str, Any]:
        content: dict[str, Any] = {"content": text}
        if calls:
            number = {"index": 0} if name == "delta" else {}
            head = {"id": f"chatcmpl-tool-{uuid.uuid4().hex[:16]}", "type": "function"} if role else {}
            called = {"name": calls, "arguments": text} if role else {"arguments": text}
            content = {"tool_calls": [{**number, **head, "function": called}]}
        reply: dict[str, Any] = {name: {**role, **content}} if self.chat else {"text": text}
        return {"index": index, **reply, "logprobs": None, "finish_reason": finish}

    def end(self, usage: bool) -> bytes:
        return (self._event(usage=self.usage) if usage else b"") + b"data: [DONE]\n\n"

    def _event(self, *choices: Any, **more: Any) -> bytes:
        kind = self.kind + ".chunk" if self.chat else self.kind
        return b"data: " + msgspec.json.encode({**self.head, "object": kind, "choices": choices, **more}) + b"\n\n"
