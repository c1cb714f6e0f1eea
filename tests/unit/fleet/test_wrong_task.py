"""Chats of a model that makes embeddings, and the reverse, are refused before a worker is asked: learnt from it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from gateway import backends
from gateway.core.http import Response
from gateway.core.messages import Chat, Complete, Embed, Message, Op, Score, Text
from gateway.wire.openai.replies.inability import inability
from tests.support.clients import WAYS, usual
from tests.support.harness import Stack
from tests.support.standins.serving import Answering, serving

DIALECTS = sorted({way.dialect for way in WAYS} - {"rerank"})
CHAT = Chat(model="m", messages=(Message("user", (Text("hi"),)),))
OPS: dict[str, Op] = {
    "chat": CHAT,
    "completions": Complete(model="m", prompts=("hi",)),
    "embeddings": Embed(model="m", inputs=("hi",)),
    "scores": Score(model="m", queries=("q",), documents=("d",)),
}
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "embeddings": "/v1/embeddings"}
PATHS["scores"] = "/v1/rerank"
BODIES: Mapping[str, Any] = {
    "chat": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "completions": {"model": "m", "prompt": "hi", "max_tokens": 1},
    "embeddings": {"model": "m", "input": "hi"},
    "scores": {"model": "m", "query": "q", "documents": ["d"]},
}


@contextmanager
def worker(routes: set[str], status: int = 404, said: bytes = b'{"detail":"Not Found"}') -> Iterator[tuple[str, list]]:  # type: ignore[type-arg]
    """A server of OpenAI's wire that has these paths alone. It answers a POST to any other with `status` and `said`."""
    posted: list[str] = []

    class Some(Answering):
        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self.answer(200, b'{"data": [{"id": "m"}]}')
            elif self.path in PATHS.values():
                self.answer(405 if self.path in routes else 404)
            else:
                self.answer(200)

        def do_POST(self) -> None:
            self.posted()
            posted.append(self.path)
            if self.path in routes:
                self.answer(500, b"{}")  # this test asks for refusals only
            else:
                self.answer(status, said)

    with serving(Some) as address:
        yield address, posted


def served(address: str, backend: str = "vllm") -> Stack:
    return Stack((), {"models": {"m": {"backend": backend, "workers": [address]}}})


def asked(stack: Stack, task: str) -> httpx.Response:
    return httpx.post(stack.url + PATHS[task], json=BODIES[task])


@pytest.mark.parametrize("task", ["embeddings", "scores"])
def test_no_worker_of_vllm_is_asked_for_what_its_paths_do_not_have(task: str) -> None:
    others = sorted(PATHS.keys() - {task})
    with worker({PATHS[task]}) as (address, posted), served(address) as stack:
        for other in others:
            refused = asked(stack, other)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "beyond_model"), other
        assert posted == []
        assert asked(stack, task).status_code == 502, "this one is asked"
        assert set(posted) == {PATHS[task]}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_refuses_a_chat_unasked(dialect: str) -> None:
    with worker({"/v1/embeddings"}) as (address, posted), served(address) as stack:
        way = usual(dialect)
        body = {"model": "m", **way.body("hi", stream=not way.answers(stream=False), max_tokens=20)}
        assert 400 <= httpx.post(stack.url + way.path("m"), json=body).status_code < 500
        assert posted == []


WORDS = [
    ("chat", 400, "The model does not support Chat Completions API"),
    ("chat", 501, "This server does not support completions. Start it without `--embeddings`"),
    ("chat", 400, '"nomic-embed-text" does not support chat'),
    ("chat", 404, "This is not a chat model and thus not supported in the v1/chat/completions endpoint."),
    ("completions", 400, "The model does not support Completions API"),
    ("completions", 400, '"nomic-embed-text" does not support generate'),
    ("embeddings", 400, "The model does not support Embeddings API"),
    ("embeddings", 501, "This server does not support embeddings. Start it with `--embeddings`"),
    ("embeddings", 400, "This model does not appear to be an embedding model by default."),
    ("scores", 501, "This server does not support reranking. Start it with `--reranking`"),
    ("scores", 400, "The model does not support Score API"),
]


@pytest.mark.parametrize(("task", "status", "words"), WORDS)
@pytest.mark.parametrize("backend", sorted(backends.REGISTRY))
def test_the_words_of_engines(backend: str, task: str, status: int, words: str) -> None:
    body = json.dumps({"error": {"message": words}}).encode()
    error = backends.create(backend).fault(Response(status, [], body), OPS[task])
    assert (error.code, error.lacks, error.why) == ("beyond_model", task, None)


@pytest.mark.parametrize(
    ("task", "status", "words"),
    [
        ("chat", 404, "Not Found"),
        ("chat", 400, "this template does not support chat history of two users"),
        ("chat", 501, "logprobs are not implemented"),
        ("chat", 404, "The model `This is not a chat model` does not exist."),
        ("embeddings", 400, "does not support embeddings of images"),
        ("embeddings", 503, "The model does not support Embeddings API"),
    ],
)
def test_other_words_are_about_the_request_or_the_worker(task: str, status: int, words: str) -> None:
    body = json.dumps({"error": {"message": words}}).encode()
    assert inability(Response(status, [], body), OPS[task], "vllm") is None


@pytest.mark.parametrize(("task", "status", "words"), WORDS)
def test_what_one_answer_shows_is_asked_once(task: str, status: int, words: str) -> None:
    said = json.dumps({"error": {"message": words}}).encode()
    with worker(set(), status, said) as (address, posted), served(address, "openai") as stack:
        codes = [asked(stack, task).json()["error"]["code"] for _ in range(3)]
        assert codes == ["beyond_model"] * 3
        assert len(posted) == 1
        (told,) = stack.events("worker cannot")
        assert (told["worker"], told["lacks"]) == (address, [task])
        (one,) = stack.gateway.deployment.pools["m"].workers
        assert (one.breaker.failures, one.trouble) == (0, None)
