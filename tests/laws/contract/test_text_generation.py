"""The unmodified `text-generation` client against the stand-in for TGI, so that the stand-in is known to be one; then
every dialect through the gateway against the stand-in."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import text_generation
from text_generation import errors
from text_generation.types import Grammar, GrammarType

from tests.laws.conformance.clients import CLIENTS, Client
from tests.laws.fidelity.matrix import asking
from tests.support.clients import DIALECTS, WAYS, Way, operation_of
from tests.support.harness import Stack, sse_data
from tests.support.standins.tgi import PROMPT_TOKENS, Tgi

TEXT = "Hello, world"
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
# The client's own models of 2024 hand one of their fields to pydantic in a way that it has since deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:The `dict` method is deprecated")


@pytest.fixture(scope="module")
def worker() -> Iterator[Tgi]:
    with Tgi() as running:
        yield running


@pytest.fixture(scope="module")
def stack(worker: Tgi) -> Iterator[Stack]:
    model = {"backend": "tgi", "workers": [worker.url], "upstream_model": "tgi"}
    with Stack((), {"models": {"m": model}}) as running:
        yield running


def client(worker: Tgi) -> text_generation.Client:
    return text_generation.Client(worker.url, timeout=30)


# -- the client and the stand-in ------------------------------------------------------------------------------------


def test_generate(worker: Tgi) -> None:
    reply = client(worker).generate("hi", max_new_tokens=9, seed=5, do_sample=True, top_n_tokens=2)
    assert reply.generated_text == TEXT
    assert reply.details.finish_reason == "eos_token"
    assert (reply.details.generated_tokens, reply.details.seed) == (4, 5)
    assert [token.text for token in reply.details.tokens] == ["Hello", ",", " world", "</s>"]
    assert reply.details.top_tokens is not None
    assert [len(tops) for tops in reply.details.top_tokens] == [2] * 4


@pytest.mark.parametrize(
    ("asked", "text", "reason"),
    [({"max_new_tokens": 2}, "Hello,", "length"), ({"stop_sequences": [" wor", ","]}, "Hello,", "stop_sequence")],
)
def test_generate_ended(worker: Tgi, asked: dict[str, Any], text: str, reason: str) -> None:
    reply = client(worker).generate("hi", **asked)
    assert (reply.generated_text, reply.details.finish_reason) == (text, reason), "the stop sequence stays in the text"


def test_generate_stream(worker: Tgi) -> None:
    events = list(client(worker).generate_stream("hi", max_new_tokens=9))
    assert "".join(event.token.text for event in events if not event.token.special) == TEXT
    assert [event.generated_text for event in events] == [None, None, None, TEXT]
    assert events[-1].details is not None
    assert events[-1].details.finish_reason == "eos_token"


@pytest.mark.parametrize("type_", [GrammarType.Json, GrammarType.Regex])
def test_grammar(worker: Tgi, type_: GrammarType) -> None:
    value: Any = {"properties": {"a": {"type": "string"}}} if type_ is GrammarType.Json else "a+"
    assert client(worker).generate("hi", grammar=Grammar(type=type_, value=value)).generated_text == TEXT


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("generation", errors.GenerationError),
        ("overloaded", errors.OverloadedError),
        ("validation", errors.ValidationError),
        ("incomplete_generation", errors.IncompleteGenerationError),
    ],
)
def test_errors(kind: str, expected: type[Exception]) -> None:
    with Tgi(fail=kind) as failing:
        with pytest.raises(expected):
            client(failing).generate("hi")
        with pytest.raises(expected):
            list(client(failing).generate_stream("hi"))


def test_an_error_amid_a_stream() -> None:
    with Tgi(fail="generation", after=2) as failing:
        events = client(failing).generate_stream("hi")
        assert [next(events).token.text, next(events).token.text] == ["Hello", ","]
        with pytest.raises(errors.GenerationError):
            next(events)


def test_its_checks(worker: Tgi) -> None:
    with pytest.raises(errors.ValidationError, match="must be <= 4096"):
        client(worker).generate("hi", max_new_tokens=5000)


def test_chat(worker: Tgi) -> None:
    reply = client(worker).chat([text_generation.types.Message(role="user", content="hi")], max_tokens=9)
    assert reply.choices[0].message.content == TEXT
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage["prompt_tokens"] == PROMPT_TOKENS


def test_chat_with_a_tool() -> None:
    with Tgi(call={"city": "Oslo"}) as worker:
        tool = text_generation.types.Tool(**TOOL)
        reply = client(worker).chat([text_generation.types.Message(role="user", content="hi")], tools=[tool])
    assert reply.choices[0].message.tool_calls[0]["function"]["arguments"] == '{"city": "Oslo"}'
    assert reply.choices[0].finish_reason == "stop", "as TGI says it"


def test_chat_stream() -> None:
    """Today's chunks lack a key that this client insists on; those of before have it."""
    with Tgi(chat_chunks="old") as worker:
        messages = [text_generation.types.Message(role="user", content="hi")]
        chunks = list(client(worker).chat(messages, stream=True))
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == TEXT
    assert chunks[-1].choices[0].finish_reason == "stop"


