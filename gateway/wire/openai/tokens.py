"""Answers that need no model: tokens of a text, and the text of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from gateway.core.lifecycle import Detokenized, Tokens
from gateway.core.messages import Tokenize
from gateway.wire.openai.replies import views as wire
from gateway.wire.openai.requests.unsupported import beyond
from gateway.wire.token_spans import spans_of


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


def read_tokens(body: bytes) -> Tokens:
    """vLLM's answer of `/tokenize`. Raises msgspec's errors for anything else."""
    found = _tokens.decode(body)
    texts = tuple(found.token_strs) if found.token_strs is not None else None
    return whole_tokens(tuple(found.tokens), texts, found.max_model_len)


def whole_tokens(tokens: tuple[int, ...], texts: tuple[str, ...] | None, max_context: int | None) -> Tokens:
    """Raises ValueError if there is not one text for each token."""
    if texts is not None and len(texts) != len(tokens):
        raise ValueError("a text for each token")
    return Tokens(tokens, texts, max_context)


def with_spans(found: Tokens, op: Tokenize, backend: str, pieces: Sequence[str | bytes] | None = None) -> Tokens:
    """With the spans of the tokens, if `op` asks for them. pieces: their texts, where those of `found` are not exact.
    Raises GatewayError(UNSUPPORTED) if they cannot be known."""
    if op.spans and isinstance(op.prompt, str):
        found.spans = spans_of(op.prompt, pieces or found.texts or ())
        if found.spans is None:
            raise beyond(backend, "does not report where in a text its tokens stand")
    return found


def read_text(body: bytes) -> Detokenized:
    """An answer of `/detokenize`. Raises msgspec's errors or ValueError for anything else."""
    found = _text.decode(body)
    text = found.prompt if found.prompt is not None else found.content
    if text is None:
        raise ValueError("no text")
    return Detokenized(text)
