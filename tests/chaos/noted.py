"""S15: secrets and floods before the log of prompts."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.chaos.house import CHAT, House, house
from tests.chaos.link import links
from tests.chaos.row import FULL, SEED, Findings, row

COUNT = 10_000 if FULL else 1500
CLIENTS = 16
MOST, ENTRY, WAITING = 1 << 20, 4096, 1 << 18
GROWTH = 32 << 20
"""Bytes by which a gateway may grow: `max_waiting_bytes`, the bodies under way, and what an allocator keeps."""
LETTERS = string.ascii_letters + string.digits


@row("S15", "prompts full of secrets, and names of megabytes, before the log of prompts")
async def noted(findings: Findings) -> None:
    """16 clients send 1,500 requests that are all logged, streamed and not: with keys of vendors and of the gateway, a
    JWT, cards and addresses in texts, calls, names and replies, at every place of a text that is cut, cut by the pieces
    of a stream; some with names of 1 MB. `FULL=1`: 10,000.

    Passes if no secret, nor a part of 10 characters, is in a file at any time; the files never pass `max_bytes`
    (1 MiB); the gateway grows by at most 32 MiB; every request is answered, and lines are written.
    """
    draw, secrets = random.Random(SEED), set[str]()
    config: dict[str, Any] = {}
    async with _house(config) as (at, folder):
        before = at.gateways[0].resident()
        bodies = [_body(draw, at.keys["one"], secrets) for _ in range(COUNT)]
        watch, over = Watch(folder, secrets), asyncio.get_running_loop().create_future()
        looking = asyncio.create_task(watch.run(over))
        left = iter(bodies)
        with links(at.gateways[0].address, CLIENTS) as made:
            statuses = [one for some in await asyncio.gather(*(_send(at, link, left) for link in made)) for one in some]
        await asyncio.sleep(2.5)  # the writer looks once a second
        over.set_result(None)
        await looking
        await asyncio.to_thread(watch.look)
        grown = at.gateways[0].resident() - before
    findings.none("secrets, or parts of one, in files", sorted(watch.found), len(secrets))
    findings.at_most("bytes of all files at their worst (1 MiB)", watch.most, MOST, watch.lines, ".0f")
    findings.at_most("bytes by which the gateway grew (32 MiB)", grown, GROWTH, COUNT, ".0f")
    findings.none("requests without a reply", [one for one in statuses if one != 200], len(statuses))
    findings.at_least("lines that were seen (50)", watch.lines, 50, COUNT, ".0f")


@contextlib.asynccontextmanager
async def _house(config: dict[str, Any]) -> Any:
    folder: list[Path] = []

    async def front(found: House) -> list[str]:
        folder.append(found.folder / "prompts")
        config["prompt_log"] = {
            "directory": str(folder[0]),
            "rules": {"all": {"match": {"key": ["one"]}}},
            "max_bytes": MOST,
            "max_entry_bytes": ENTRY,
            "max_waiting_bytes": WAITING,
        }
        return [one.address for one in found.workers]

    async with house({"one": {}}, config, 1, [("--max-model-len", "10000000")], front=front) as at:
        yield at, folder[0]


async def _send(at: House, link: Any, bodies: Iterator[dict[str, Any]]) -> list[int]:
    return [(await link.post(CHAT, body, {"api-key": at.keys["one"]})).status for body in bodies]


class Watch:
    """What the folder has had so far. found: what of the secrets; most: bytes of all files at once. Of a prompt that is
    a script for the worker only the reply is read: the script has a secret in pieces."""

    def __init__(self, folder: Path, secrets: set[str]) -> None:
        self.found = set[str]()
        self.most = self.lines = 0
        self._folder = folder
        self._secrets = secrets
        self._read: dict[str, int] = {}

    async def run(self, over: asyncio.Future[None]) -> None:
        while not over.done():
            await asyncio.to_thread(self.look)
            await asyncio.sleep(0.1)

    def look(self) -> None:
        size = 0
        for file in self._folder.glob("*"):
            with contextlib.suppress(FileNotFoundError):
                data = file.read_bytes()
                size += len(data)
                whole = data.rfind(b"\n") + 1
                new = data[self._read.get(file.name, 0) : whole].splitlines()
                self._read[file.name] = whole
                for line in map(json.loads, new):
                    self.lines += 1
                    script = any(one["text"].startswith("sim:") for one in line["prompt"]["texts"])
                    told = line["reply"] if script else line
                    text = json.dumps(told, ensure_ascii=False)
                    self.found |= {secret for secret in self._secrets if secret in text}
        self.most = max(self.most, size)


def _body(draw: random.Random, own: str, secrets: set[str]) -> dict[str, Any]:
    """A request with secrets. The parts by which they would be known join `secrets`."""
    secret = _secret(draw, own, secrets)
    mark = draw.choice((" ", ";", "\n", '"', "&", "= "))
    pad = ("ab" + draw.choice((" ", ";", "\n", "&"))) * draw.choice((0, 20, 1300, 1365, 5300, 5333, 8000))
    text = pad + draw.choice(("", "x" * draw.randrange(40) + " ")) + secret + mark + "z " * draw.randrange(3000)
    body: dict[str, Any] = {"model": "m", "max_tokens": 400, "stream": draw.random() < 0.5}
    message: dict[str, Any] = {"role": "user", "content": text}
    kind = draw.randrange(6)
    if kind == 0:
        cut = draw.randrange(1, len(secret))
        pieces = ["so ", pad[:2000], secret[:cut], secret[cut:], mark + "end"]
        message["content"] = "sim:" + json.dumps({"pieces": [piece for piece in pieces if piece]})
    elif kind == 1:
        message["name"] = secret + "-" * draw.choice((0, 900, 1_000_000))
    elif kind == 2:
        body["x" * draw.choice((1, 1000, 1_000_000)) + " " + secret] = 1
    body["messages"] = [message]
    if kind == 3:
        escaped = "".join(f"\\u{ord(one):04x}" for one in secret)
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": f'{{"a": "{escaped}"}}'}}
        body["messages"] += [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": text},
        ]
    if kind == 4:
        body["tools"] = [{"type": "function", "function": {"name": "f", "description": text}}]
    return body


def _secret(draw: random.Random, own: str, secrets: set[str]) -> str:
    word = "".join(draw.choice(LETTERS) for _ in range(40))
    match draw.randrange(6):
        case 0:
            secrets.add(own[12:22])
            return own
        case 1:
            body = "".join(str(draw.randrange(10)) for _ in range(15))
            card = next(body + str(last) for last in range(10) if _luhn(body + str(last)))
            shown = draw.choice((card, " ".join(card[at : at + 4] for at in range(0, 16, 4))))
            secrets.add(shown)
            return draw.choice(("", "12 ")) + shown + draw.choice(("", " 12/26", " 123"))
        case 2:
            secrets.add(f"{word[:12]}@example")
            return f"{word[:12]}@example.org"
        case 3:
            secrets.add(word[10:20])
            return "eyJ" + base64.urlsafe_b64encode(b'{"alg":"HS256"}').decode().strip("=")[3:] + "." + word
        case _:
            secrets.update((word[:10], word[-10:]))
            return draw.choice(("sk-proj-", "hf_", "gsk_", "ghp_")) + word


def _luhn(digits: str) -> bool:
    doubled = [int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits))]
    return sum(digit - 9 if digit > 9 else digit for digit in doubled) % 10 == 0
