"""The dialects whose streams the comparison asks the gateway for, beside the worker's own."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from bench.peers.load import DONE
from bench.replies import wanted
from bench.rows import PHRASE, ROWS, Row

_ENDS: dict[str, bytes] = {
    "anthropic": b"event: message_stop",
    "friendli": b'"event": "complete"',
    "ollama": b'"done":true',
    "ollama (SSE)": b"[END]",
    "ollama_native": b'"done":true',
    "responses": b"event: response.completed",
    "tgi": b'"generated_text":"',
}
"""What a whole stream holds at its end, where that is not OpenAI's mark."""
_REPEATS: dict[str, int] = {"friendli": 1, "responses": 4, "tgi": 1}
"""How often the end says the whole text again."""


class Dialect(Struct, frozen=True):
    """A row's request for a stream.

    end    what the whole stream holds at its end
    times  how often each chunk's text is in the stream
    """

    name: str
    row: Row
    end: bytes
    times: int

    def body(self, chunks: int) -> bytes:
        """The row's request, whose prompt asks for so many chunks."""
        return self.row.body.replace(PHRASE.encode(), wanted(chunks).encode() + b" ", 1)


def _dialects() -> Sequence[Dialect]:
    streams = {row.name.partition(" → ")[0]: row for row in ROWS if row.kind == "stream"}
    return [
        Dialect(name, row, _ENDS.get(name, DONE), 1 + _REPEATS.get(name, 0))
        for name, row in streams.items()
        if name != "openai"
    ]


DIALECTS = _dialects()
