"""`helm test`: a real completion in every dialect, streamed and not. Exit status 0 when all were whole, else 1.

It runs in the gateway's image with Python's own library alone. From the environment:

GATEWAY    address of the gateway, such as http://dragoman:80
MODEL      the model to ask
DIALECTS   names, separated by commas
PREFIXES   JSON: dialect -> path prefix, where it is not the dialect's own
KEY        a client key; absent with `auth: open`
TIMEOUT_S  seconds that one request may take, the waiting for a model that is being loaded included
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

OWN_PREFIXES = {
    "openai": "",
    "sagemaker": "/sagemaker",
    "azure": "/azure",
    "ollama": "/ollama",
    "friendli": "/friendli",
}
QUESTION = [{"role": "user", "content": "Name three colours."}]


class Wrong(Exception):
    """A reply that is not whole; the message is one line."""


class Case(NamedTuple):
    """One request. read takes the whole body of a reply and returns its text; it raises Wrong."""

    name: str
    path: str
    body: Mapping[str, Any]
    read: Callable[[bytes], str]


def cases(dialects: list[str], prefixes: Mapping[str, str], model: str) -> list[Case]:
    """Two requests for each dialect: plain and streamed. Raises KeyError for a dialect that is not known."""
    found = []
    for dialect in dialects:
        prefix = prefixes.get(dialect, OWN_PREFIXES[dialect]).rstrip("/")
        # Enough for a few words; greedy, so that two runs say the same.
        asked = {"model": model, "messages": QUESTION, "max_tokens": 24, "temperature": 0}
        path, streamed = f"{prefix}/v1/chat/completions", events
        if dialect == "sagemaker":
            path, asked = f"{prefix}/endpoints/{quote(model, safe='')}/invocations", {**asked}
            del asked["model"]
        elif dialect == "azure":
            path = f"{prefix}/chat/completions?api-version=2024-05-01-preview"
        elif dialect == "ollama":
            path, streamed = f"{prefix}/chat/completions", lines
        plain = message if dialect == "ollama" else choice
        found.append(Case(f"{dialect}, plain", path, {**asked, "stream": False}, plain))
        found.append(Case(f"{dialect}, streamed", path, {**asked, "stream": True}, streamed))
    return found


def choice(body: bytes) -> str:
    """The text of a plain reply with choices (OpenAI, SageMaker, Azure, Friendli)."""
    return _text(_first(_json(body)).get("message"))


def message(body: bytes) -> str:
    """The text of a plain Ollama-style reply."""
    reply = _json(body)
    if reply.get("done") is not True:
        raise Wrong("the reply does not say that it is done")
    return _text(reply.get("message"))


def events(body: bytes) -> str:
    """The text of a stream of server-sent events; its last must be [DONE], and a choice must have finished."""
    frames = [line[5:].strip() for line in body.splitlines() if line.startswith(b"data:")]
    if not frames or frames[-1] != b"[DONE]":
        raise Wrong("the stream was cut: its last event is not [DONE]")
    chunks = [_json(frame) for frame in frames[:-1]]
    picked = [_first(chunk) for chunk in chunks if chunk.get("choices") != []]
    if not any(one.get("finish_reason") for one in picked):
        raise Wrong("the stream ended without a finish reason")
    return "".join(_text(one.get("delta")) for one in picked)


def lines(body: bytes) -> str:
    """The text of a stream of JSON lines; the last alone must be done."""
    chunks = [_json(line) for line in body.splitlines() if line.strip()]
    if [chunk.get("done") for chunk in chunks] != [False] * (len(chunks) - 1) + [True]:
        raise Wrong("the stream was cut: its last line is not done")
    return "".join(_text(chunk.get("message")) for chunk in chunks)


def _json(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise Wrong(f"not JSON: {text[:80]!r}") from None
    if not isinstance(value, dict) or "error" in value:
        raise Wrong(f"an error: {text[:200]!r}")
    return value


def _first(reply: dict[str, Any]) -> dict[str, Any]:
    choices = reply.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise Wrong("the reply has not one choice")
    return choices[0]


def _text(said: Any) -> str:
    """Models that think may say all that they say as reasoning."""
    if not isinstance(said, dict):
        raise Wrong("the reply has no message")
    return "".join(str(said.get(name) or "") for name in ("reasoning_content", "reasoning", "content"))


def ask(gateway: str, case: Case, key: str | None, timeout_s: float) -> str:
    """The reply's text. Asks again while the gateway says 503 or cannot be reached; raises Wrong."""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(gateway + case.path, json.dumps(case.body).encode(), headers)
    end = time.monotonic() + timeout_s
    while True:
        try:
            with urllib.request.urlopen(request, timeout=max(0.1, end - time.monotonic())) as reply:
                text = case.read(_whole(reply))
        except urllib.error.HTTPError as error:
            with error:
                said = f"status {error.code}: {error.read(300).decode(errors='replace')}"
            if error.code != 503:
                raise Wrong(said) from None
            pause = float(error.headers.get("Retry-After") or 1)
        except urllib.error.URLError as error:
            said, pause = f"cannot be reached: {error.reason}", 1.0
        else:
            if not text.strip():
                raise Wrong("the reply holds no text")
            return text
        if time.monotonic() + pause >= end:
            raise Wrong(said)
        time.sleep(pause)


def _whole(reply: http.client.HTTPResponse) -> bytes:
    """The body. Once a reply has begun, it is never asked for again: a cut would go unseen."""
    try:
        return reply.read()
    except (OSError, http.client.HTTPException) as error:
        raise Wrong(f"the reply was cut: {type(error).__name__}") from None


def main() -> int:
    """Asks everything and prints a line for each; 0 when nothing was wrong."""
    environment = os.environ
    gateway, model = environment["GATEWAY"], environment["MODEL"]
    asked = cases(environment["DIALECTS"].split(","), json.loads(environment.get("PREFIXES", "{}")), model)
    failed = 0
    for case in asked:
        try:
            text = ask(gateway, case, environment.get("KEY"), float(environment.get("TIMEOUT_S", "120")))
        except Wrong as wrong:
            failed += 1
            print(f"FAILED  {case.name}: {wrong}", flush=True)
        else:
            print(f"ok      {case.name}: {text.strip()[:60]!r}", flush=True)
    print(f"{len(asked) - failed} of {len(asked)} completions were whole")
    if failed and not environment.get("KEY"):
        print("No key was shown: with auth.mode keys, set test.existingSecret to a Secret with one.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
