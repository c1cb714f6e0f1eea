"""Conversations, made from a seed: the same requests for every subject.

Three kinds, whose sizes are near what is published of such traffic, in tokens of four characters:

chat       3 to 12 turns under one of four system prompts of 300; questions of 70 and replies of 215 on average, as
           LMSYS-Chat-1M reports (Zheng et al. 2023, table 1); seconds to read and to think
agent      6 to 16 steps under tools of 1,200 that all have and 1,500 about one's own project; each step adds a call of
           60 and a result of 300; the next step follows at once
retrieval  one to three questions about one of 300 documents of 3,000, the n-th asked for in proportion to 1/n
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from msgspec import Struct

Json = dict[str, str]
OUTPUT = 32
"""Most tokens of a reply; the trace's own text stands for the reply in the next turn."""
_DOCUMENTS = 300
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Turn(Struct, frozen=True):
    """One request. wait_s: after the reply before it; messages: all of them, as OpenAI has them."""

    wait_s: float
    messages: list[Json]
    output: int


class Conversation(Struct, frozen=True):
    """begins_s after the start of the trace."""

    kind: str
    begins_s: float
    turns: list[Turn]


def text(draw: random.Random, tokens: int) -> str:
    """Words of three letters and a space."""
    return "".join(["".join(draw.choices(_LETTERS, k=3)) + " " for _ in range(max(1, tokens))])


def trace(seed: int, seconds: float, rate: float) -> Sequence[Conversation]:
    """Conversations that begin at random, `rate` a second."""
    draw = random.Random(seed)
    systems = [text(draw, 300) for _ in range(20)]
    tools = text(draw, 1_200)
    documents = [text(draw, 3_000) for _ in range(_DOCUMENTS)]
    asked = [1 / (number + 1) for number in range(_DOCUMENTS)]
    found = []
    now = draw.expovariate(rate)
    while now < seconds:
        kind = draw.choices(("chat", "agent", "retrieval"), (5, 2, 3))[0]
        if kind == "chat":
            turns = _talk(draw, draw.choice(systems), draw.randint(3, 12), 70, 215, 1.5)
        elif kind == "agent":
            turns = _talk(draw, tools + text(draw, 1_500), draw.randint(6, 16), 300, 60, 0.1)
        else:
            document = draw.choices(documents, asked)[0]
            turns = _talk(draw, document, draw.randint(1, 3), 40, 150, 1.5)
        found.append(Conversation(kind, now, turns))
        now += draw.expovariate(rate)
    return found


def _talk(draw: random.Random, system: str, count: int, asks: int, answers: int, wait_s: float) -> list[Turn]:
    messages: list[Json] = [{"role": "system", "content": system}]
    turns = []
    for number in range(count):
        messages.append({"role": "user", "content": text(draw, int(draw.expovariate(1 / asks)) + 4)})
        length = int(draw.expovariate(1 / answers)) + 4
        wait = draw.expovariate(1 / wait_s) if number else 0.0
        turns.append(Turn(wait, list(messages), min(length, OUTPUT)))
        messages.append({"role": "assistant", "content": text(draw, length)})
    return turns
