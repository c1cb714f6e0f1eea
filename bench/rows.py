"""The table of what is measured.

A new dialect or backend adds its rows here, and its worker's replies to replies.py.
"""

from __future__ import annotations

import json
from typing import Literal

from msgspec import Struct

from bench.replies import DOCUMENTS, MODEL

Kind = Literal["plain", "stream"]
BODY_SIZE = 1024
PHRASE = "Tell me more about it. "
"""What prompts are made of."""
DONE = b"[DONE]"
"""The end of a stream on OpenAI's wire."""


# The headers of a real client, OpenAI's for Python, version 3. It needs no key here.
CLIENT = (
    ("accept-encoding", "gzip, deflate"),
    ("connection", "keep-alive"),
    ("authorization", "Bearer sk-0123456789abcdef0123456789abcdef"),
    ("accept", "application/json"),
    ("user-agent", "OpenAI/Python 3.54.0"),
    ("x-stainless-lang", "python"),
    ("x-stainless-package-version", "3.54.0"),
    ("x-stainless-os", "Linux"),
    ("x-stainless-arch", "x64"),
    ("x-stainless-runtime", "CPython"),
    ("x-stainless-runtime-version", "3.11.7"),
    ("x-stainless-async", "false"),
    ("x-stainless-retry-count", "0"),
    ("x-stainless-read-timeout", "600"),
)


