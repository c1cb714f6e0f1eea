"""A reply, streamed or whole, as a sequence of events: a backend yields them, a dialect writes them.

`lifecycle.TRANSITIONS` says which event may follow which. Exactly one of `End` and `Failed` is last. The structs are
not frozen, because one is made for every token and frozen ones take longer to make (an unfrozen one takes 63 ns).

Code tests for an event with `type(event) is Delta`: `isinstance` of a Struct takes much longer when the answer is no,
because the class of Structs is not `type` itself.
"""

from __future__ import annotations

from typing import Literal, final

from msgspec import Raw, Struct

from gateway.core.errors import GatewayError
from gateway.core.messages import Extra
from gateway.core.usage import Usage

PartKind = Literal["text", "thinking", "tool", "refusal"]
Reason = Literal["stop", "length", "tool_calls", "content_filter"]


@final
class Start(Struct):
    """The reply begins. id and model as the worker sent them; created in Unix seconds; extra holds top-level fields
    that have no canonical name. usage is what the worker reports before any output, if it does (`early_usage`)."""

    id: str
    model: str
    created: int
    fingerprint: str | None = None
    tier: str | None = None
    extra: Extra | None = None
    usage: Usage | None = None


@final
class PartStart(Struct):
    """Part `index` of `choice` opens. For kind "tool", index counts parts, and call_id and name are the call's."""

    choice: int
    index: int
    kind: PartKind
    call_id: str | None = None
    name: str | None = None


@final
class Delta(Struct):
    """More of an open part.

    tokens    the ids of the tokens of `text`, if they were asked for and the worker sent them
    logprobs  JSON text: a list of OpenAI chat token objects `{token, logprob, bytes, top_logprobs}`
    last      the worker ended the choice in the same chunk. Its PartEnd and Finish follow at once, so that a writer can
              put all of them into one chunk, too
    """

    choice: int
    index: int
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: Raw | None = None
    last: bool = False


@final
class PartEnd(Struct):
    """Part `index` of `choice` is complete."""

    choice: int
    index: int


@final
class Finish(Struct):
    """`choice` is complete. raw is the worker's own word for the reason; stop_sequence what matched, if anything.
    end_token is the id of the token without text that ended it, if the worker sent it: usage counts that token too."""

    choice: int
    reason: Reason
    raw: str
    stop_sequence: str | int | None = None
    extra: Extra | None = None
    end_token: int | None = None


@final
class UsageReport(Struct):
    """The usage so far, by the worker's count."""

    usage: Usage


@final
class End(Struct):
    """The reply is complete: the worker sent its terminal mark. Nothing else may make this event. fingerprint: the one
    that the worker sent after `Start`, for a Start that has none."""

    fingerprint: str | None = None


@final
class Failed(Struct):
    """The reply will never be complete."""

    error: GatewayError


Event = Start | PartStart | Delta | PartEnd | Finish | UsageReport | End | Failed
