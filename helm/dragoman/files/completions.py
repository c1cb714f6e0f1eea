"""`helm test`: a real completion in every dialect, streamed and not. Exit status 0 when all were whole, else 1.

It runs in the gateway's image with Python's own library alone. What it asks of each dialect is in dialects.json beside
it (`make docs` makes that from the gateway). From the environment:

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
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

QUESTION = "Name three colours."
# The last event of a stream whose events have types. A reply that reached the cap on its tokens is whole, too.
LAST = ("message_stop", "response.completed", "response.incomplete", "message-end")


class Wrong(Exception):
    """A reply that is not whole; the message is one line."""


class Case(NamedTuple):
    """One request. read takes the whole body of a reply and returns its text; it raises Wrong."""

    name: str
    path: str
    body: Mapping[str, Any]
    read: Callable[[bytes], str]


def cases(dialects: list[str], prefixes: Mapping[str, str], model: str) -> list[Case]:
    """Two requests for each dialect that generates: plain and streamed. Raises KeyError for a dialect that is not
    known."""
    known = json.loads(Path(__file__).with_name("dialects.json").read_text())
    found = []
    for dialect in dialects:
        facts = known[dialect]
        if not facts["generates"]:
            continue
        prefix = prefixes.get(dialect, facts["prefixes"][0]).rstrip("/")
        path, stream = (prefix + facts[name].replace("MODEL", quote(model, "")) for name in ("path", "streamed"))
        # Enough for a few words; greedy, so that two runs say the same.
        body = _filled(facts["body"], model) | {"max_tokens": 24, "temperature": 0}
        found.append(Case(f"{dialect}, plain", path, {**body, "stream": False}, plain))
        found.append(Case(f"{dialect}, streamed", stream, {**body, "stream": True}, streamed))
    return found


def _filled(value: Any, model: str) -> Any:
    if isinstance(value, dict):
        return {name: _filled(inner, model) for name, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, model) for inner in value]
    return {"MODEL": model, "hello": QUESTION}.get(value, value) if isinstance(value, str) else value


def plain(body: bytes) -> str:
    """The text of a plain reply, by its form."""
    reply = _json(body)
    if "choices" in reply:
        return _text(_first(reply).get("message"))
    if "done" in reply:
        return message(reply)
    if "output" in reply:
        return items(reply)
    if "candidates" in reply:
        return candidates([reply])
    if "finish_reason" in reply:
        return blocks({**(reply.get("message") or {}), "stop_reason": reply["finish_reason"]})
    return blocks(reply)


def candidates(found: list[dict[str, Any]]) -> str:
    """The text of a reply made of candidates (Google), whole or in items. A reply without text that has used its tokens
    has thought."""
    if not found or not _candidate(found[-1]).get("finishReason"):
        raise Wrong("the reply was cut: its end has no finish reason")
    parts = [part for one in found for part in (_candidate(one).get("content") or {}).get("parts") or ()]
    used = (found[-1].get("usageMetadata") or {}).get("candidatesTokenCount")
    return "".join(str(part.get("text") or "") for part in parts) or (f"{used} tokens of thinking" if used else "")


def _candidate(item: dict[str, Any]) -> dict[str, Any]:
    listed = item.get("candidates")
    if not isinstance(listed, list) or len(listed) != 1 or not isinstance(listed[0], dict):
        raise Wrong("the reply has not one candidate")
    return listed[0]


def items(reply: dict[str, Any]) -> str:
    """The text of a plain reply made of items (OpenAI's Responses API). It is incomplete where a limit ended it."""
    if reply.get("status") not in ("completed", "incomplete") or not isinstance(reply["output"], list):
        raise Wrong(f"the reply's status is {reply.get('status')!r}")
    parts = [part for item in reply["output"] for part in item.get("content") or ()]
    return "".join(str(part.get("text") or "") for part in parts)


def blocks(reply: dict[str, Any]) -> str:
    """The text of a plain reply made of blocks (Anthropic, Cohere)."""
    content = reply.get("content")
    if not isinstance(content, list) or not reply.get("stop_reason"):
        raise Wrong("the reply has no content, or no end")
    return "".join(str(block.get("text") or block.get("thinking") or "") for block in content)


def message(reply: dict[str, Any]) -> str:
    """The text of a plain Ollama-style reply."""
    if reply.get("done") is not True:
        raise Wrong("the reply does not say that it is done")
    return _text(reply.get("message"))


def streamed(body: bytes) -> str:
    """The text of a stream, by its form."""
    return events(body) if body.startswith((b"data:", b"event:", b":")) else lines(body)


def events(body: bytes) -> str:
    """The text of a stream of server-sent events. Chunks end with a finish reason and [DONE]; events with types end
    with one of LAST."""
    frames = [line[5:].strip() for line in body.splitlines() if line.startswith(b"data:")]
    if frames and frames[0].startswith(b'{"candidates"'):
        return candidates([_json(frame) for frame in frames])
    if frames and b'"type"' in frames[0] and b'"choices"' not in frames[0]:
        return typed([_json(frame) for frame in frames if frame != b"[DONE]"])
    if not frames or frames[-1] != b"[DONE]":
        raise Wrong("the stream was cut: its last event is not [DONE]")
    chunks = [_json(frame) for frame in frames[:-1]]
    picked = [_first(chunk) for chunk in chunks if chunk.get("choices") != []]
    if not any(one.get("finish_reason") for one in picked):
        raise Wrong("the stream ended without a finish reason")
    return "".join(_text(one.get("delta")) for one in picked)


def typed(found: list[dict[str, Any]]) -> str:
    """The text of events with types."""
    if found[-1].get("type") not in LAST:
        raise Wrong(f"the stream was cut: its last event is none of {', '.join(LAST)}")
    deltas = [one.get("delta") for one in found]
    if isinstance(deltas[-1], dict) and deltas[-1].get("error"):
        raise Wrong(f"the stream failed: {deltas[-1]['error']!r}")
    return "".join(one if isinstance(one, str) else _piece(one or {}) for one in deltas)


def _piece(delta: dict[str, Any]) -> str:
    """The text of a delta, which Cohere's have in the content of a message."""
    content = (delta.get("message") or {}).get("content")
    found = content if isinstance(content, dict) else delta
    return str(found.get("text") or found.get("thinking") or "")


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
    if not isinstance(value, dict) or value.get("error") is not None:
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
                said = f"status {error.code}: {error.read(300).decode(errors='replace').strip()}"
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
