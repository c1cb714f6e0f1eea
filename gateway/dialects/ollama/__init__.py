"""Ollama: its own API (`/api/chat`, `/api/generate`, ...), for Ollama's clients and what is built on them.

Sources: ollama at fb30760 (August 2026); ollama-python 0.6.3, ollama-js 0.6.4, langchain-ollama 1.1, the AI SDK's
provider, LiteLLM, Codex and Open WebUI as recorded or read clients (docs/dialects/ollama.md). Another API that
resembles it has a specification of its own: the dialect `ollama_style`.
"""

from __future__ import annotations

from gateway.core.http import Request, Route
from gateway.core.messages import Extra, ListModels, Op
from gateway.dialects._shared.api import Api, listing
from gateway.dialects.ollama import models, replies
from gateway.dialects.ollama.fields import EXAMPLES, FIELDS
from gateway.dialects.ollama.replies import refuse
from gateway.dialects.ollama.requests import OPERATIONS, read, read_name, refuse_managing

# Paths that change the models of a server. Here the configuration decides which models there are.
_MANAGED = ("push", "create", "copy", "delete", "blob")


class Ollama(Api):
    name = "ollama"
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
    lists = "tags"
    fields, examples = FIELDS, EXAMPLES
    answered = {
        "banner": listing(models.banner),
        "version": listing(models.version),
        "tags": listing(models.tags),
        "ps": listing(models.running),
        **dict.fromkeys(_MANAGED, refuse_managing),
        **dict.fromkeys(("show", "pull"), read_name),
    }
    any_type = True  # `curl -d` labels a body as a form, and Ollama accepts that
    refusal = staticmethod(refuse)
    write_reply = staticmethod(replies.write)
    write_embeddings = staticmethod(replies.write_embeddings)
    writer = staticmethod(replies.LineWriter)

    def read_body(self, request: Request, raw: Extra) -> Op | ListModels:
        return read(request, raw, self)
