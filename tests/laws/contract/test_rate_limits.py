"""Real clients over a limit: each raises its own exception, and those that wait wait as long as they are told."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import httpx
import openai
import pytest
import yaml
from azure.ai.inference import ChatCompletionsClient
from azure.ai.inference.models import UserMessage
from azure.core.credentials import AzureKeyCredential
from azure.core.exceptions import HttpResponseError
from botocore.config import Config
from botocore.exceptions import ClientError
from openai import OpenAI

from gateway.auth import new_key
from tests.support.harness import Stack

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
FRIENDLI = Path(__file__).parents[3] / ".venv-friendli" / "bin" / "python"
MESSAGES: Any = [{"role": "user", "content": "hello"}]
WINDOW_S = 0.6
# On a busy machine a window may be over before the second request comes.
TRIES = 100


@pytest.fixture(scope="module")
def keys() -> dict[str, str]:
    return {}


@pytest.fixture(scope="module")
def stack(keys: dict[str, str]) -> Iterator[Stack]:
    """Every key has one request a minute, those in `quick` one in a moment."""
    entries: dict[str, Any] = {}
    for name in ("openai", "azure", "friendli", "ollama", "quick-openai", "quick-azure"):
        keys[name], entry = new_key(name)
        entries.update(yaml.safe_load(entry))
    for name in ("boto3", "quick-boto3"):
        entries[name] = {"aws_access_key_id": "AKID" + name.upper(), "aws_secret_env": "SECRET"}
    limits = [
        {
            "name": "requests",
            "kind": "requests",
            "limit": 1,
            "per_s": WINDOW_S,
            "match": {"key": [name for name in entries if name.startswith("quick")]},
        },
        {"name": "requests", "kind": "requests", "limit": 1},
    ]
    config = {
        "keys": entries,
        "limits": limits,
        "dialects": {name: {"default_model": "m"} for name in ("azure_inference", "sagemaker", "friendli")},
    }
    with Stack(({},), config, environ={"SECRET": SECRET}) as running:
        yield running


def chat(stack: Stack, key: str, retries: int) -> Any:
    with OpenAI(base_url=stack.url + "/v1", api_key=key, max_retries=retries) as client:
        return client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)


def test_openai(stack: Stack, keys: dict[str, str]) -> None:
    first = chat(stack, keys["openai"], 0)
    assert first.headers["x-ratelimit-limit-requests"] == "1"
    with pytest.raises(openai.RateLimitError) as caught:
        chat(stack, keys["openai"], 0)
    assert caught.value.code == "rate_limit_exceeded"
    assert caught.value.type == "rate_limit_error"
    assert "limit 'requests' reached" in caught.value.message


def test_openai_waits_as_long_as_it_is_told(stack: Stack, keys: dict[str, str]) -> None:
    """Left to itself it would ask again within half a second, be refused, and give up."""
    for _ in range(TRIES):
        before = stack.sim.ledger.received
        reply = chat(stack, keys["quick-openai"], 1)
        assert (reply.status_code, stack.sim.ledger.received) == (200, before + 1)
        if reply.retries_taken:
            return
    raise AssertionError("it was never over the limit")


def complete(stack: Stack, key: str, retries: int, **options: Any) -> Any:
    client: Any = ChatCompletionsClient(stack.url + "/azure", AzureKeyCredential(key), retry_total=retries)
    with client:
        return client.complete(messages=[UserMessage("hello")], **options)


def test_azure(stack: Stack, keys: dict[str, str]) -> None:
    complete(stack, keys["azure"], 0)
    with pytest.raises(HttpResponseError) as caught:
        complete(stack, keys["azure"], 0)
    response: Any = caught.value.response
    assert caught.value.status_code == 429
    assert response.headers["x-ms-error-code"] == "rate_limit_exceeded"
    assert "limit 'requests' reached" in json.loads(response.text())["message"]


def test_azure_waits_as_long_as_it_is_told(stack: Stack, keys: dict[str, str]) -> None:
    """It does not retry a 429 at all without Retry-After, and at once what it is not told to wait for."""
    statuses: list[int] = []

    def look(response: Any) -> None:
        statuses.append(response.http_response.status_code)

    for _ in range(TRIES):
        assert complete(stack, keys["quick-azure"], 1, raw_response_hook=look).choices
        if 429 in statuses:
            return
    raise AssertionError("it was never over the limit")


def runtime(stack: Stack, name: str, attempts: int) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            patch.setenv(variable, "/dev/null")
        session = boto3.Session(region_name="eu-west-1")
        return session.client(
            "sagemaker-runtime",
            endpoint_url=stack.url + "/sagemaker",
            aws_access_key_id="AKID" + name.upper(),
            aws_secret_access_key=SECRET,
            config=Config(retries={"total_max_attempts": attempts, "mode": "standard"}),
        )


def invoke(client: Any) -> Any:
    body = json.dumps({"messages": MESSAGES})
    reply = client.invoke_endpoint(EndpointName="ep", ContentType="application/json", Body=body)
    reply["Body"].read()
    return reply


def test_boto3(stack: Stack) -> None:
    client = runtime(stack, "boto3", 1)
    invoke(client)
    with pytest.raises(ClientError) as caught:
        invoke(client)
    client.close()
    response: Any = caught.value.response
    assert response["Error"]["Code"] == "ThrottlingException"
    assert "limit 'requests' reached" in response["Error"]["Message"]
    assert 59_000 < int(response["ResponseMetadata"]["HTTPHeaders"]["x-amz-retry-after"]) <= 121_000


def test_boto3_waits_as_long_as_it_is_told(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Left to itself it would wait for a random part of a second: it does so where that is longer."""
    told: list[float] = []
    slept: list[float] = []

    def listen(response_dict: Any, **_: Any) -> None:
        if response_dict["status_code"] == 429:
            told.append(int(response_dict["headers"]["x-amz-retry-after"]) / 1000)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        time.sleep(seconds)

    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=sleep))
    client = runtime(stack, "quick-boto3", 2)
    client.meta.events.register("response-received.sagemaker-runtime", listen)
    for _ in range(TRIES):
        reply = invoke(client)
        if told:
            break
    client.close()
    assert reply["ResponseMetadata"]["RetryAttempts"] == 1
    assert len(slept) == len(told) == 1
    assert slept[0] >= told[0]