class Row(Struct, frozen=True):
    """One request, sent over and over.

    name         "<dialect> → <backend> <kind>"
    kind         plain: CPU per request; stream: CPU per chunk
    path, body   the client's request
    headers      the client's headers beside host, content-type and content-length
    limit_us     `--gate`: the most CPU microseconds, or None
    limit_ratio  `--gate`: the most as a multiple of nginx's figure for the same kind, or None
    end          what a whole stream holds at its end
    times        how often each chunk's text is in a whole stream; some dialects say it all again at the end
    """

    name: str
    kind: Kind
    path: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    limit_us: float | None = None
    limit_ratio: float | None = None
    end: bytes = DONE
    times: int = 1

    def request(self, host: str) -> bytes:
        """The request's bytes, HTTP/1.1 with keep-alive."""
        headers = {"host": host, "content-type": "application/json", **dict(self.headers)}
        headers["content-length"] = str(len(self.body))
        lines = [f"POST {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode() + self.body

    def requests(self, host: str, prompts: int) -> list[bytes]:
        """The request with each of so many prompts, all of the same length."""
        one, begin = self.request(host), PHRASE.encode()
        return [one.replace(begin, b"%*d" % (len(begin), number), 1) if number else one for number in range(prompts)]


def chat(stream: bool, size: int = BODY_SIZE) -> bytes:
    """An OpenAI chat request of exactly `size` bytes."""
    body = {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": ""},
        ],
        "temperature": 0.7,
        "max_tokens": 256,
        "stream": stream,
    }
    bare = len(json.dumps(body))
    body["messages"][1]["content"] = (PHRASE * (size // len(PHRASE) + 1))[: size - bare]  # type: ignore[index]
    return json.dumps(body).encode()


MESSAGES = json.loads(chat(False))["messages"]


def said(**members: object) -> bytes:
    """The same conversation, with a dialect's own members."""
    return json.dumps({"messages": MESSAGES, **members}).encode()


AZURE = "/azure/chat/completions?api-version=2024-05-01-preview"
SAGEMAKER = "/sagemaker/invocations"
ENDPOINT = f"/sagemaker/endpoints/{MODEL}/invocations"
OLLAMA_STYLE = "/ollama/chat/completions"
OLLAMA = "/ollama/api/chat"
TGI = "/tgi/"
FRIENDLI = "/friendli/v1/completions"
ANTHROPIC = "/anthropic/v1/messages"
RESPONSES = "/v1/responses"
GEMINI = f"/v1beta/models/{MODEL}"
DEPLOYMENT = f"/openai/deployments/{MODEL}/chat/completions?api-version=2024-10-21"


def asked(**members: object) -> bytes:
    """The same conversation as items of the Responses API."""
    return json.dumps({"model": MODEL, "input": MESSAGES, "max_output_tokens": 256, **members}).encode()


def contents() -> bytes:
    """The same conversation in the members of Google's API."""
    system, user = ({"parts": [{"text": one["content"]}]} for one in MESSAGES)
    config = {"temperature": 0.7, "maxOutputTokens": 256}
    return json.dumps({"systemInstruction": system, "contents": [user], "generationConfig": config}).encode()


def inputs(**members: object) -> bytes:
    """The same text in the members of TGI's API."""
    body = {"model": MODEL, "inputs": PHRASE * 38, "parameters": {"max_new_tokens": 256}}
    return json.dumps({**body, **members}).encode()


def ranked() -> bytes:
    """Documents of together about the same size."""
    documents = [f"Document {number} tells more about it. " for number in range(DOCUMENTS)]
    return json.dumps({"model": MODEL, "query": "Tell me more about it.", "documents": documents}).encode()


def prompt(**members: object) -> bytes:
    """A text prompt of about the same size."""
    return json.dumps({"model": MODEL, "prompt": PHRASE * 38, "max_tokens": 256, **members}).encode()


# The requests for a proxy that knows no dialect: the worker's own wire, once per kind.
REFERENCE: dict[Kind, Row] = {
    "plain": Row("plain", "plain", "/v1/chat/completions", chat(False)),
    "stream": Row("stream", "stream", "/v1/chat/completions", chat(True)),
}

# Ends the name of a subject that runs from another checkout.
BEFORE = ", before"

# The cost of the limiter is this row of this subject, less the same row of `dragoman`.
LIMITED = "limits"
LIMITER_ROW = "openai → vllm plain"
LIMITER_US = 15.0

ROWS: tuple[Row, ...] = (
    Row("openai → vllm plain", "plain", "/openai/v1/chat/completions", chat(False), limit_us=100),
    Row("openai → vllm plain, client's headers", "plain", "/openai/v1/chat/completions", chat(False), CLIENT),
    Row("openai → vllm stream", "stream", "/openai/v1/chat/completions", chat(True), limit_ratio=2),
    Row("azure_inference → vllm plain", "plain", AZURE, said(model=MODEL)),
    Row("azure_inference → vllm stream", "stream", AZURE, said(model=MODEL, stream=True), limit_ratio=2),
    Row("sagemaker → vllm plain", "plain", SAGEMAKER, said(model=MODEL)),
    Row("sagemaker → vllm stream", "stream", SAGEMAKER, said(model=MODEL, stream=True), limit_ratio=2),
    Row("sagemaker (boto3) → vllm stream", "stream", ENDPOINT + "-response-stream", said(), limit_ratio=2),
    Row("ollama_style → vllm plain", "plain", OLLAMA_STYLE, said(model=MODEL)),
    Row(
        "ollama_style → vllm stream",
        "stream",
        OLLAMA_STYLE,
        said(model=MODEL, stream=True),
        limit_ratio=2,
        end=b'"done":true',
    ),
    Row("friendli → vllm plain", "plain", FRIENDLI, prompt()),
    Row(
        "friendli → vllm stream",
        "stream",
        FRIENDLI,
        prompt(stream=True),
        limit_ratio=2,
        end=b'"event": "complete"',
        times=2,
    ),
    Row("anthropic → vllm plain", "plain", ANTHROPIC, said(model=MODEL, max_tokens=256)),
    Row(
        "anthropic → vllm stream",
        "stream",
        ANTHROPIC,
        said(model=MODEL, max_tokens=256, stream=True),
        limit_ratio=2,
        end=b"event: message_stop",
    ),
    Row("responses → vllm plain", "plain", RESPONSES, asked()),
    Row(
        "responses → vllm stream",
        "stream",
        RESPONSES,
        asked(stream=True),
        limit_ratio=2,
        end=b"event: response.completed",
        times=5,
    ),
    Row("azure_openai → vllm plain", "plain", DEPLOYMENT, chat(False)),
    Row("azure_openai → vllm stream", "stream", DEPLOYMENT, chat(True), limit_ratio=2),
    Row("ollama → vllm plain", "plain", OLLAMA, said(model=MODEL, stream=False)),
    Row("ollama → vllm stream", "stream", OLLAMA, said(model=MODEL), limit_ratio=2, end=b'"done":true'),
    Row("tgi → vllm plain", "plain", TGI, inputs()),
    Row("tgi → vllm stream", "stream", TGI, inputs(stream=True), limit_ratio=2, end=b'"generated_text":"', times=2),
    Row("gemini → vllm plain", "plain", GEMINI + ":generateContent", contents()),
    Row(
        "gemini → vllm stream",
        "stream",
        GEMINI + ":streamGenerateContent?alt=sse",
        contents(),
        limit_ratio=2,
        end=b'"finishReason":',
    ),
    Row("cohere → vllm plain", "plain", "/v2/chat", said(model=MODEL, max_tokens=256)),
    Row("cohere → vllm stream", "stream", "/v2/chat", said(model=MODEL, max_tokens=256, stream=True), limit_ratio=2),
    Row("rerank → vllm plain", "plain", "/v2/rerank", ranked()),
    Row(
        "ollama_style (SSE) → vllm stream", "stream", "/ollama/chat/sse", said(model=MODEL), limit_ratio=2, end=b"[END]"
    ),
)
