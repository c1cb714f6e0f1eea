"""S14: what workers get of requests that try to evade a policy."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from tests.chaos.link import Link, request
from tests.chaos.row import FULL, SEED, Findings, row
from tests.support.clients import DIALECTS, WAYS, Way
from tests.support.harness import Stack

COUNT = 6000 if FULL else 800
MOST = {"max_tokens", "max_completion_tokens"}
RULED: dict[str, Any] = {
    "temperature": 1.5,
    "seed": 9,
    "max_tokens": 900,
    "max_completion_tokens": 900,
    "top_k": 50,
    "n": 3,
    "logit_bias": {"5": 1},
    "stop": ["z"],
    "top_p": 0.3,
    "presence_penalty": 1.0,
    "min_p": 0.2,
    "ignore_eos": True,
    "min_tokens": 3,
    "stop_token_ids": [3],
    "repetition_penalty": 1.2,
}
DROPPED = ("logit_bias", "stop", "top_p", "presence_penalty", "min_p", "ignore_eos", "min_tokens", "stop_token_ids")
POLICY = {
    "force": {"temperature": 0.5, "seed": 5},
    "caps": {"max_tokens": 40, "top_k": 7, "n": 1},
    "drop": [*DROPPED, "repetition_penalty"],
}
GENERATING = [way for way in WAYS if way.operation in ("chat", "complete") and way.example.route != "compact"]


@row("S14", "requests that try to evade a policy, in every dialect")
async def ruled(findings: Findings) -> None:
    """800 requests in every dialect, streamed and not, to a model, its alias, and one that falls back to it: each has
    some of 15 members that a policy forces, caps or drops, in the dialect's words and in vLLM's, in capitals, as null,
    as a fraction, and both names of one. `FULL=1`: 6,000.

    Passes if no worker gets a member otherwise than the policy says, and two thirds of the requests reach a worker.
    """
    draw = random.Random(SEED)
    models = {"away": {"backend": "vllm", "workers": ["http://127.0.0.1:9"], "fallback": ["m"]}}
    dialects = {name: {"default_model": "m", "extras": "pass"} for name in DIALECTS}
    config = {"request_policies": {"all": POLICY}, "models": models, "dialects": dialects, "retry": {"wait_s": 0}}
    with Stack(({},), config) as stack:
        link = Link(stack.url.removeprefix("http://"))
        for number in range(COUNT):
            way = GENERATING[number % len(GENERATING)]
            model = draw.choice(("m", "m", "alias", "away"))
            await link.send(request("POST", way.path(model), {}, json.dumps(_body(draw, way, model)).encode()))
        link.close()
        bodies = [json.loads(one.body) for one in stack.sim.entries]
    findings.none("requests that a worker got otherwise than the policy says", list(_evaded(bodies)), len(bodies))
    findings.at_least("requests that reached a worker, share (0.66)", len(bodies) / COUNT, 0.66, COUNT, ".2f")


def _body(draw: random.Random, way: Way, model: str) -> dict[str, Any]:
    members = {name: RULED[name] for name in draw.sample(list(RULED), draw.randint(1, 4))}
    stream = draw.random() < 0.5 if way.answers(stream=True) and way.answers(stream=False) else None
    body = way.body(stream=stream, model=model, **(members if draw.random() < 0.5 else {}))
    if draw.random() < 0.6:
        for name, value in members.items():
            spelled = draw.choice((name, name, name.upper(), name.title(), name.replace("k", "\u212a")))
            odd = float(value) if type(value) is int and draw.random() < 0.2 else value
            body[spelled] = None if draw.random() < 0.1 else odd
    return body


def _evaded(bodies: list[dict[str, Any]]) -> Iterator[str]:
    for body in bodies:
        said = {name.casefold(): value for name, value in body.items()}
        most = [said[name] for name in MOST if name in said]
        if len(most) != 1 or most[0] is None or most[0] > 40:
            yield f"max_tokens {most}"
        if said.get("temperature") != 0.5 or said.get("seed") != 5:
            yield f"temperature {said.get('temperature')}, seed {said.get('seed')}"
        if (said.get("n") or 1) > 1 or (said.get("top_k") or 1) > 7:
            yield f"n {said.get('n')}, top_k {said.get('top_k')}"
        yield from (name for name in DROPPED if said.get(name) == RULED[name])
        if len(said) != len(body):
            yield f"two spellings of a member: {sorted(body)}"
