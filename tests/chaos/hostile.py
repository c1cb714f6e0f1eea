"""Bodies that cost their reader as much as bodies of that size can, and row L9: what they cost everybody else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from gateway import backends
from tests.chaos.house import House, house
from tests.chaos.link import Link, lag, request
from tests.chaos.row import FULL, Findings, percentile, row
from tests.support.clients import WAYS, Way

Make = Callable[[int], dict[str, Any]]
"""How many things -> members of a body."""

BYTES = 1_000_000
MOST_MS = 50.0
_EVERY_S = 0.002


def _call(number: int, name: str) -> dict[str, Any]:
    return {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": "{}"}}


def _results(n: int, *, names: str = "f", **result: Callable[[int], str]) -> dict[str, Any]:
    """One message with n calls, then n results; result: what each has beside its role."""
    calls = [_call(number, names.format(number)) for number in range(n)]
    results = [
        {"role": "tool", "content": "", **{name: make(number) for name, make in result.items()}} for number in range(n)
    ]
    return {"messages": [{"role": "assistant", "tool_calls": calls}, *results]}


def _said(content: Any, **message: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content, **message}]}


def _beside(**members: Any) -> dict[str, Any]:
    return {**_said(""), **members}


def _numbered(n: int, value: Any, most: int) -> dict[str, Any]:
    return {f"z{number}": value for number in range(min(n, most))}


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


CHATS: Mapping[str, Make] = {
    "results without names or ids": lambda n: _results(n),
    "results in reverse": lambda n: _results(n, tool_call_id=lambda i: f"c{n - 1 - i}"),
    "results by name in reverse": lambda n: _results(n, names="f{}", name=lambda i: f"f{n - 1 - i}"),
    "results of unknown ids": lambda n: _results(n, tool_call_id=lambda i: f"x{i}" if i else "c0"),
    "results of unknown names": lambda n: _results(n, name=lambda i: "nobody"),
    "calls whose arguments are objects": lambda n: {
        "messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}]
        * min(n, 10_000)
    },
    "messages": lambda n: {"messages": [{"role": "user", "content": ""}] * min(n, 16_384)},
    "messages of one part": lambda n: {
        "messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}] * min(n, 10_000)
    },
    "parts": lambda n: _said([{"type": "text", "text": ""}] * min(n, 4096)),
    "too many parts": lambda n: _said([{"type": "text", "text": ""}] * min(n, 32_000)),
    "parts of an unknown type": lambda n: _said([{"type": "z"}] * min(n, 4096)),
    "image parts": lambda n: _said([{"type": "image_url", "image_url": {"url": "data:,"}}] * min(n, 4096)),
    "parts in the form of Azure": lambda n: _said([{"type": "image", "content": "http://x"}] * min(n, 4096)),
    "images in the form of Ollama": lambda n: _said("", images=["Qk"] * min(n, 4096)),
    "too many images": lambda n: _said("", images=["Qk"] * min(n, 130_000)),
    "images of many messages": lambda n: {
        "messages": [{"role": "user", "content": "", "images": ["Qk"] * 4000}] * min(n // 4000 + 1, 32)
    },
    "thoughts": lambda n: {"messages": [{"role": "assistant", "content": "", "thinking": "x"}] * min(n, 16_384)},
    "tools": lambda n: _beside(tools=[{"type": "function", "function": {"name": "f"}}] * min(n, 4096)),
    "unknown members of messages": lambda n: {"messages": [{"role": "user", "content": "", "z": 1}] * min(n, 8000)},
    "unknown members of parts": lambda n: _said(
        [{"type": "text", "text": "", f"z{number}": 1} for number in range(min(n, 4096))]
    ),
    "unknown members of one message": lambda n: _said("", **_numbered(n, 1, 60_000)),
    "unknown members of one part": lambda n: _said([{"type": "text", "text": "", **_numbered(n, 1, 60_000)}]),
    "unknown members of one tool": lambda n: _beside(
        tools=[{"type": "function", "function": {"name": "f", **_numbered(n, 1, 60_000)}}]
    ),
    "unknown members of a format": lambda n: _beside(
        response_format={"type": "json_object", **_numbered(n, 1, 60_000)}
    ),
    "nulls": lambda n: {"messages": [{"role": "user", "content": "", "refusal": None}] * min(n, 16_384)},
    "unknown members": lambda n: _beside(**_numbered(n, [1] * 100, 990)),
    "members of one object": lambda n: _beside(metadata=_numbered(n, "v", 60_000)),
    "a schema of many properties": lambda n: _beside(
        response_format=_schema({"type": "object", "properties": _numbered(n, {}, 30_000)})
    ),
    "a schema of many words": lambda n: _beside(response_format=_schema({"enum": ["a"] * min(n, 120_000)})),
    "a format of many words": lambda n: _beside(format={"enum": ["a"] * min(n, 120_000)}),
    "options": lambda n: _beside(options=_numbered(n, 1, 60_000)),
    "the word model": lambda n: _said('"model"' * n),
    "escapes": lambda n: _said("\\u006" * n),
    "text": lambda n: _said("a" * n),
    "wide text": lambda n: _said("\u4e00" * n),
    "numbers": lambda n: _beside(metadata=[1] * n),
    "long stops": lambda n: _beside(stop=["a" * n] * 2),
    "biases": lambda n: _beside(logit_bias={str(number): 1 for number in range(min(n, 60_000))}),
    "stop ids": lambda n: _beside(stop_token_ids=[1] * n),
    "a long name": lambda n: _beside(**{"a" * n: 1}),
}
TEXTS: Mapping[str, Make] = {
    "prompts": lambda n: {"prompt": ["a"] * min(n, 130_000)},
    "ids": lambda n: {"prompt": [1] * n},
    "prompts of ids": lambda n: {"prompt": [[1]] * min(n, 32_000)},
    "text": lambda n: {"prompt": "a" * n},
    "stops": lambda n: {"prompt": "a", "stop": ["a"] * min(n, 130_000)},
    "bad words": lambda n: {"prompt": "a", "bad_words": ["a"] * min(n, 130_000)},
    "bad ids": lambda n: {"prompt": "a", "bad_word_tokens": [{"tokens": [1]}] * min(n, 16_000)},
    "stop ids": lambda n: {"prompt": "a", "stop_tokens": [{"tokens": [1]}] * min(n, 16_000)},
    "a long stop": lambda n: {"prompt": "a", "stop_tokens": [{"tokens": [1] * n}]},
    "ends": lambda n: {"prompt": "a", "eos_token": [1] * n},
    "seeds": lambda n: {"prompt": "a", "n": 128, "seed": [1] * n},
    "a pattern": lambda n: {"prompt": "a", "response_format": {"type": "regex", "schema": "(a)" * n}},
    "biases": lambda n: {"prompt": "a", "logit_bias": {str(number): 1 for number in range(min(n, 60_000))}},
    "unknown members": lambda n: {"prompt": "a", **_numbered(n, [1] * 100, 990)},
}
INPUTS: Mapping[str, Make] = {
    "inputs": lambda n: {"input": ["a"] * min(n, 2048)},
    "too many inputs": lambda n: {"input": ["a"] * min(n, 130_000)},
    "ids": lambda n: {"input": [1] * n},
    "inputs of ids": lambda n: {"input": [[1] * 200] * min(n, 2048)},
}
KINDS: Mapping[str, Mapping[str, Make]] = {"chat": CHATS, "complete": TEXTS, "embed": INPUTS}
"""Operation -> kinds of bodies for it."""


def filled(make: Make, size: int = BYTES) -> bytes:
    """A body of that kind of about `size` bytes, or as many things as its kind may have."""
    low, high = 1, 2
    while high < size and len(json.dumps(make(high))) < size:
        low, high = high, 2 * high
    while high - low > low // 32 + 1:
        middle = (low + high) // 2
        low, high = (middle, high) if len(json.dumps(make(middle))) < size else (low, middle)
    return json.dumps(make(low)).encode()


@row("L9", "bodies below 1 MB that cost their reader most, in every dialect before every backend")
async def hostile(findings: Findings) -> None:
    """Bodies of up to 1 MB that are the most expensive to read (results of tool calls in reverse order or with unknown
    ids, parts, images, tools, unknown members, schemas, biases, prompts; 58 kinds), on every route of every dialect
    with one backend each, `FULL=1`: with every backend; another client calls `/livez` every 2 ms.

    Passes if no answer of 500; the other client never waits for more than 50 ms.
    """
    names = list(backends.REGISTRY)
    # All are served by the one worker here; what it makes of another wire's request is another matter.
    models = {name: {"backend": name, "workers": ["http://127.0.0.1:9"]} for name in names}
    made = {operation: {kind: filled(make)[:-1] for kind, make in kinds.items()} for operation, kinds in KINDS.items()}
    async with house({}, {"models": models, "health": {"interval_s": 3600}}) as at:
        alone = await _pauses(at, asyncio.sleep(2.0 if FULL else 1.0))
        count = 0
        for operation, bodies in made.items():
            for number, (kind, body) in enumerate(bodies.items()):
                ways = [way for way in WAYS if way.operation == operation]
                pairs = [(way, name) for way in ways for name in names]
                pairs = pairs if FULL else [(way, names[(number + at_) % len(names)]) for at_, way in enumerate(ways)]
                count += len(pairs)
                pauses = await _pauses(at, _send(at, pairs, body))
                findings.check(
                    f"{operation}, {kind}: ms that others wait at most ({MOST_MS:g}; alone {max(alone):.1f})",
                    f"{max(pauses):.1f}, p99 {percentile(pauses, 0.99):.1f}",
                    len(pauses),
                    max(pauses) <= MOST_MS,
                )
        findings.check("bodies sent", count, count, True)


async def _send(at: House, pairs: list[tuple[Way, str]], body: bytes) -> None:
    link = Link(at.gateways[0].address)
    for way, model in pairs:
        named = body + b',"model":"%b"}' % model.encode()
        answer = await link.send(request("POST", way.path(model), {}, named))
        assert answer.status != 500, (str(way), answer.body)
    link.close()


async def _pauses(at: House, work: Any) -> list[float]:
    """How long another client waited for its smallest request while `work` was done, each time, in milliseconds."""
    task = asyncio.ensure_future(work)
    waits = await lag(at.gateways[0].address, task, _EVERY_S)
    await task
    return waits
