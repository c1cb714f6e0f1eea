"""Clients that find the gateway by the environment variable that the table of docs/clients.md has for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anthropic
import ollama
import openai
import pytest

from tests.acceptance.libraries.drive import ADDRESS
from tests.acceptance.libraries.readme import AGENTS, VARIABLES, readme_lines
from tests.support.harness import Stack

TURNS: Any = [{"role": "user", "content": "sim:" + json.dumps({"text": "Hello there"})}]


def of_openai() -> str | None:
    with openai.OpenAI(api_key="k") as client:
        assert client.responses.create(model="m", input=TURNS).output_text == "Hello there"
        return client.chat.completions.create(model="m", messages=TURNS).choices[0].message.content


def of_azure() -> str | None:
    with openai.AzureOpenAI(api_key="k", api_version="2024-10-21") as client:
        return client.chat.completions.create(model="m", messages=TURNS).choices[0].message.content


def of_ollama() -> str | None:
    with ollama.Client() as client:
        return str(client.chat("m", messages=TURNS).message.content)


def of_anthropic() -> str | None:
    with anthropic.Anthropic(api_key="k") as client:
        found: Any = client.messages.create(model="m", max_tokens=9, messages=TURNS).content[0]
        return str(found.text)


@pytest.mark.parametrize(
    ("row", "said"), [*zip(VARIABLES, (of_openai, of_azure, of_ollama), strict=True), (AGENTS[0], of_anthropic)]
)
def test_a_variable_is_all_that_a_client_needs(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, row: str, said: Callable[[], str | None]
) -> None:
    for word in readme_lines()[row].split():
        name, _, value = word.partition("=")
        monkeypatch.setenv(name, value.replace(ADDRESS, stack.url))
    assert said() == "Hello there"