# -- every dialect through the gateway ------------------------------------------------------------------------------

# (dialect, operation) -> how it is asked, and its client as the conformance suite reads replies.
USUAL: dict[tuple[str, str], tuple[Way, Client]] = {}
for _client in CLIENTS:
    for _way in WAYS:
        if (_way.dialect, _way.operation, _way.route.path) == (_client.dialect, _client.operation, _client.path):
            USUAL.setdefault((_way.dialect, _way.operation), (_way, _client))
CHATS = [dialect for dialect, operation in USUAL if operation == "chat"]
# A prompt that goes through a chat template is a chat.
TEXTS = [
    dialect
    for (dialect, operation), (way, *_) in USUAL.items()
    if operation == "complete"
    and operation_of(DIALECTS[dialect].read(asking(way.example, way.example.body))) == "complete"
]
CHAT, TEXT_ONLY = (USUAL["openai", operation][0].path() for operation in ("chat", "complete"))
MESSAGES = [{"role": "user", "content": "hi"}]


def post(stack: Stack, path: str, **body: Any) -> httpx.Response:
    return httpx.post(stack.url + path, json={"model": "m", **body}, timeout=30)


def heard_text(stack: Stack, dialect: str, operation: str, *, stream: bool, **members: Any) -> str:
    """What the dialect's client hears of a reply to "hi". Members have their canonical names, or are extensions."""
    way, heard = USUAL[dialect, operation]
    body = way.body("hi", **{"stream": stream, "max_tokens": 9, **members})
    extensions = {name: value for name, value in members.items() if way.field(name) is None}
    reply = post(stack, way.path(), **body, **extensions)
    assert reply.status_code == 200, reply.text
    said = (heard.hear if stream else heard.read)(reply.content)
    assert said.complete
    return said.of(0).text


@pytest.mark.parametrize("dialect", CHATS)
def test_a_chat_of_every_dialect(stack: Stack, worker: Tgi, dialect: str) -> None:
    assert heard_text(stack, dialect, "chat", stream=False, temperature=0.5) == TEXT
    sent = worker.seen[-1]
    assert sent.path == "/v1/chat/completions"
    assert (sent.body["model"], sent.body["temperature"], sent.body["max_tokens"]) == ("tgi", 0.5, 9)
    assert "presence_penalty" not in sent.body, "TGI would repeat less: it makes a repetition penalty of it"


@pytest.mark.parametrize("dialect", CHATS)
def test_a_streamed_chat_of_every_dialect(stack: Stack, dialect: str) -> None:
    assert heard_text(stack, dialect, "chat", stream=True) == TEXT
    assert stack.records()[-1]["usage"]["input"] == PROMPT_TOKENS


