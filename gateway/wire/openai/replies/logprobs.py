"""Logprobs of OpenAI's wire in their canonical form: chat token objects."""

from __future__ import annotations

from msgspec import Raw

from gateway.wire.json import encode
from gateway.wire.openai.replies import views as wire


def chat_logprobs(found: list[wire.LogprobIn]) -> Raw:
    """Chat logprobs, completed with all members of a canonical token object."""
    for token in found:
        token.top_logprobs = token.top_logprobs or []
    return Raw(encode(found))


def text_logprobs(found: wire.TextLogprobsIn) -> Raw | None:
    """Text completion logprobs in the canonical (chat) form. Text offsets are left out: they follow from the tokens."""
    if not found.tokens:
        return None
    values = found.token_logprobs or []
    tops = found.top_logprobs or []
    out = []
    for position, token in enumerate(found.tokens):
        top = tops[position] if position < len(tops) else None
        out.append(
            {
                "token": token,
                "logprob": values[position] if position < len(values) else None,
                "bytes": list(token.encode()),
                "top_logprobs": [
                    {"token": other, "logprob": value, "bytes": list(other.encode())}
                    for other, value in (top or {}).items()
                ],
            }
        )
    return Raw(encode(out))
