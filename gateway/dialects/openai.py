"""OpenAI: chat completions, text completions, embeddings, sound, images, models; streamed and whole.

Sources: the OpenAI streaming specification (docs/dialects/openai.md); openai-python 3.54 and 1.109, openai-node 6.49,
langchain-openai 1.7 and the AI SDK as recorded clients.
"""

from __future__ import annotations

from gateway.core.fields import ExtrasPolicy
from gateway.core.http import Request, Route
from gateway.core.messages import Generate, ListModels, Op
from gateway.core.ports import StreamWriter
from gateway.dialects._shared.api import Api
from gateway.wire.json import members, require_json, whole_numbers
from gateway.wire.openai import media, operations
from gateway.wire.openai.replies import refusals
from gateway.wire.openai.requests.fields import EXAMPLES, FIELDS
from gateway.wire.openai.streams import passthrough
from gateway.wire.openai.streams.writing import OpenAIStreamWriter


class OpenAI(Api):
    name = "openai"
    prefixes = ("", "/openai")
    extras: ExtrasPolicy = "pass"
    routes = (
        Route("POST", "/v1/chat/completions", "chat"),
        Route("POST", "/v1/completions", "complete"),
        Route("POST", "/v1/embeddings", "embed"),
        *media.routes("/v1"),
        Route("GET", "/v1/models", "models"),
        Route("GET", "/v1/models/{model:path}", "model"),
    )
    fields, examples = {**FIELDS, **media.FIELDS}, {**EXAMPLES, **media.EXAMPLES}
    passthrough = {"openai": passthrough.Passthrough(refusals.error_event)}
    lists = {"models": operations.write_models, "model": operations.write_model}
    write = staticmethod(operations.write)

    @whole_numbers
    def read(self, request: Request) -> Op | ListModels:
        if request.route in self.lists:
            return self.listed(request)
        if request.route in media.PATHS:
            return media.read(request, self.known[request.route], self.extras)
        require_json(request)
        return operations.read(request, members(request), request.route, self.known[request.route], self.extras)

    def writer(self, op: Generate) -> StreamWriter:
        return OpenAIStreamWriter(op, refusals.error_event)
