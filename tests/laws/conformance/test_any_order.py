"""A chat's parts in any order, and calls side by side: a client hears of a stream what it reads of a whole reply."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.events import Delta, End, Event, Finish, PartEnd, PartStart, Reason, UsageReport
from gateway.core.lifecycle import fold
from gateway.core.messages import Chat
from gateway.core.usage import Usage
from tests.laws.conformance.cases import DIALECTS
from tests.laws.conformance.clients import CLIENTS, Client
from tests.laws.conformance.scenarios import SCENARIOS, START
from tests.laws.conformance.test_conformance import visible

HELLO = SCENARIOS[0]
CHATTING = [client for client in CLIENTS if client.operation == "chat"]
TEXTS = ("", "a", " b ", "\u2028", "é😀", "\x00", "data: [DONE]\n\n")
# Empty; white space; whole; cut off; no object; a brace within; a number that no double holds; white space around it.
# Not more behind a whole object: a stream may have ended the call there.
ARGUMENTS = (
    *("", " ", "\n", "{}", '{"a":1}', '{"a"', "[1]", '"x"', "null", '{"a":"}"}'),
    *('{"input":"x"}', '{"a":"\\u00e9😀\\n"}', '{"n":12345678901234567890123}', ' {"a":{"b":[1,{}]}}\n'),
)
REASONS: tuple[Reason, ...] = ("stop", "length", "tool_calls", "content_filter")
COUNTS = (None, 0, 5, 9)


def said(seed: int) -> list[Event]:
    """What a worker may say: at most one part at a time besides calls, which end with the reply."""
    random = Random(seed)
    events: list[Event] = [START]
    spoken: int | None = None
    calls: list[int] = []
    left: dict[int, str] = {}
    for index in range(random.randint(0, 5)):
        kind = random.choice(("text", "thinking", "refusal", "tool", "tool"))
        if kind == "tool":
            calls.append(index)
            left[index] = random.choice(ARGUMENTS)
            events.append(PartStart(0, index, "tool", f"call_{index}", random.choice("fg")))
        else:
            if spoken is not None:
                events += [Delta(0, spoken, left.pop(spoken)), PartEnd(0, spoken)]
            spoken = index
            left[index] = "".join(random.choices(TEXTS, k=random.randint(0, 4)))
            events.append(PartStart(0, index, kind))  # type: ignore[arg-type]  # one of its words
        for _ in range(random.randint(0, 6)):
            part, size = random.choice([*left]), random.randint(0, 5)
            events.append(Delta(0, part, left[part][:size]))
            left[part] = left[part][size:]
    events += [Delta(0, part, text) for part, text in left.items()]
    events += [PartEnd(0, part) for part in ([] if spoken is None else [spoken]) + calls]
    reason = random.choice(REASONS)
    events.append(Finish(0, reason, reason, random.choice((None, None, "END", 7))))
    if random.random() < 0.7:
        counts = random.choices(COUNTS, k=4)
        events.append(UsageReport(Usage(counts[0], counts[1], counts[2], counts[3])))
    return [*events, End()]


def asking(client: Client, *, stream: bool) -> Chat:
    op = DIALECTS[client.dialect].read(client.ask(HELLO, stream=stream))
    assert isinstance(op, Chat)
    op.stream = op.include_usage = stream
    op.model = op.model or "m"
    return op


@pytest.mark.parametrize("client", CHATTING, ids=lambda client: client.name)
@given(seed=st.integers(0, 2**32))
def test_streamed_is_whole(client: Client, seed: int) -> None:
    dialect = DIALECTS[client.dialect]
    events = said(seed)
    writer = dialect.writer(asking(client, stream=True))
    streamed = visible(client, client.hear(b"".join(map(writer.write, events))))
    whole = visible(client, client.read(dialect.write(fold(events), asking(client, stream=False)).body))
    if None in (streamed["usage"], whole["usage"]):  # some clients' types want counts, whether there are any or not
        streamed["usage"] = whole["usage"] = None
    assert streamed == whole
