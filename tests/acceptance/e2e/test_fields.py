"""The column `llamacpp` of docs/fidelity.md before the real engine: what the matrix says is sent is accepted, and acts.

Each field is sent alone with the sample of its table, as tests/laws/fidelity measures it, and the request that comes of
it goes to the engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from gateway.backends.llamacpp import LlamaCpp
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Request, Response
from gateway.core.lifecycle import Detokenized, Reply, TokenCount, Tokens, WholeReply, fold
from gateway.core.messages import AnsweredFromStore, Chat, Complete, Embed, ListModels, Media, Question, Score
from gateway.core.ports import Capabilities
from gateway.fleet.discovery import FoundWorker, able
from gateway.translation.ability import refuse_beyond, write_possible
from gateway.translation.whole import ask
from tests.acceptance.e2e.conftest import command
from tests.laws.fidelity import matrix

pytestmark = pytest.mark.long
BACKEND = LlamaCpp()
# Wanted of the model or its chat template, which cannot: the engine says so, and the gateway refuses.
TEMPLATE = {"tools", "tool_choice", "parallel_tool_calls", "strict_tools", "toolConfig"}
TEMPLATE |= {"reasoning_effort", "think", "images"}


class Engine:
    """The real engine, asked as the gateway writes. can is what it says of itself."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        facts = BACKEND.facts(client.get(BACKEND.facts_path or "").content, "smollm2")
        self.can = able(Capabilities("smollm2"), [FoundWorker("", facts=facts)])
        self._answers: dict[bytes, Response] = {}

    def ask(self, op: Any, **more: Any) -> Response:
        """Its answer to `op` and `more` members, of a few tokens where `op` does not say how many."""
        request = write_possible(BACKEND, op, self.can)
        body = {"max_tokens": 1, "n_predict": 1, **json.loads(request.body), **more}
        body["n_predict" if request.path != "/completion" else "max_tokens"] = None
        if body["n_predict"] == -1:
            body["n_predict"] = 1
        sent = json.dumps({name: value for name, value in body.items() if value is not None}).encode()
        key = request.path.encode() + sent
        if key not in self._answers:
            found = self.client.post(request.path, content=sent)
            headers = [(name.lower().encode(), value.encode()) for name, value in found.headers.items()]
            self._answers[key] = Response(found.status_code, headers, found.content)
        return self._answers[key]

    def forget(self) -> None:
        """Drops the answers so far: the same request is sent again."""
        self._answers.clear()

    def answer(self, op: Question) -> WholeReply:
        """To what needs no model."""
        asked = ask(op, BACKEND, self.can)
        found = self.client.post(asked.request.path, content=asked.request.body)
        return asked.read(Response(found.status_code, [], found.content))

    def reply(self, op: Chat | Complete, **more: Any) -> Reply:
        response = self.ask(op, **more)
        if response.status != 200:
            raise BACKEND.fault(response)
        if op.stream:
            reader = BACKEND.reader(op)
            return fold([*reader.feed(response.body), *reader.eof()])
        return fold(BACKEND.read(response, op))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    flags = ("--port", "0", "--parallel", "2", "--context", "256")
    # It closes connections after every stream and every hundred requests, and does not say so.
    once = httpx.Limits(max_keepalive_connections=0)
    with (
        command("worker", "embedded", *flags) as address,
        httpx.Client(base_url=address, timeout=60, limits=once) as client,
    ):
        yield Engine(client)


ROWS = list(matrix.rows())


@pytest.mark.parametrize("dialect", matrix.DIALECTS)
def test_what_is_sent_is_accepted(dialect: str, engine: Engine) -> None:
    sent = [row for row in ROWS if row.dialect == dialect and row.outcomes["llamacpp"].what != "refused"]
    assert sent
    for row in sent:
        try:
            accepted(row, engine)
        except BaseException as error:
            error.add_note(str(row))
            raise


def accepted(row: matrix.Row, engine: Engine) -> None:
    request = matrix.request_with(row.dialect, row.operation, row.field)
    op = matrix.DIALECTS[row.dialect].read(request)
    assert not isinstance(op, (ListModels, AnsweredFromStore))
    op.model = op.model or "smollm2"
    if isinstance(op, Question):
        reply = engine.answer(op)
        assert isinstance(reply, (TokenCount, Tokens, Detokenized))
        assert reply.text if isinstance(reply, Detokenized) else reply.tokens
        return
    if row.field.name in TEMPLATE:
        with pytest.raises(GatewayError) as caught:
            refuse_beyond(op, engine.can)
        assert caught.value.kind is Kind.UNSUPPORTED
        return
    refuse_beyond(op, engine.can)
    if isinstance(op, (Embed, Score)):
        assert BACKEND.fault(engine.ask(op), op).kind is Kind.UNSUPPORTED
        return
    if isinstance(op, Complete):
        op.max_total = op.min_total = None  # settled before a worker is asked: tests/unit/translation/test_totals.py
    assert not isinstance(op, Media)
    assert engine.reply(op).choices


# -- and acts -------------------------------------------------------------------------------------------------------

