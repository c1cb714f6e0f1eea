"""What the server uses of uvicorn, httptools and starlette that their documentation does not promise. A new version of
them that lacks some of it fails here, by name, and nowhere else first."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import httptools
import pytest
import starlette.routing
import uvicorn
import uvicorn.server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Class or function -> its attributes, or "(name)" for a parameter.
USED: dict[str, dict[Callable[..., Any], str]] = {
    "uvicorn": {
        uvicorn.Server: "startup shutdown capture_signals serve",
        uvicorn.Server.startup: "(sockets)",
        uvicorn.Server.shutdown: "(sockets)",
        uvicorn.Config: "load (app) (http) (interface) (ws) (lifespan) (log_config) (access_log) (proxy_headers) "
        "(server_header) (date_header) (timeout_keep_alive) (timeout_graceful_shutdown)",
        # As uvicorn's own protocol is made, so is the class in `Config.http`.
        HttpToolsProtocol: "(config) (server_state) (app_state) (_loop) shutdown",
    },
    "httptools": {
        httptools.HttpRequestParser: "feed_data get_method get_http_version should_keep_alive should_upgrade",
        httptools.HttpResponseParser: "feed_data get_status_code should_keep_alive",
    },
    "starlette": {starlette.routing.compile_path: "(path)"},
}
# What only instances have.
MADE: dict[str, dict[Callable[[], Any], str]] = {
    "uvicorn": {
        lambda: uvicorn.Server(
            uvicorn.Config(app, log_config=None)
        ): "config server_state started should_exit force_exit",
        uvicorn.server.ServerState: "connections tasks",
        lambda: loaded(): "loaded loaded_app http timeout_keep_alive http_protocol_class",
    },
}


async def app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("it is never called")


def loaded() -> uvicorn.Config:
    config = uvicorn.Config(app, interface="asgi3", log_config=None)
    config.load()
    return config


def lacking(thing: Any, words: str) -> list[str]:
    found = []
    for word in words.split():
        if word.startswith("("):
            there = word.strip("()") in inspect.signature(thing).parameters
        else:
            there = hasattr(thing, word)
        if not there:
            found.append(f"{getattr(thing, '__qualname__', type(thing).__name__)} {word}")
    return found


@pytest.mark.parametrize("library", USED)
def test_what_is_used_of_a_library_is_there(library: str) -> None:
    gone = [one for thing, words in USED[library].items() for one in lacking(thing, words)]
    gone += [one for make, words in MADE.get(library, {}).items() for one in lacking(make(), words)]
    assert not gone, f"{library} {version(library)} has no longer what gateway/server builds on: {', '.join(gone)}"


def test_an_attribute_that_is_gone_is_named() -> None:
    assert lacking(uvicorn.Server, "startup no_such") == ["Server no_such"]
    assert lacking(uvicorn.Server.startup, "(sockets) (no_such)") == ["Server.startup (no_such)"]
