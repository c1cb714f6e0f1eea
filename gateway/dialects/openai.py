"""OpenAI: chat completions, text completions, embeddings, sound, images, models; streamed and whole.

Sources: the OpenAI streaming specification (docs/dialects/openai.md); openai-python 3.54 and 1.109, openai-node 6.49,
langchain-openai 1.7 and the AI SDK as recorded clients.
"""

from __future__ import annotations

from gateway.core.fields import ExtrasPolicy
from gateway.core.http import Request, Route
from gateway.core.messages import AnsweredFromStore, Generate, ListModels, Op
from gateway.core.ports import StreamWriter
from gateway.dialects._shared.api import Api, listing
from gateway.wire.json import members, require_json
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
    answered = {"models": listing(operations.write_models), "model": listing(operations.write_model)}
    write = staticmethod(operations.write)

    def read_once(self, request: Request) -> Op | ListModels | AnsweredFromStore:
        if request.route in self.answered:
            return self.answered[request.route](request)
        if request.route in media.PATHS:
            return media.read(request, self.known[request.route], self.extras)
        require_json(request)
        return operations.read(request, members(request), request.route, self.known[request.route], self.extras)

    def writer(self, op: Generate) -> StreamWriter:
        return OpenAIStreamWriter(op, refusals.error_event)
