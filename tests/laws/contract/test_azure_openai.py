"""The `AzureOpenAI` client of OpenAI's package, and Azure's own client at a deployment, unmodified."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from azure.ai.inference import ChatCompletionsClient
from azure.ai.inference.models import UserMessage
from azure.core.credentials import AzureKeyCredential

from tests.support.harness import Stack

TOOLS: Any = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module", params=["endpoint", "base_url"])
def client(stack: Stack, request: pytest.FixtureRequest) -> Iterator[openai.AzureOpenAI]:
    where: Any = {"azure_endpoint": stack.url} if request.param == "endpoint" else {}
    where = where or {"base_url": stack.url + "/openai/v1/"}
    with openai.AzureOpenAI(**where, api_version="2024-10-21", api_key="k", max_retries=0) as found:
        yield found


def asking(**script: Any) -> Any:
    return {"model": "m", "messages": [{"role": "user", "content": "sim:" + json.dumps(script)}]}


def test_chats(client: openai.AzureOpenAI) -> None:
    reply = client.chat.completions.create(**asking(text="Hello there"))
    assert reply.choices[0].message.content == "Hello there"
    assert reply._request_id
    chunks = client.chat.completions.create(**asking(text="Hello there"), stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello there"


def test_tools(client: openai.AzureOpenAI) -> None:
    script = asking(tool_calls=[{"name": "look", "arguments": {"at": "x"}}])
    reply = client.chat.completions.create(**script, tools=TOOLS)
    assert reply.choices[0].message.tool_calls
    assert reply.choices[0].finish_reason == "tool_calls"


def test_texts_embeddings_and_models(client: openai.AzureOpenAI) -> None:
    assert client.completions.create(model="m", prompt="hi", max_tokens=3).choices[0].text
    assert len(client.embeddings.create(model="m", input=["a", "b"]).data) == 2
    assert [model.id for model in client.models.list()] == ["m", "alias"]
    assert client.models.retrieve("m").id == "m"


def test_failures_are_its_own_exceptions(client: openai.AzureOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**{**asking(text="hi"), "model": "none"})
    assert caught.value.code == "DeploymentNotFound"
    with pytest.raises(openai.BadRequestError, match="data_sources"):
        client.chat.completions.create(**asking(text="hi"), extra_body={"data_sources": []})
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(**asking(fault="status:500"))
    with pytest.raises((openai.APIError, httpx.RemoteProtocolError)):
        for _ in client.chat.completions.create(**asking(text="one two three four", fault="eof@2"), stream=True):
            pass


def test_the_deployment_of_the_client_goes_before_the_model_of_a_call(stack: Stack) -> None:
    with openai.AzureOpenAI(
        azure_endpoint=stack.url, azure_deployment="m", api_version="preview", azure_ad_token="t", max_retries=0
    ) as client:
        reply = client.chat.completions.create(**{**asking(text="hi"), "model": "gpt-4o"})
    assert reply.model == "m"


def test_azures_own_client_at_a_deployment(stack: Stack) -> None:
    client = ChatCompletionsClient(stack.url + "/openai/deployments/m", AzureKeyCredential("k"))
    script: Any = UserMessage('sim:{"text":"Hello there"}')
    assert client.complete(messages=[script]).choices[0].message.content == "Hello there"
    updates = client.complete(messages=[script], stream=True)
    assert "".join(update.choices[0].delta.content or "" for update in updates if update.choices) == "Hello there"