_SAID = [{"role": "user", "content": "Count from 1 to 20: 1, 2, 3, 4,"}]
_GREEDY = {"temperature": 0, "max_tokens": 24}


def said(engine: Engine, operation: str, **members: Any) -> Any:
    """The first choice of the reply to a client of OpenAI's dialect. Its prompt is computed anew: what a slot has
    cached of others may change a reply, and then the order of the tests would."""
    content: dict[str, Any] = {"messages": _SAID} if operation == "chat" else {"prompt": "1, 2, 3, 4,"}
    body = json.dumps({"model": "smollm2", **content, **_GREEDY, **members}).encode()
    request = Request("POST", "/", [(b"content-type", b"application/json")], body, b"", operation)
    op = matrix.DIALECTS["openai"].read(request)
    assert isinstance(op, (Chat, Complete))
    return engine.reply(op, cache_prompt=False).choices[0]


def _other(plain: Any, found: Any) -> bool:
    return bool(found.text() != plain.text())


def _same(plain: Any, found: Any) -> bool:
    return bool(found.text() == plain.text())


Law = Callable[[Any, Any], bool]
# Members -> what must be true of the greedy reply without them and the reply with them.
EFFECTS: dict[str, tuple[dict[str, Any], Law]] = {
    "temperature": ({"temperature": 2.0, "seed": 3}, _other),
    "top_k": ({"temperature": 2.0, "top_k": 1}, _same),
    "top_p": ({"temperature": 2.0, "top_p": 1e-6}, _same),
    "min_p": ({"temperature": 2.0, "min_p": 1.0}, _same),
    "frequency_penalty": ({"frequency_penalty": 2.0}, _other),
    "presence_penalty": ({"presence_penalty": 2.0}, _other),
    "repetition_penalty": ({"repetition_penalty": 2.0}, _other),
    "stop": ({"stop": [" "]}, lambda plain, found: " " in plain.text() and " " not in found.text()),
    "max_tokens": ({"max_tokens": 3}, lambda plain, found: len(found.text() or "") < len(plain.text() or "")),
    "logprobs": ({"logprobs": True}, lambda plain, found: bool(found.logprobs) and not plain.logprobs),
    "response_format": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "boolean"}}}},
        lambda plain, found: found.text() in ("true", "false"),
    ),
    "structured_outputs.choice": (
        {"structured_outputs": {"choice": ["blue", "red"]}},
        lambda plain, found: found.text() in ("blue", "red"),
    ),
    "structured_outputs.regex": (
        {"structured_outputs": {"regex": "b{3}"}},
        lambda plain, found: found.text() == "bbb",
    ),
}


@pytest.mark.parametrize("operation", ["chat", "complete"])
@pytest.mark.parametrize("name", EFFECTS)
def test_what_is_accepted_acts(name: str, operation: str, engine: Engine) -> None:
    members, law = EFFECTS[name]
    if operation == "complete":
        members = {**members, "logprobs": 1} if name == "logprobs" else members
    assert law(said(engine, operation), said(engine, operation, **members))


@pytest.mark.parametrize("operation", ["chat", "complete"])
def test_a_seed_draws_the_same_again(operation: str, engine: Engine) -> None:
    drawn = []
    for seed in (1, 1, 2, 2):
        engine.forget()
        drawn.append(said(engine, operation, temperature=1.5, seed=seed).text())
    assert drawn[0] == drawn[1] != drawn[2] == drawn[3]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min_tokens", 4),
        ("stop_token_ids", [5]),
        ("prompt_logprobs", 1),
        ("bad_words", ["a"]),
        ("allowed_token_ids", [5]),
        ("guided_regex", "a"),
        ("use_beam_search", True),
        ("skip_special_tokens", False),
        ("structured_outputs", {"structural_tag": "x"}),
    ],
)
@pytest.mark.parametrize("operation", ["chat", "complete"])
def test_what_the_engine_would_pass_over_in_silence_is_refused(
    name: str, value: Any, operation: str, engine: Engine
) -> None:
    with pytest.raises(GatewayError) as caught:
        said(engine, operation, **{name: value})
    assert caught.value.kind is Kind.UNSUPPORTED


@pytest.mark.parametrize("stream", [False, True])
def test_every_choice_of_a_chat_is_counted(stream: bool, engine: Engine) -> None:
    chat = {"messages": _SAID, "max_tokens": 5, "temperature": 1, "n": 2, "stream": stream, "model": "smollm2"}
    chat["ignore_eos"] = True  # a choice that ends by itself may have fewer tokens
    request = Request("POST", "/", [(b"content-type", b"application/json")], json.dumps(chat).encode(), b"", "chat")
    op = matrix.DIALECTS["openai"].read(request)
    assert isinstance(op, Chat)
    reply = engine.reply(op)
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert reply.usage is not None
    assert reply.usage.output == 10
    assert reply.usage.input is not None
    assert reply.usage.input < 60


def test_the_engine_says_what_it_can_do(engine: Engine) -> None:
    assert engine.can.max_context == 256
    assert {"tools", "reasoning", "vision", "audio"} <= engine.can.lacks
