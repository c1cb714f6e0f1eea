"""The answers of the canned worker, by the path of the request.

The JSON is vLLM 0.33's, key for key: a buffered reply is a full model dump, nulls included; a streamed chunk carries
only the fields that vLLM sets. Every streamed chunk holds MARK once, in its text, so that the load generator can count
chunks in whatever form a dialect gives them.
"""

from __future__ import annotations

import json
import re

from msgspec import Struct

MODEL = "bench-model"
# A token no other part of a reply or of its framing contains; a real token is about as long.
MARK = b" lorem"
ID = "6f1de0a2b37c4f9c9c1b0e1d2a3f4b5c"
CREATED = 1763720000
DOCUMENTS = 20
"""Of a ranking."""
WANTED = re.compile(rb"Answer in (\d+) words\.")
FINGERPRINT = "vllm-0.33.0-1f0c7a2e"


class Canned(Struct, frozen=True):
    """One path's answers: a whole body, or a stream's first event and then `chunk` for ever.

    whole  body of a plain reply, or b"" where the path only streams
    head   the stream's opening event or events
    chunk  one token's event; sent until the client leaves, or as often as the prompt says (`wanted`)
    tail   what ends a stream that was asked to end
    """

    whole: bytes
    head: bytes = b""
    chunk: bytes = b""
    media_type: bytes = b"text/event-stream; charset=utf-8"
    tail: bytes = b""


def wanted(chunks: int) -> str:
    """The words of a prompt that ask the canned worker for a stream of so many chunks. A prompt reaches the worker in
    every dialect."""
    return f"Answer in {chunks} words."


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _event(value: object) -> bytes:
    return b"data: " + _json(value) + b"\n\n"


_CHUNK_BASE = {"id": f"chatcmpl-{ID}", "object": "chat.completion.chunk", "created": CREATED, "model": MODEL}


def _chat_chunk(choice: dict[str, object], **more: object) -> bytes:
    return _event({**_CHUNK_BASE, "choices": [{"index": 0, **choice}], **more})


_DONE = b"data: [DONE]\n\n"
_USAGE = {
    "prompt_tokens": 210,
    "total_tokens": 242,
    "completion_tokens": 32,
    "prompt_tokens_details": None,
    "completion_tokens_details": None,
}
_TAIL = {
    "usage": _USAGE,
    "prompt_logprobs": None,
    "prompt_token_ids": None,
    "prompt_text": None,
    "kv_transfer_params": None,
    "ec_transfer_params": None,
    "metrics": None,
}
_OPEN = {"logprobs": None, "finish_reason": None}
_TEXT = (MARK.decode() * 32).strip()

_CHAT = _json(
    {
        "id": f"chatcmpl-{ID}",
        "object": "chat.completion",
        "created": CREATED,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": _TEXT,
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "reasoning": None,
                },
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
                "routed_experts": None,
                "weight_versions": None,
            }
        ],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        **_TAIL,
    }
)

_COMPLETION = _json(
    {
        "id": f"cmpl-{ID}",
        "object": "text_completion",
        "created": CREATED,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "text": _TEXT,
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": [412] * 32,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "routed_experts": None,
                "weight_versions": None,
            }
        ],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": _USAGE,
        "kv_transfer_params": None,
    }
)

_COMPLETION_BASE = {"id": f"cmpl-{ID}", "object": "text_completion", "created": CREATED, "model": MODEL}
_COMPLETION_CHUNK = _event(
    {
        **_COMPLETION_BASE,
        "choices": [
            {
                "index": 0,
                "text": MARK.decode(),
                "logprobs": None,
                "finish_reason": None,
                "stop_reason": None,
                "prompt_token_ids": None,
                "token_ids": [412],
            }
        ],
    }
)

_COMPLETION_TAIL = (
    _event(
        {
            **_COMPLETION_BASE,
            "choices": [{"index": 0, "text": "", "logprobs": None, "finish_reason": "stop", "stop_reason": None}],
        }
    )
    + _event({**_COMPLETION_BASE, "choices": [], "usage": _USAGE})
    + _DONE
)

_RANKING = _json(
    {
        "id": f"rerank-{ID}",
        "model": MODEL,
        "usage": {"prompt_tokens": 260, "total_tokens": 260},
        "results": [
            {"index": index, "document": {"text": "…", "multi_modal": None}, "relevance_score": 0.9 - index / DOCUMENTS}
            for index in range(DOCUMENTS)
        ],
    }
)

_MODELS = _json(
    {
        "object": "list",
        "data": [
            {
                "id": MODEL,
                "object": "model",
                "created": CREATED,
                "owned_by": "vllm",
                "root": MODEL,
                "parent": None,
                "max_model_len": 32768,
            }
        ],
    }
)

_METRICS = (
    f'vllm:num_requests_running{{engine="0",model_name="{MODEL}"}} 0.0\n'
    f'vllm:num_requests_waiting{{engine="0",model_name="{MODEL}"}} 0.0\n'
).encode()

REPLIES: dict[bytes, Canned] = {
    b"/v1/chat/completions": Canned(
        whole=_CHAT,
        head=_chat_chunk({"delta": {"role": "assistant", "content": ""}, **_OPEN}, prompt_token_ids=None),
        chunk=_chat_chunk({"delta": {"content": MARK.decode()}, **_OPEN, "token_ids": None}),
        tail=_chat_chunk({"delta": {"content": ""}, "logprobs": None, "finish_reason": "stop", "stop_reason": None})
        + _event({**_CHUNK_BASE, "choices": [], "usage": _USAGE})
        + _DONE,
    ),
    b"/v1/completions": Canned(whole=_COMPLETION, chunk=_COMPLETION_CHUNK, tail=_COMPLETION_TAIL),
    b"/v1/rerank": Canned(whole=_RANKING),
    b"/v1/models": Canned(whole=_MODELS),
    b"/health": Canned(whole=b""),
    b"/metrics": Canned(whole=_METRICS),
}
