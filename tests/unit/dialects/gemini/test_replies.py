"""What the clients of the dialect `gemini` get: streams, errors, lists of models."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from gateway import dialects
from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, End, Event, Finish, PartEnd, PartStart, Start, UsageReport
from gateway.core.http import Request
from gateway.core.lifecycle import Embeddings, fold
from gateway.core.messages import Chat, ListModels, ModelCard
from gateway.core.ports import Settings
from gateway.core.sealing import Sealing
from gateway.core.usage import Usage
from gateway.dialects.gemini.signatures import Thoughts
from tests.support.raised import raised

GEMINI = dialects.create("gemini", Settings())
TOOLS = [{"functionDeclarations": [{"name": "f"}]}]
CALLER = Sealing("team-a", b"k" * 32)


def asked(query: bytes = b"alt=sse", **members: Any) -> Chat:
    body = {"contents": [{"parts": [{"text": "hi"}]}], **members}
    request = Request("POST", "/x", [], json.dumps(body).encode(), query, "stream", {"model": "m"}, "r")
    request.sealing = lambda: CALLER
    op = GEMINI.read(request)
    assert isinstance(op, Chat)
    return op


def thinks_and_calls() -> list[Event]:
    return [
        Start("id", "sim", 1),
        PartStart(0, 0, "thinking"),
        Delta(0, 0, "Hm,"),
        Delta(0, 0, " so"),
        PartEnd(0, 0),
        *(
            event
            for index in (1, 2)
            for event in (
                PartStart(0, index, "tool", f"c{index}", "f"),
                Delta(0, index, '{"a":'),
                Delta(0, index, "\n1}"),
                PartEnd(0, index),
            )
        ),
        Finish(0, "tool_calls", "tool_calls"),
        UsageReport(Usage(3, 9, reasoning=4)),
        End(),
    ]


def streamed(op: Chat, events: list[Event]) -> tuple[list[Any], int]:
    """(the items, the most bytes that the writer kept)."""
    writer, out, most = GEMINI.writer(op), b"", 0
    for event in events:
        out += writer.write(event)
        most = max(most, writer.buffered_bytes)
    assert writer.buffered_bytes == 0
    return [json.loads(line[6:]) for line in out.split(b"\n\n") if line], most


@pytest.mark.parametrize("shown", [False, True])
def test_the_first_call_carries_the_thinking(shown: bool) -> None:
    op = asked(tools=TOOLS, generationConfig={"thinkingConfig": {"includeThoughts": shown}})
    items, most = streamed(op, thinks_and_calls())
    assert most > 6
    parts = [part for item in items for part in item["candidates"][0]["content"]["parts"]]
    whole = json.loads(GEMINI.write(fold(thinks_and_calls()), op).body)["candidates"][0]["content"]["parts"]
    thoughts = [part["text"] for part in parts if part.get("thought")]
    assert thoughts == (["Hm,", " so"] if shown else [])
    calls = [part for part in parts if "functionCall" in part]
    assert calls == [part for part in whole if "functionCall" in part]
    first, second = calls
    assert Thoughts(lambda: CALLER).open(first["thoughtSignature"]) == "Hm, so"
    assert "thoughtSignature" not in second
    assert first["functionCall"] == {"name": "f", "args": {"a": 1}, "id": "c1"}
    assert items[-1]["usageMetadata"] == {
        "promptTokenCount": 3,
        "candidatesTokenCount": 5,
        "thoughtsTokenCount": 4,
        "totalTokenCount": 12,
    }


def test_without_tools_no_thinking_is_kept() -> None:
    events = [event for event in thinks_and_calls() if getattr(event, "index", 0) == 0]
    items, most = streamed(asked(), events)
    assert most == 0
    assert [item["candidates"][0].get("finishReason") for item in items] == ["STOP"]


def test_an_array_stream_is_one_document_and_a_cut_one_is_none() -> None:
    op = asked(query=b"")
    writer = GEMINI.writer(op)
    assert (b"content-type", b"application/json") in writer.headers
    first: list[Event] = [Start("i", "s", 1), PartStart(0, 0, "text"), Delta(0, 0, "a"), Delta(0, 0, "b")]
    last: list[Event] = [PartEnd(0, 0), Finish(0, "stop", "stop"), End()]
    begun = b"".join(map(writer.write, first))
    rest = [writer.keepalive(), *map(writer.write, last)]
    assert len(json.loads(begun + b"".join(rest))) == 3
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(begun)


def test_logprobs() -> None:
    token = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [{"token": "b", "logprob": -1.0}]}
    raw = Raw(json.dumps([token]).encode())
    events: list[Event] = [
        *(Start("i", "s", 1), PartStart(0, 0, "text"), Delta(0, 0, "a", (), raw), Delta(0, 0, "a", (), raw)),
        *(PartEnd(0, 0), Finish(0, "stop", "stop"), End()),
    ]
    op = asked(generationConfig={"responseLogprobs": True, "logprobs": 1})
    (candidate,) = json.loads(GEMINI.write(fold(events), op).body)["candidates"]
    one, other = {"token": "a", "logProbability": -0.5}, {"token": "b", "logProbability": -1.0}
    assert candidate["logprobsResult"] == {
        "chosenCandidates": [one] * 2,
        "topCandidates": [{"candidates": [other]}] * 2,
    }
    assert candidate["avgLogprobs"] == -0.5
    assert streamed(op, events)[0][0]["candidates"][0]["logprobsResult"]["chosenCandidates"] == [one]


# -- errors -----------------------------------------------------------------------------------------------------------


def told(error: GatewayError) -> tuple[int, str, dict[str, Any]]:
    """(HTTP status, status, details by the last part of their type)."""
    response, _ = GEMINI.refuse(error, None, None)
    body = json.loads(response.body)["error"]
    assert body["code"] == response.status
    return response.status, body["status"], {one["@type"].rpartition(".")[2]: one for one in body["details"]}


def test_a_limit_says_when_to_try_again() -> None:
    status, word, details = told(GatewayError(Kind.LIMITED, "slow", code="rate_limit_exceeded", retry_after=7.0001))
    assert (status, word) == (429, "RESOURCE_EXHAUSTED")
    assert details["RetryInfo"]["retryDelay"] == "7.001s"
    assert details["ErrorInfo"]["reason"] == "RATE_LIMIT_EXCEEDED"
    assert "RetryInfo" not in told(GatewayError(Kind.LIMITED, "never"))[2]
    assert "RetryInfo" not in told(GatewayError(Kind.BAD_REQUEST, "no", retry_after=1))[2]


def test_an_error_names_the_field_and_the_key() -> None:
    _, _, details = told(GatewayError(Kind.BAD_REQUEST, "'max_tokens' is wrong", param="max_tokens"))
    (violation,) = details["BadRequest"]["fieldViolations"]
    assert violation["field"] == "generationConfig.maxOutputTokens"
    status, word, details = told(GatewayError(Kind.UNAUTHENTICATED, "no"))
    assert (status, word, details["ErrorInfo"]["reason"]) == (401, "UNAUTHENTICATED", "API_KEY_INVALID")


# -- models and embeddings --------------------------------------------------------------------------------------------

CARDS = [
    ModelCard("a", 1, True, 4096, features=frozenset({"tools", "reasoning"})),
    ModelCard("org/b", 1, True, features=frozenset({"embeddings"})),
    ModelCard("c", 1, True),
]


def listed(query: str = "", **params: str) -> Any:
    route = "model" if "model" in params else "models"
    request = Request("GET", "/x", query=query.encode(), route=route, params=params)
    asking = GEMINI.read(request)
    assert isinstance(asking, ListModels)
    return json.loads(asking.write(CARDS).body)


def test_models_come_in_pages() -> None:
    first = listed("pageSize=2")
    assert [one["name"] for one in first["models"]] == ["models/a", "models/org/b"]
    assert [one["name"] for one in listed(f"page_size=2&page_token={first['nextPageToken']}")["models"]] == ["models/c"]
    assert "nextPageToken" not in listed()
    a, b, _ = listed()["models"]
    assert (a["inputTokenLimit"], a["thinking"]) == (4096, True)
    assert a["supportedGenerationMethods"] == ["generateContent", "countTokens"]
    assert b["supportedGenerationMethods"] == ["embedContent", "batchEmbedContents"]
    assert listed(model="a")["name"] == "models/a"
    for query in ("pageSize=-1", "pageToken=x"):
        assert raised(listed, query).kind is Kind.BAD_REQUEST


def test_models_of_vertex_ai() -> None:
    place = "publishers/google"
    assert listed(place=place)["publisherModels"][0]["name"] == "publishers/google/models/a"
    assert listed(place=place, model="a")["name"] == "publishers/google/models/a"


_COUNTED = {"promptTokenCount": 4, "totalTokenCount": 4}


def _predicted(count: int, statistics: dict[str, Any]) -> dict[str, Any]:
    return {"predictions": [{"embeddings": {"values": [0.5], "statistics": statistics}}] * count}


@pytest.mark.parametrize(
    ("route", "count", "form"),
    [
        ("embed", 1, {"embedding": {"values": [0.5]}, "usageMetadata": _COUNTED}),
        ("embed_many", 2, {"embeddings": [{"values": [0.5]}] * 2, "usageMetadata": _COUNTED}),
        ("predict", 1, _predicted(1, {"truncated": False, "token_count": 4})),
        ("predict", 2, _predicted(2, {"truncated": False})),
    ],
)
def test_embeddings(route: str, count: int, form: dict[str, Any]) -> None:
    body = json.dumps({"instances": [{"content": "a"}] * count}).encode()
    op = GEMINI.read(Request("POST", "/x", [], body, b"", route, {"model": "m"}, "r"))
    reply = Embeddings("m", (Raw(b"[0.5]"),) * count, Usage(4, 0))
    assert json.loads(GEMINI.write(reply, op).body) == form  # type: ignore[arg-type]  # an operation
