"""Nothing nested is lost in silence: a member that no view knows, put anywhere into a request, reaches the worker where
it stood, or is refused by its place, or is named to the client. For every dialect, backend and extras policy.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.core.fields import ExtrasPolicy
from gateway.kernel.reply import dropped_header as header
from tests.laws.nested import (
    _ASK,
    _LIMITS,
    ALWAYS_NAMED,
    PAIRS,
    POLICIES,
    Place,
    _chat,
    dotted,
    handling,
    is_free,
    objects,
    put,
    rich,
    send,
)
from tests.support.harness import Stack

STRAY = "zz_stray"
VALUE = {"deep": [1.5, "zz"]}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("dialect", "operation", "backend"), PAIRS)
def test_no_object_loses_a_member(dialect: str, operation: str, backend: str, policy: ExtrasPolicy) -> None:
    body = rich(dialect, operation, backend)
    send(dialect, operation, backend, body, policy)  # it is not refused by itself
    places = list(objects(body))
    assert places or (dialect, backend) == ("friendli", "openai")
    wrong = {}
    for place in places:
        member = (*place, STRAY)
        met = handling(dialect, operation, backend, policy, put(body, place, STRAY, VALUE), member, VALUE)
        if met.word not in allowed(dialect, operation, backend, policy, place, late_system(body)):
            wrong[dotted(member)] = met
    assert wrong == {}


def late_system(body: dict[str, Any]) -> int | None:
    """The index of a system message that is not the first one: it becomes a part of the message before it."""
    roles = [message.get("role") for message in body.get("messages") or ()]
    return roles.index("system", 1) if "system" in roles[1:] else None


def allowed(
    dialect: str, operation: str, backend: str, policy: ExtrasPolicy, place: Place, system: int | None
) -> set[str]:
    """What may become of a member in the object at `place`. system: as `late_system` has it."""
    if is_free(dialect, place):
        return {"carried", "inside"}
    if policy == "error":
        return {"refused"}
    if policy == "drop" or (operation == "complete" and dialect in ("friendli", "tgi")) or dialect in ALWAYS_NAMED:
        return {"named"}
    if operation == "complete" and backend in ("tgi", "llamacpp"):
        return {"named"}
    if backend == "llamacpp" and place[0] == "tool_choice":
        return {"named"}  # that tool alone with `required`, in place of the name
    if system is not None and place[:2] == ("messages", system):
        return {"named"}
    if system is not None and place[0] == "messages" and int(place[1]) > system:
        return {"moved"}
    if backend != "tgi":
        return {"carried"}
    # Its own format for the output; a message with both text and calls becomes two.
    return {"named"} if place[0] == "response_format" else {"carried", "moved"}


def test_every_reply_names_what_was_dropped() -> None:
    """What the dialect leaves out, and what the backend does: whole, streamed, and in an error of the worker's."""
    azure = {"dialects": {"azure_inference": {"extras": "pass"}}}
    body = {"model": "m", **_chat(**_LIMITS, tool_choice="auto")}
    wanted = "tool_choice, max_tokens"
    with Stack(config=azure) as stack:
        url = f"{stack.url}/azure/chat/completions?api-version=2024-05-01"
        assert httpx.post(url, json=body).headers["x-dragoman-dropped"] == wanted
        assert httpx.post(url, json={**body, "stream": True}).headers["x-dragoman-dropped"] == wanted
        refused = httpx.post(url, json={**body, "temperature": 0, "n": 2})
        assert (refused.status_code, refused.headers["x-dragoman-dropped"]) == (422, wanted)
        assert "x-dragoman-dropped" not in httpx.post(url, json={"model": "m", "messages": [_ASK]}).headers
        assert [record["dropped"] for record in stack.records()] == [wanted.split(", ")] * 3 + [[]]


def test_names_are_fit_for_a_header_and_bounded() -> None:
    assert header(("messages[].a b\r\n", "x" * 99)) == b"messages[].a?b??, " + b"x" * 64
    assert header(tuple("abc")) == b"a, b, c"
    many = header(tuple(f"n{index}" for index in range(40)))
    assert many.startswith(b"n0, n1, ")
    assert many.endswith(b", n31, +8")
