"""TGI's clients."""

from __future__ import annotations

import json
import re
from typing import Any

from gateway.core.http import Response
from tests.laws.conformance.clients.heard import Client, Heard, HeardChoice, events
from tests.laws.conformance.clients.openai import NO_STOP, hear_openai, read_openai

_TGI_PREFIXES = re.compile("^(Input validation error|Request failed during generation): ")


# The one stop sequence of the scenarios, which a text of TGI's has at its end.
_MATCHED = "END"


def _told_by_tgi(said: dict[str, Any]) -> str:
    assert isinstance(said["error_type"], str)
    return _TGI_PREFIXES.sub("", said["error"])


def _ended_by_tgi(choice: HeardChoice) -> None:
    if choice.finish == "stop_sequence":
        assert choice.text.endswith(_MATCHED)
        choice.text = choice.text.removesuffix(_MATCHED)


def hear_tgi_chat(stream: bytes) -> Heard:
    """OpenAI's chunks, and TGI's errors."""
    found = events(stream)
    failed = [json.loads(data) for _, data in found if data.startswith('{"error":')]
    assert len(failed) <= 1
    if not failed:
        return hear_openai(stream)
    assert found[-1][1].startswith('{"error":'), "something follows an error"
    heard = hear_openai(stream[: stream.rindex(b'data: {"error":')])
    heard.error = _told_by_tgi(failed[0])
    return heard


def hear_tgi(stream: bytes) -> Heard:
    """As text-generation: each event is a token, and the last one says the whole text too."""
    heard = Heard()
    for kind, data in events(stream):
        assert not kind
        assert not heard.complete, "something follows the whole text"
        assert heard.error is None, "something follows an error"
        said = json.loads(data)
        if "error" in said:
            heard.error = _told_by_tgi(said)
            continue
        choice = heard.of(0)
        choice.text += said["token"]["text"]
        if said["generated_text"] is not None:
            assert said["generated_text"] == choice.text
            heard.complete = True
            choice.finish = said["details"]["finish_reason"]
            heard.usage = said["details"]["input_length"], said["details"]["generated_tokens"]
            _ended_by_tgi(choice)
    return heard


def read_tgi(body: bytes) -> Heard:
    reply = json.loads(body)
    if isinstance(reply, list):  # at the root, and not at /generate
        (reply,) = reply
    heard = Heard(complete=True)
    choice = heard.of(0)
    choice.text = reply["generated_text"]
    details = reply.get("details")
    if details is None:
        return heard
    choice.finish = details["finish_reason"]
    _ended_by_tgi(choice)
    return heard


def refused_tgi(response: Response) -> str:
    return _told_by_tgi(json.loads(response.body))


def _for_tgi(body: dict[str, Any]) -> dict[str, Any]:
    """A body of OpenAI's words in those of TGI's API."""
    parameters: dict[str, Any] = {"details": True, "do_sample": True}
    if "stop" in body:
        parameters["stop"] = [body["stop"]] if isinstance(body["stop"], str) else body["stop"]
    return {"inputs": body["prompt"], "model": body["model"], "stream": body.get("stream"), "parameters": parameters}


_TGI = {
    "n": "a reply has one text",
    "stop": "it does not name the sequence that matched",
    "usage": "it always has counts: those that nobody told are 0",
    "logprobs": "of tokens, and asked for otherwise",
}


CLIENTS: tuple[Client, ...] = (
    Client(
        "tgi chat",
        "tgi",
        "chat",
        "/v1/chat/completions",
        "chat",
        hear_tgi_chat,
        read_openai,
        refused_tgi,
        blind=NO_STOP,
    ),
    Client(
        "tgi generations",
        "tgi",
        "complete",
        "/",
        "root",
        hear_tgi,
        read_tgi,
        refused_tgi,
        blind=_TGI,
        words={"stop": "eos_token", "stop_sequence": "stop_sequence", "content_filter": "eos_token"},
        own=_for_tgi,
    ),
)
