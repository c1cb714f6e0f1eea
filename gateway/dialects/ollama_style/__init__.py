"""The Ollama-style API: chat completions whole, as newline-delimited JSON, or as server-sent events.

Source: "Chat Completions API Specification" (docs/dialects/ollama_style.md). It resembles Ollama's API but is not the
same: ollama-python and ollama-js cannot call it. This dialect follows Ollama in what the specification leaves open.
"""

from __future__ import annotations

from gateway.core.http import Request, Route
from gateway.core.messages import Extra, Generate, Op
from gateway.core.ports import StreamWriter
from gateway.dialects._shared.api import Api
from gateway.dialects.ollama_style.fields import EXAMPLES, FIELDS
from gateway.dialects.ollama_style.replies import LineWriter, SseWriter, refuse, write
from gateway.dialects.ollama_style.requests import read


class OllamaStyle(Api):
    name = "ollama_style"
    prefixes = ("/ollama",)
    routes = (
        Route("POST", "/chat/completions", "chat"),
        Route("POST", "/chat/sse", "sse"),
    )
    fields, examples = FIELDS, EXAMPLES
    refusal = staticmethod(refuse)
    write_reply = staticmethod(write)

    def read_body(self, request: Request, raw: Extra) -> Op:
        return read(request, raw, self)

    def writer(self, op: Generate) -> StreamWriter:
        return SseWriter() if op.view == "sse" else LineWriter()
