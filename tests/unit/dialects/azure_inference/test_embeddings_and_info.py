"""Embeddings, and the card of a model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway import backends
from gateway.backends.vllm import Vllm
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Response
from gateway.core.messages import Embed, ListModels, ModelCard
from tests.unit.dialects.asking import to_worker
from tests.unit.dialects.azure_inference.exchange import DIALECT, refused, request


def read_embed(body: Any) -> Embed:
    op = DIALECT.read(request(body, route="embed"))
    assert isinstance(op, Embed)
    return op


def test_embeddings() -> None:
    op = read_embed({"input": ["x"], "dimensions": 2, "encoding_format": "float", "input_type": "text", "model": "m"})
    assert to_worker(op) == {"input": "x", "encoding_format": "float", "dimensions": 2, "model": "w"}
    worker = {
        "model": "w",
        "data": [{"index": 0, "embedding": [0.1, 0.2]}],
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    }
    found = Vllm().read_embeddings(Response(200, [], json.dumps(worker).encode()), op)
    body = json.loads(DIALECT.write(found, op).body)
    assert list(body) == ["id", "object", "data", "model", "usage"]
    assert body["data"] == [{"index": 0, "object": "embedding", "embedding": [0.1, 0.2]}]
    assert (body["object"], body["model"], body["usage"]["prompt_tokens"]) == ("list", "m", 1)
    found.usage = None
    assert json.loads(DIALECT.write(found, op).body)["usage"] is None


@pytest.mark.parametrize(("name", "value"), [("encoding_format", "int8"), ("input_type", "query")])
def test_embeddings_that_no_worker_makes(name: str, value: str) -> None:
    response = refused({"input": ["x"], name: value}, route="embed")
    assert response.status == 422
    assert json.loads(response.body)["detail"] == {"loc": ["body", name], "value": value, "input": value}


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (404, '{"detail": "Not Found"}'),
        (400, '{"error": {"message": "The model does not support Embeddings API"}}'),
        (501, '{"error": {"message": "This server does not support embeddings. Start it with `--embeddings`"}}'),
    ],
)
def test_a_model_without_embeddings_is_a_404(status: int, text: str) -> None:
    op = read_embed({"input": ["x"]})
    error = backends.create("vllm").fault(Response(status, [], text.encode()), op)
    response = DIALECT.refuse(error, request({"input": ["x"]}, route="embed"), op)[0]
    assert response.status == 404
    assert json.loads(response.body) == {
        "error": "Not Found",
        "message": "Modality not supported by the model: it makes no embeddings",
        "status": 404,
    }


def test_info() -> None:
    asked = request(None, (b"azureml-model-deployment", b"m"), route="info", method="GET")
    op = DIALECT.read(asked)
    assert isinstance(op, ListModels)
    assert (op.model, op.one) == ("m", True)
    cards = [ModelCard("m", 1, True), ModelCard("alias", 1, True, alias_of="m")]
    body = json.loads(op.write(cards).body)
    assert body == {"model_name": "m", "model_type": "chat_completion", "model_provider_name": "dragoman"}
    card = ModelCard("e", 1, True, features=frozenset({"embeddings"}))
    assert json.loads(op.write([card]).body)["model_type"] == "embeddings"


@pytest.mark.parametrize(
    ("cards", "kind"), [([], Kind.NO_MODEL), ([ModelCard("a", 1, True), ModelCard("b", 1, True)], Kind.BAD_REQUEST)]
)
def test_info_of_none_or_many(cards: list[ModelCard], kind: Kind) -> None:
    op = DIALECT.read(request(None, route="info", method="GET"))
    assert isinstance(op, ListModels)
    with pytest.raises(GatewayError) as caught:
        op.write(cards)
    assert caught.value.kind is kind
