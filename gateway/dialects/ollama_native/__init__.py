"""Ollama: its own API (`/api/chat`, `/api/generate`, ...), for Ollama's clients and what is built on them.

Sources: ollama at fb30760 (August 2026); ollama-python 0.6.3, ollama-js 0.6.4, langchain-ollama 1.1, the AI SDK's
provider, LiteLLM, Codex and Open WebUI as recorded or read clients (docs/dialects/ollama_native.md). Another API that
resembles it has a specification of its own: the dialect `ollama`.
"""

from __future__ import annotations

from functools import partial

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Request, Route
from gateway.core.messages import ListModels, Op
from gateway.dialects._shared.api import Api
from gateway.dialects.ollama_native import models, replies
from gateway.dialects.ollama_native.fields import EXAMPLES, FIELDS
from gateway.dialects.ollama_native.replies import refuse
from gateway.dialects.ollama_native.requests import OPERATIONS, names, read, read_name
from gateway.wire.json import whole_numbers

# Paths that change the models of a server. Here the configuration decides which models there are.
_MANAGED = ("push", "create", "copy", "delete", "blob")


class OllamaNative(Api):
    name = "ollama_native"
    prefixes = ("", "/ollama")
    routes = (
        *(Route("GET", path, "banner", open=True) for path in ("", "/")),
        Route("GET", "/api/version", "version", open=True),
        Route("GET", "/api/tags", "tags"),
        Route("GET", "/api/ps", "ps"),
        *(Route("POST", f"/api/{name}", name) for name in (*OPERATIONS, "show", "pull", "push", "create", "copy")),
        Route("DELETE", "/api/delete", "delete"),
        Route("POST", "/api/blobs/{digest}", "blob"),
        Route("HEAD", "/api/blobs/{digest}", "blob"),
    )
    fields, examples = FIELDS, EXAMPLES
    lists = {"banner": models.banner, "version": models.version, "tags": models.tags, "ps": models.running}
    refuse = staticmethod(refuse)
    write_reply = staticmethod(replies.write)
    write_embeddings = staticmethod(replies.write_embeddings)
    writer = staticmethod(replies.LineWriter)

    @whole_numbers
    def read(self, request: Request) -> Op | ListModels:
        """Reads the body as JSON, whatever its content type: `curl -d` labels it as a form, and Ollama accepts that."""
        route = request.route
        if route in self.lists:
            return self.listed(request)
        if route in _MANAGED:
            message = f"{route} is not possible here: the gateway's configuration says which models there are"
            raise GatewayError(Kind.FORBIDDEN, message, code="not_managed_here")
        if route in ("show", "pull"):
            name = read_name(request)
            write = partial(models.show, name) if route == "show" else models.pulled
            return ListModels(write=write, model=name, names=names(name))
        return read(request, self)
