"""Embeddings come to every client in the form and the length that it asked for, whatever the worker obeyed."""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from gateway import backends, dialects
from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import Example, Field
from gateway.core.http import Response
from gateway.core.messages import Embed
from gateway.core.ports import Capabilities, Settings
from gateway.translation.offline import Refused, holes, reply, send
from gateway.wire.openai.replies.whole import whole

CAN = Capabilities("w")
OPENAI = dialects.create("openai", Settings())
VECTORS = [[0.5, -1.25, 2.0], [0.25, 8.0, -0.5]]
Body = dict[str, Any]


def packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def answer(vectors: list[Any], model: str = "w") -> Response:
    rows = [{"object": "embedding", "index": index, "embedding": one} for index, one in enumerate(vectors)]
    usage = {"prompt_tokens": 2, "total_tokens": 2}
    return Response(200, [], json.dumps({"object": "list", "data": rows, "model": model, "usage": usage}).encode())


def embedded(dialect: str, backend: str, example: Example, asked: Body, vectors: list[Any]) -> list[Any]:
    """The vectors that a client gets for those that its worker wrote."""
    made, target = dialects.create(dialect, Settings()), backends.create(backend)
    body = json.dumps({**example.body, **asked}).encode()
    crossing = send(made, target, body, CAN, route=example.route, query=example.query)
    return list(vectors_in(json.loads(reply(made, target, crossing, answer(vectors)))))


def vectors_in(found: Any) -> Iterator[Any]:
    """Arrays of numbers, and texts that are a member `embedding`."""
    if isinstance(found, list) and found and all(isinstance(one, (int, float)) for one in found):
        yield found
    elif isinstance(found, (list, dict)):
        if isinstance(found, dict) and isinstance(found.get("embedding"), str):
            yield found["embedding"]
        for one in found.values() if isinstance(found, dict) else found:
            yield from vectors_in(one)


def rows(dialect: str) -> dict[str, Field]:
    """The fields of requests for embeddings, by their names."""
    return {field.name: field for field in dialects.create(dialect, Settings()).fields["embed"]}


CASES = [
    pytest.param(name, example, id=f"{name}-{example.route}")
    for name in dialects.REGISTRY
    for example in dialects.create(name, Settings()).examples.get("embed", ())
]
EMBEDDING = [name for name in backends.REGISTRY if "embeddings" not in str(holes(OPENAI, backends.create(name), CAN))]


def test_every_backend_but_tgi_makes_embeddings() -> None:
    assert set(backends.REGISTRY) - set(EMBEDDING) == {"tgi"}


def same(got: list[Any], wanted: list[Any]) -> bool:
    """Whether these are the vectors; Ollama makes their norm 1."""
    norm = math.hypot(*wanted[0]) if isinstance(wanted[0], list) else 1.0
    return got in (wanted, [[number / norm for number in one] for one in wanted if isinstance(one, list)])


@pytest.mark.parametrize("written", ["float", "base64"])
@pytest.mark.parametrize("backend", EMBEDDING)
@pytest.mark.parametrize(("dialect", "example"), CASES)
def test_the_format_is_the_one_that_was_asked_for(dialect: str, example: Example, backend: str, written: str) -> None:
    vectors: list[Any] = [packed(VECTORS[0])] if written == "base64" else VECTORS[:1]
    assert same(embedded(dialect, backend, example, {}, vectors), VECTORS[:1])
    if "encoding_format" in rows(dialect):
        assert embedded(dialect, backend, example, {"encoding_format": "float"}, vectors) == VECTORS[:1]
        assert embedded(dialect, backend, example, {"encoding_format": "base64"}, vectors) == [packed(VECTORS[0])]


@pytest.mark.parametrize("backend", [name for name in EMBEDDING if name != "llamacpp"])  # it refuses `dimensions`
@pytest.mark.parametrize(("dialect", "example"), CASES)
def test_another_length_than_was_asked_for_is_an_error(dialect: str, example: Example, backend: str) -> None:
    name = next((name for name in rows(dialect) if name in ("dimensions", "outputDimensionality")), None)
    assert name is not None
    if example.route == "embed_many":
        name, example = (
            "requests",
            Example(
                example.route, {"requests": [{**one, name: 3} for one in example.body["requests"]]}, streams="never"
            ),
        )
    assert len(embedded(dialect, backend, example, {} if name == "requests" else {name: 3}, VECTORS[:1])[0]) == 3
    for vector in ([0.5, 1.0], [0.5, 1.0, 2.0, 4.0]):
        for written in (vector, packed(vector)):
            with pytest.raises(Refused) as caught:
                embedded(dialect, backend, example, {} if name == "requests" else {name: 3}, [written])
            assert caught.value.response.status in (400, 422)
            assert b"have %d numbers" % len(vector) in caught.value.response.body


@pytest.mark.parametrize("encoding", [None, "float", "base64"])
@pytest.mark.parametrize(
    "vectors",
    [
        [[0.5], [0.5, 1.0]],
        [[], []],
        [[0.5], [None]],
        [[0.5], [[0.5]]],
        [[0.5], {"values": [0.5]}],
        [[0.5], "AAA="],
        [[0.5], "####"],
        [[1.0], packed([float("inf")])],
        [[1e300], [1.0]],
    ],
    ids=str,
)
def test_what_is_no_vector_is_the_workers_fault(vectors: list[Any], encoding: Any) -> None:
    op = Embed(model="w", inputs=("a", "b"), encoding=encoding)
    legible = {
        "base64": [[1.0], packed([float("inf")])],  # passed on, as bits
        None: [[1e300], [1.0]],  # a number of JSON
        "float": [[1e300], [1.0]],
    }
    for read in (
        lambda: whole(answer(vectors).body, op),
        lambda: backends.create("vllm").read_embeddings(answer(vectors), op),
    ):
        if vectors == legible[encoding]:
            read()
            continue
        with pytest.raises(GatewayError) as caught:
            read()
        assert (caught.value.kind, caught.value.code) == (Kind.UPSTREAM, "upstream_malformed")


def test_vectors_as_they_should_be_are_passed_on_as_they_are() -> None:
    for encoding, vectors in (("float", VECTORS), ("base64", [packed(one) for one in VECTORS])):
        told = answer(vectors).body
        op = Embed(model="w", inputs=("a", "b"), encoding=encoding)  # type: ignore[arg-type]  # one of its words
        assert whole(told, op)[0] is told or whole(told, op)[0] == told


@pytest.mark.parametrize("member", ["embed_dtype", "endianness"])
def test_numbers_in_the_engines_own_form_are_not_read(member: str) -> None:
    """vLLM's members: a client that sends them knows what its base64 means."""
    asked: Body = {
        "encoding_format": "base64",
        "dimensions": 3,
        member: "float16" if member == "embed_dtype" else "big",
    }
    example = Example("embed", {"input": ["a", "b"]}, streams="never")
    halves = [base64.b64encode(struct.pack(">3e", *one)).decode() for one in VECTORS]
    assert embedded("openai", "vllm", example, asked, halves) == halves
    with pytest.raises(Refused) as caught:
        embedded("openai", "vllm", example, asked, VECTORS)
    assert b"upstream_malformed" in caught.value.response.body
