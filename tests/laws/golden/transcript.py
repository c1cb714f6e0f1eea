"""Transcripts as files: what a client sends, what its worker then gets and answers, what the client gets, and the bill.

    One or more lines that say what this shows.
    model: {backend: tgi}            how gateway.yaml differs for the model "m"; left out where it does not

    client >                         a request: method and path, headers, an empty line, the body
    POST /v1/chat/completions
    content-type: application/json

    - {"model":"m","messages":[]}

    worker >                         the worker's request, in the same form; absent when no worker was asked
    worker <                         its answer: status, headers, an empty line, the body
    client <                         the client's
    usage                            what would be billed, and how the request is recorded

A body's line begins with `|` where the line ends by LF, and with `-` where it ends by nothing (the last one may). CR is
shown as ␍. Frames of an Amazon event stream are shown as `= ` and their headers, then their payload. An answer that
does not end as its framing promised is followed by `(cut)`, or `(timeout)`; one that never began is that word alone, or
`(refused)`. `client >` and `worker <` are written by hand, the rest by `python -m tests.laws.golden`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from gateway.core.http import Headers
from gateway.wire import awsevent
from tests.support.eventstream import frames

FOLDER = Path(__file__).parent
_SECTIONS = ("client >", "worker >", "worker <", "client <", "usage")
_GIVEN = ("client >", "worker <")
# Drawn anew for each request.
_MASKS = (
    (re.compile(r"(?<=golden-)\d+"), "#"),
    (re.compile(r"(?<=embd-)[0-9a-f]{24}"), "#"),
    # Of an upload as the worker gets it.
    (re.compile(r"(?<=boundary=)[0-9a-f]{32}$|(?<=^\| --)[0-9a-f]{32}(?=␍$|--␍$)", re.MULTILINE), "#"),
    # Of a search that no worker was asked for, as its time.
    (re.compile(r"(?<=srvtoolu_|\"id\":\"ws_)[0-9a-f]{24}"), "#"),
    (re.compile(r"(?<=\"created_at\":)(?!1763726400)\d{10}"), "#"),
    # Of the workers that give a text no id and no time.
    (re.compile(r"(?<=cmpl-)[0-9a-f]{24}(?=\")"), "#"),
    # UUIDs of version 5: SageMaker's, derived from the ids of workers that are no UUID.
    (re.compile(r"(?<=cmpl-)[0-9a-f]{12}5[0-9a-f]{3}[89ab][0-9a-f]{15}(?=\")"), "#"),
    (re.compile(r"(?<=\"created_at\":\")(?!2025-11-21T12:00:00)[-0-9T:.]+(?=Z)"), "#"),
    (re.compile(r"(?<=\"completed_at\":)\d{10}"), "#"),
    # Measured. Those that are 0 by definition stay.
    (re.compile(r"(?<=_duration\":)[1-9]\d*"), "#"),
    (re.compile(r"(?<=\"created\":)(?!1763726400)\d{10}"), "#"),
)


class Message(Struct):
    """first is the request line or the status, "" for an answer that never began; ending is "" | cut | timeout |
    refused."""

    first: str
    headers: Headers = []
    body: bytes = b""
    ending: str = ""

    def header(self, name: bytes) -> bytes:
        return next((value for key, value in self.headers if key == name), b"")


class Transcript(Struct):
    """One file. made holds the sections that the gateway made, as text."""

    about: str
    model: dict[str, Any]
    asked: Message
    answered: Message | None
    made: dict[str, str]


def files() -> list[Path]:
    return sorted(FOLDER.glob("*/*.txt"))


def load(path: Path) -> Transcript:
    """Raises ValueError when the file is not in the form above."""
    about, sections = _split(path.read_bytes().decode())
    if "client >" not in sections:
        raise ValueError(f"{path.name}: there is no section 'client >'")
    lines, options = [], {}
    for line in about.splitlines():
        if line.startswith("model: "):
            options = yaml.safe_load(line.removeprefix("model: "))
        elif line:
            lines.append(line)
    answered = sections.get("worker <")
    return Transcript(
        "\n".join(lines),
        options,
        read_message(sections["client >"]),
        read_message(answered) if answered is not None else None,
        {name: text for name, text in sections.items() if name not in _GIVEN},
    )


def dump(path: Path, transcript: Transcript) -> None:
    """Writes the file anew: the hand-written sections as they are, the others from `transcript.made`."""
    about, sections = _split(path.read_bytes().decode())
    sections = {name: text for name, text in sections.items() if name in _GIVEN} | transcript.made
    parts = [about, *(f"{name}\n{sections[name]}" for name in _SECTIONS if name in sections)]
    path.write_bytes(("\n\n".join(parts) + "\n").encode())


def _split(text: str) -> tuple[str, dict[str, str]]:
    sections: dict[str, list[str]] = {"": []}
    name = ""
    for line in text.split("\n"):
        if line in _SECTIONS:
            name = line
            if name in sections:
                raise ValueError(f"the section '{name}' is there twice")
            sections[name] = []
        else:
            sections[name].append(line)
    found = {name: "\n".join(lines).strip("\n") for name, lines in sections.items()}
    return found.pop(""), found


def read_message(text: str) -> Message:
    lines = text.split("\n")
    ending = ""
    if re.fullmatch(r"\((cut|timeout|refused)\)", lines[-1]):
        ending = lines.pop()[1:-1]
    message = Message(lines[0] if lines else "", [], b"", ending)
    body = []
    for line in lines[1:]:
        if line.startswith("|"):
            body.append(line[1:].removeprefix(" ") + "\n")
        elif line.startswith("-"):
            body.append(line[1:].removeprefix(" "))
        elif line:
            name, _, value = line.partition(": ")
            message.headers.append((name.encode(), value.encode()))
    message.body = "".join(body).replace("␍", "\r").encode()
    return message


def write_message(message: Message) -> str:
    lines = [message.first, *(f"{name.decode()}: {value.decode()}" for name, value in message.headers)]
    if message.body:
        lines += ["", *show_body(message)]
    if message.ending:
        lines.append(f"({message.ending})")
    text = "\n".join(line for line in lines if line or len(lines) > 1)
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    return text


def show_body(message: Message) -> Iterator[str]:
    if message.header(b"content-type") != awsevent.MEDIA_TYPE:
        yield from _show(message.body)
        return
    for frame in frames(message.body):
        yield "= " + ", ".join(f"{name} {value}" for name, value in frame.headers.items())
        yield from _show(frame.payload)


def _show(body: bytes) -> Iterator[str]:
    pieces = body.decode().replace("\r", "␍").split("\n")
    for piece in pieces[:-1]:
        yield f"| {piece}".rstrip(" ") if not piece else f"| {piece}"
    if pieces[-1]:
        yield f"- {pieces[-1]}"