@pytest.mark.parametrize("path", ["/chat/completions", "/chat/sse"])
def test_ollama_style(stack: Stack, keys: dict[str, str], path: str) -> None:
    """No client of its own: a status, its one form of an error, and when to return."""

    def ask() -> httpx.Response:
        body = {"model": "m", "messages": MESSAGES, "stream": True}
        return httpx.post(stack.url + "/ollama" + path, json=body, headers={"x-api-key": keys["ollama"]})

    ask()
    refused = ask()
    assert refused.status_code == 429
    event, _, data = refused.text.partition("\n") if path == "/chat/sse" else ("", "", "")
    error = json.loads(data.splitlines()[0].removeprefix("data: ")) if event else refused.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert error["message"].startswith("limit 'requests' reached")
    # A window of 60 s, and at most one more, over which waits are spread.
    assert 0 < int(refused.headers["retry-after"]) <= 121
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"


PROGRAM = """
import sys
from friendli import Friendli
from friendli.errors import APIError
client = Friendli(token=sys.argv[2], base_url=sys.argv[1], use_dedicated_endpoint=False)
ask = lambda: client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])
ask()
try:
    ask()
except APIError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(not FRIENDLI.exists(), reason="friendli-client has an environment of its own: make test builds it")
@pytest.mark.skipif(sys.platform == "win32", reason="paths of a POSIX environment")
def test_friendli(stack: Stack, keys: dict[str, str]) -> None:
    words = [str(FRIENDLI), "-c", PROGRAM, stack.url + "/friendli", keys["friendli"]]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("APIError"), done.stderr[-600:]
    assert "limit 'requests' reached" in done.stdout
