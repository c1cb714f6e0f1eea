"""B1 and B2: event streams in every form and cut anywhere, and text of many bytes a letter, in every dialect."""

from __future__ import annotations

import random

from tests.chaos.broken import WAYS, Way, scripted
from tests.chaos.house import House, house
from tests.chaos.link import Answer, Link, request
from tests.chaos.row import FULL, SEED, Findings, row
from tests.laws.conformance.cases import CASES, Case, run, stopped_clock
from tests.laws.conformance.clients import CLIENTS
from tests.unit.wire.test_sse import WPT, by_the_book, read

STREAMS = 50_000 if FULL else 10_000
FORMS = ("", "crlf", "nospace", "comments", "multi-data", "bom", "drip:1", "drip:7", "crlf,multi-data,drip:3")
TEXT = "漢字かな 한국어 👩\u200d👩\u200d👧\u200d👦 e\u0301 a\u2028b\u2029c\u0085d \ufeff\U0001f1e9\U0001f1ea ﷽"
"""Letters of many bytes, of several code points, and what some readers take for the end of a line."""


@row("B1", "event streams of every form, cut anywhere")
async def cut_anywhere(findings: Findings) -> None:
    """The cases of the web platform tests, cut in every place; 10,000 drawn event streams (every end of a line, byte
    order marks, comments, unknown fields), `FULL=1`: 50,000, cut at random; a worker's stream in 9 forms (CRLF,
    comments, several data lines, a byte order mark, 1, 3 or 7 bytes at a time) in every dialect.

    Passes if each is read as the standard says, whatever the cuts; every client understands the same text.
    """
    wrong, n = [], 0
    for name, (text, events) in WPT.items():
        stream, wanted = text.encode(), [(event.encode(), data.encode()) for event, data in events]
        ways = [[stream], [stream[at : at + 1] for at in range(len(stream))]]
        ways += [[stream[:at], stream[at:]] for at in range(min(len(stream), 300))]
        n += len(ways)
        wrong += [name for blocks in ways if read(*blocks) != wanted]
    findings.none("cases of the web platform tests that are read otherwise", wrong, n)
    draw, differ = random.Random(SEED), 0
    for _ in range(STREAMS):
        stream = drawn(draw)
        differ += read(*pieces(draw, stream)) != by_the_book(stream)
    findings.none("drawn streams that are read otherwise than by the book", differ, STREAMS)
    async with house({}, {}, 1) as at:
        await formed(findings, at)


def drawn(draw: random.Random) -> bytes:
    """A stream of fields that are known, unknown, or none, with every end of a line."""
    words = [
        b"data",
        b"data:",
        b"data: x",
        b"data:  y",
        b"event: e",
        b"id: 1",
        b": comment",
        b"",
        b"",
        b"dat: z",
        b"da",
    ]
    words += ["data: …\u2028".encode(), b"retry: 5", b"data: {}", b"\xef\xbb\xbfdata: b", b"data:\0", b"event"]
    ends = (b"\n", b"\r\n", b"\r")
    same = draw.choice((None, *ends))
    lines = (draw.choice(words) + (same or draw.choice(ends)) for _ in range(draw.randrange(12)))
    return draw.choice((b"", b"", b"\xef\xbb\xbf")) + b"".join(lines)


def pieces(draw: random.Random, stream: bytes) -> list[bytes]:
    cuts = sorted(draw.randrange(len(stream) + 1) for _ in range(draw.randrange(10)))
    return [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


async def formed(findings: Findings, at: House) -> None:
    """Through the gateway, a worker's stream in every form is the same stream to clients of every dialect."""
    link = Link(at.gateways[0].address)
    for way in WAYS:
        answers = [await asked(link, way, "aaaabbbbcccc", form) for form in FORMS]
        odd = [form for form, answer in zip(FORMS, answers, strict=True) if heard(way, answer) != "aaaabbbbcccc"]
        findings.none(f"{way.name}: forms that are another stream", odd, len(answers))
    link.close()


async def asked(link: Link, way: Way, text: str, fault: str) -> Answer:
    body = scripted(way.body(stream=True, max_tokens=100), text=text, **({"fault": fault} if fault else {}))
    return await link.send(request("POST", way.path, {}, body))


def heard(way: Way, answer: Answer) -> str | None:
    """The text that a client of this way understands; None where a stream is not whole."""
    asks = way.client
    hears = [one for one in CLIENTS if (one.dialect, one.operation) == (asks.dialect, asks.operation)]
    client = next((one for one in hears if one.route == asks.route.name), hears[0])
    found = client.hear(answer.body)
    return found.choices[0].text if found.complete and answer.status == 200 else None


@row("B2", "text of many bytes a letter, cut at every byte, in every dialect before every backend")
async def letters(findings: Findings) -> None:
    """CJK, emoji joined by U+200D, flags, U+0085, U+2028, U+FEFF: in every dialect before every backend the worker's
    stream is cut at each byte beyond ASCII, `FULL=1`: at each byte; and through the gateway it comes 1, 2 or 5
    bytes at a time.

    Passes if what the client is sent is the same byte for byte; the text is the worker's.
    """
    pairs = {(case.client.name, case.backend, case.lane): case for case in CASES if case.scenario.name == "unicode"}
    wrong, n = [], 0
    # Some replies give the time of their end, and how long they took.
    with stopped_clock():
        for case in pairs.values():
            bad, count = cut_at_every_byte(case)
            n += count
            wrong += [f"{case} at {place}" for place in bad[:1]]
    findings.none(f"cuts that change what a client is told, in {len(pairs)} pairs", wrong, n)
    spoilt, streams = [], 0
    async with house({}, {}, 1) as at:
        link = Link(at.gateways[0].address)
        for way in WAYS:
            for fault in ("", "drip:1", "drip:2", "drip:5"):
                answer = await asked(link, way, TEXT, fault)
                streams += 1
                if (text := heard(way, answer)) != TEXT:
                    spoilt.append(f"{way.name}, {fault}: {text!r}")
        link.close()
    findings.none("streams whose text is not the worker's", spoilt, streams)


def cut_at_every_byte(case: Case) -> tuple[list[int], int]:
    """(places where a cut changes the client's bytes, how many were tried): each byte beyond ASCII, and one of sixteen
    others, `FULL=1`: each."""
    stream = b"".join(case.frames)
    whole, _, _ = run(case, [stream])
    places = [at for at in range(len(stream)) if FULL or not at % 16 or stream[at] >= 0x80 or stream[at] in b"\\\n"]
    return [at for at in places if run(case, [stream[:at], stream[at:]])[0] != whole], len(places)
