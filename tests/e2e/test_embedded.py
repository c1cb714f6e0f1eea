"""From an unmodified client to a real model and back: `dragoman serve` and `dragoman worker embedded` as processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

ROOT = Path(__file__).resolve().parents[2]


QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


@contextmanager
def command(*arguments: str) -> Iterator[str]:
    """Runs `dragoman ARGUMENTS` until the block ends; the address it says it listens on."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway.cli", *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "listening" in line:
                yield line[line.index("http://") :].split('"')[0].strip()
                break
        else:
            pytest.fail(f"dragoman {arguments[0]} ended with {process.wait()}")
    finally:
        process.terminate()
        process.communicate(timeout=20)
    assert process.returncode == 0


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with command("worker", "embedded", "--port", "0", "--parallel", "2") as worker:
        config = tmp_path_factory.mktemp("gateway") / "gateway.yaml"
        text = (ROOT / "gateway.yaml").read_text()
        assert "http://127.0.0.1:8081" in text
        assert "port: 8080" in text
        config.write_text(text.replace("http://127.0.0.1:8081", worker).replace("port: 8080", "port: 0"))
        with command("serve", "--config", str(config)) as address:
            yield address


def test_a_real_model_streams_an_answer(gateway: str) -> None:
    with OpenAI(base_url=gateway + "/v1", api_key="none") as client:
        chunks = list(
            client.chat.completions.create(
                model="smollm2",
                messages=QUESTION,
                temperature=0,
                max_tokens=24,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        whole = client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=0, max_tokens=24)
    assert len(text.split()) > 3
    assert whole.choices[0].message.content == text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0
    assert {chunk.model for chunk in chunks} == {"smollm2"}


def test_a_real_model_answers_whole(gateway: str) -> None:
    with OpenAI(base_url=gateway + "/openai/v1", api_key="none") as client:
        chat = client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": "Say hi."}], max_tokens=8, temperature=0
        )
        assert chat.choices[0].message.content
        assert chat.choices[0].finish_reason in ("stop", "length")
        text = client.completions.create(model="smollm2", prompt="Once upon a time", max_tokens=8, temperature=0)
        assert text.choices[0].text
        assert text.usage is not None
        assert text.usage.completion_tokens == 8


def test_context_overflow_is_the_callers_error(gateway: str) -> None:
    long = "word " * 20_000
    with (
        OpenAI(base_url=gateway + "/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.BadRequestError) as caught,
    ):
        client.chat.completions.create(model="smollm2", messages=[{"role": "user", "content": long}], max_tokens=8)
    assert caught.value.code == "context_length_exceeded"


def test_models(gateway: str) -> None:
    with OpenAI(base_url=gateway + "/v1", api_key="none") as client:
        assert "smollm2" in {model.id for model in client.models.list()}