@pytest.mark.parametrize("dialect", TEXTS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_text_of_every_dialect(stack: Stack, worker: Tgi, dialect: str, stream: bool) -> None:
    assert heard_text(stack, dialect, "complete", stream=stream, seed=7, top_k=3) == TEXT
    sent = worker.seen[-1]
    assert sent.path == ("/generate_stream" if stream else "/generate")
    assert sent.body["inputs"] == "hi"
    parameters = sent.body["parameters"]
    assert {
        "max_new_tokens": 9,
        "seed": 7,
        "top_k": 3,
        "do_sample": True,
        "details": True,
    }.items() <= parameters.items()
    usage = stack.records()[-1]["usage"]
    assert (usage["input"], usage["output"]) == (PROMPT_TOKENS, 4)


@pytest.mark.parametrize("dialect", [one for one in CHATS if USUAL[one, "chat"][0].field("stop") is not None])
@pytest.mark.parametrize("stream", [False, True])
def test_the_stop_sequence_is_no_part_of_the_text(stack: Stack, dialect: str, stream: bool) -> None:
    said = heard_text(stack, dialect, "chat", stream=stream, stop=[", w", "lo, world"])
    assert said == "Hel", "TGI leaves it there"


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool(stream: bool) -> None:
    with (
        Tgi(call={"city": "Oslo"}) as worker,
        Stack((), {"models": {"m": {"backend": "tgi", "workers": [worker.url]}}}) as stack,
    ):
        reply = post(stack, CHAT, messages=MESSAGES, tools=[TOOL], stream=stream)
        if not stream:
            choice = reply.json()["choices"][0]
            assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Oslo"}'
            assert choice["finish_reason"] == "tool_calls"
            return
        chunks = [json.loads(data) for data in sse_data(reply.content) if data.startswith(b"{")]
        calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
        assert "".join(call["function"]["arguments"] for call in calls) == '{"city": "Oslo"}'
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("path", [CHAT, TEXT_ONLY])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("kind", "status"), [("generation", 502), ("overloaded", 503), ("incomplete_generation", 502)])
def test_errors_before_the_first_token(path: str, stream: bool, kind: str, status: int) -> None:
    """As an event of a 200 too: nothing has been sent to the client when it comes."""
    with (
        Tgi(fail=kind) as worker,
        Stack((), {"retry": {"attempts": 1}, "models": {"m": {"backend": "tgi", "workers": [worker.url]}}}) as stack,
    ):
        reply = post(stack, path, stream=stream, **({"messages": MESSAGES} if "chat" in path else {"prompt": "hi"}))
    assert reply.status_code == status, reply.text
    assert "CANCELLED" not in reply.text, "what failed inside the worker is not the client's business"


@pytest.mark.parametrize("path", [CHAT, TEXT_ONLY])
@pytest.mark.parametrize("stream", [False, True])
def test_too_long_a_request(stack: Stack, path: str, stream: bool) -> None:
    given = {"messages": MESSAGES} if "chat" in path else {"prompt": "hi"}
    reply = post(stack, path, stream=stream, max_tokens=5000, **given)
    assert reply.status_code == 422
    assert reply.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", [CHAT, TEXT_ONLY])
@pytest.mark.parametrize("options", [{"fail": "generation"}, {"cut": True}])
def test_a_stream_that_breaks_ends_in_an_error(path: str, options: dict[str, Any]) -> None:
    gate = threading.Event()
    received = bytearray()
    with (
        Tgi(after=2, gate=gate, **options) as worker,
        Stack((), {"models": {"m": {"backend": "tgi", "workers": [worker.url]}}}) as stack,
        httpx.Client(timeout=30) as http,
    ):
        given = {"messages": MESSAGES} if "chat" in path else {"prompt": "hi"}
        with http.stream("POST", stack.url + path, json={"model": "m", "stream": True, **given}) as reply:
            blocks = reply.iter_raw()
            while b"Hello" not in received:
                received += next(blocks)
            gate.set()
            with pytest.raises(httpx.RemoteProtocolError):
                drain(blocks, received)
    assert b'"error"' in received
    assert b"[DONE]" not in received


def drain(blocks: Iterator[bytes], into: bytearray) -> None:
    for block in blocks:
        into += block
