"""What workers answer without their model: tokens of a text, the text of tokens, the number of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.lifecycle import Detokenized, Tokens
from gateway.core.messages import Detokenize, Tokenize
from gateway.core.ports import Ask
from gateway.wire.json import encode
from gateway.wire.openai.replies import views as wire

T = TypeVar("T")


class Tells(Protocol):
    """The parts of a backend that reading an answer needs."""

    name: str

    def fault(self, response: Response) -> GatewayError: ...


class _TokensIn(Struct):
    """vLLM's answer."""

    tokens: list[wire.Count]
    token_strs: list[str] | None = None
    max_model_len: wire.Count | None = None


class _TextIn(Struct):
    """vLLM's answer to tokens (`prompt`), and llama.cpp's (`content`)."""

    prompt: str | None = None
    content: str | None = None


_tokens = msgspec.json.Decoder(_TokensIn)
_text = msgspec.json.Decoder(_TextIn)


def answered(backend: Tells, unable: Callable[[], GatewayError], read: Callable[[bytes], T]) -> Callable[[Response], T]:
    """Reads an answer of any status: `read` takes the body of a 200, or raises msgspec's errors. `unable` is for a path
    that is switched off, or blocked by a proxy before the worker."""

    def reading(response: Response) -> T:
        if response.status in (404, 405):
            raise unable()
        if response.status != 200:
            raise backend.fault(response)
        try:
            return read(response.body)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise wire.malformed() from None

    return reading


def ask_tokens(
    op: Tokenize | Detokenize,
    backend: Tells,
    body: dict[str, Any],
    read: Callable[[bytes], Tokens | Detokenized],
    path: str,
) -> Ask:
    """Asks for tokens or their text. Members of `op` without a canonical name are passed on."""
    name = backend.name
    request = Request("POST", path, [JSON_TYPE], encode({**op.extra, **body}))
    return Ask(request, answered(backend, lambda: cannot_tokenize(name), read))


def read_tokens(said: bytes) -> Tokens:
    """vLLM's answer of `/tokenize`. Raises msgspec's errors for anything else."""
    found = _tokens.decode(said)
    texts = tuple(found.token_strs) if found.token_strs is not None else None
    return whole_tokens(tuple(found.tokens), texts, found.max_model_len)


def whole_tokens(tokens: tuple[int, ...], texts: tuple[str, ...] | None, max_context: int | None) -> Tokens:
    """Raises ValueError if there is not one text for each token."""
    if texts is not None and len(texts) != len(tokens):
        raise ValueError("a text for each token")
    return Tokens(tokens, texts, max_context)


def read_text(said: bytes) -> Detokenized:
    """An answer of `/detokenize`. Raises msgspec's errors or ValueError for anything else."""
    found = _text.decode(said)
    text = found.prompt if found.prompt is not None else found.content
    if text is None:
        raise ValueError("no text")
    return Detokenized(text)


def cannot_tokenize(backend: str) -> GatewayError:
    """The error for a worker that does not tell tokens."""
    message = f"the {backend} worker of this model cannot tokenize"
    return GatewayError(Kind.UNSUPPORTED, message, code="beyond_model")
