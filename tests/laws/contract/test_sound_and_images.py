"""The unmodified `openai` clients on sound and images, with `dragoman worker simulated` behind the gateway: for Python,
also `AzureOpenAI`, and for Node (node/media.mjs)."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AzureOpenAI, OpenAI

from tests.laws.contract.running_node import node
from tests.support.harness import Stack
from tests.unit.app.media import wave

pytestmark = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
PNG = b"\x89PNG picture"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    command = (sys.executable, "-m", "workers.simulated", "--port", "0", "--model", "sim")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        address = worker.stdout.readline().split()[-1]
        model = {"backend": "vllm", "upstream_model": "sim", "workers": [address], "aliases": ["whisper-1"]}
        try:
            with Stack((), {"models": {"m": model}}) as running:
                yield running
        finally:
            worker.terminate()


@pytest.fixture(params=["openai", "azure"])
def client(request: pytest.FixtureRequest, stack: Stack) -> Iterator[OpenAI]:
    options: dict[str, Any] = {"api_key": "none", "max_retries": 0, "timeout": 60}
    if request.param == "openai":
        made: OpenAI = OpenAI(base_url=stack.url + "/v1", **options)
    else:
        made = AzureOpenAI(azure_endpoint=stack.url, api_version="2025-04-01-preview", **options)
    with made:
        yield made


def test_transcripts(client: OpenAI) -> None:
    file = ("talk.wav", wave(2))
    reply = client.audio.transcriptions.create(model="whisper-1", file=file, language="en", temperature=0)
    assert len(reply.text.split()) == 6
    assert reply.usage is not None
    assert reply.usage.type == "duration"
    long = client.audio.transcriptions.create(
        model="m", file=file, response_format="verbose_json", timestamp_granularities=["word", "segment"]
    )
    assert (long.text, round(long.duration)) == (reply.text, 2)
    plain = client.audio.transcriptions.create(model="m", file=file, response_format="text")
    assert str(plain) == reply.text
    subtitles = client.audio.transcriptions.create(model="m", file=file, response_format="vtt")
    assert str(subtitles).startswith("WEBVTT")


def test_a_large_file(client: OpenAI) -> None:
    sound = wave(200)  # 6.4 MB
    reply = client.audio.transcriptions.create(model="m", file=io.BytesIO(sound))
    assert reply.usage is not None
    assert reply.usage.type == "duration"
    assert reply.usage.seconds == 201


def test_streamed_transcripts(client: OpenAI) -> None:
    file = ("talk.wav", wave(2))
    events = list(client.audio.transcriptions.create(model="m", file=file, stream=True))
    whole = client.audio.transcriptions.create(model="m", file=file).text
    assert [event.type for event in events] == [*["transcript.text.delta"] * 6, "transcript.text.done"]
    assert "".join(event.delta for event in events if event.type == "transcript.text.delta") == whole
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text == whole


def test_translations(client: OpenAI) -> None:
    assert client.audio.translations.create(model="m", file=("talk.wav", wave(1))).text


def test_speech(client: OpenAI, tmp_path: Path) -> None:
    with client.audio.speech.with_streaming_response.create(
        model="m", voice="alloy", input="one two three", response_format="wav"
    ) as reply:
        reply.stream_to_file(tmp_path / "said.wav")
        assert reply.headers["content-type"] == "audio/wav"
    sound = (tmp_path / "said.wav").read_bytes()
    assert (sound[:4], len(sound)) == (b"RIFF", 24_044)
    assert client.audio.speech.create(model="m", voice="alloy", input="one two three").content == sound


def test_images(client: OpenAI) -> None:
    reply = client.images.generate(model="m", prompt="a cat", n=2, size="512x512")
    assert reply.data is not None
    assert len({image.b64_json for image in reply.data}) == 2
    assert base64.b64decode(reply.data[0].b64_json or "").startswith(b"\x89PNG")
    assert reply.usage is not None
    assert reply.usage.output_tokens == 512
    details = reply.usage.input_tokens_details  # a required member of the client's type
    assert (details.text_tokens, details.image_tokens) == (reply.usage.input_tokens, 0)
    events = list(client.images.generate(model="m", prompt="a cat", stream=True, partial_images=2))
    assert [event.type.rpartition(".")[2] for event in events] == ["partial_image", "partial_image", "completed"]
    last = events[-1]
    assert last.type == "image_generation.completed"
    assert last.usage.input_tokens_details.text_tokens == last.usage.input_tokens


def test_edits(client: OpenAI) -> None:
    images: list[Any] = [("a.png", PNG), ("b.png", PNG * 20_000)]
    reply = client.images.edit(model="m", prompt="a hat", image=images, mask=("m.png", PNG))
    other = client.images.edit(model="m", prompt="a hat", image=images[:1])
    assert reply.data != other.data
    events = list(client.images.edit(model="m", prompt="a hat", image=images[0], stream=True, partial_images=1))
    assert [event.type for event in events] == ["image_edit.partial_image", "image_edit.completed"]


def test_variations(client: OpenAI) -> None:
    assert client.images.create_variation(model="m", image=("a.png", PNG), n=2).data


def test_errors(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.audio.transcriptions.create(model="nobody", file=("a.wav", wave(1)))
    assert unknown.value.code in ("model_not_found", "DeploymentNotFound")
    with pytest.raises(openai.BadRequestError, match="empty file"):
        client.audio.transcriptions.create(model="m", file=("a.wav", b""))
    with pytest.raises(openai.BadRequestError) as refused:
        client.audio.speech.create(model="m", voice="alloy", input=" ")
    assert refused.value.param == "input"


NODE: dict[str, Any] = {
    "transcript": [6, "duration"],
    "streamed": [6, "transcript.text.done", True],
    "speech": [24_044, "audio/wav"],
    "images": [2, 512],
    "drawn": ["image_generation.partial_image", "image_generation.completed"],
    "edit": [1],
    "unknown": ["NotFoundError", 404, "model_not_found"],
    "azure": [6, 1],
}


def test_node(stack: Stack, tmp_path: Path) -> None:
    """Its forms have the file before the model."""
    (tmp_path / "talk.wav").write_bytes(wave(2))
    said = node("media.mjs", stack.url, str(tmp_path / "talk.wav"))
    assert json.loads(said) == NODE
