"""B7 and B8: parameters that crash engines or hide another model, in every dialect, before every backend."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from gateway import backends
from gateway.wire.openai.requests.bounds import RANGES
from tests.chaos.house import House, chat, house
from tests.chaos.link import Answer, Link, request
from tests.chaos.row import FULL, Findings, percentile, row
from tests.support.clients import DIALECTS, WAYS, Way

MOST_MS = 50.0
DEEP = "[" * 100_000 + "]" * 100_000
DIGITS = "9" * 5000
LONE = '"\\ud800"'
NUMBERS = ("NaN", "Infinity", "-Infinity", DIGITS, "1e999", '"x"', "[]", "{}", DEEP, LONE)
"""What no number is, or none that can be kept."""
PLACE = "put-it-here"

VALUES: dict[str, tuple[str, ...]] = {
    "n": ("1000000", "-1", "1.5", *NUMBERS),
    "max_tokens": ("1.5", "-5", *NUMBERS),
    "temperature": ("-1", *NUMBERS),
    "top_p": ("-1", "2", *NUMBERS),
    "top_k": ("1.5", "-7", *NUMBERS),
    "presence_penalty": ("1e6", *NUMBERS),
    "frequency_penalty": ("-1e6", *NUMBERS),
    "repetition_penalty": ("-1", *NUMBERS),
    "seed": ("1.5", *NUMBERS),
    "logprobs": ("1000000", "-3", *NUMBERS),
    "top_logprobs": ("1000000", "-3", *NUMBERS),
    "stop": ("[1]", "NaN", DEEP, LONE, json.dumps(["x"] * 100_000)),
    "logit_bias": ('{"a":1}', '{"1":1e999}', '{"1":NaN}', '{"-1":1}', f'{{"{DIGITS}":1}}', DEEP),
    "tools": ("[1]", '"x"', DEEP, json.dumps([{}] * 5000)),
    "tool_choice": ('{"type":"function","function":{"name":"nobody"}}', DEEP),
    "response_format": (
        '{"type":"json_schema"}',
        '{"type":"nonsense"}',
        '{"type":"regex","schema":"' + "(a+)+" * 5000 + '"}',
        '{"type":"json_schema","json_schema":{"name":"x","schema":' + '{"items":' * 20_000 + "{}" + "}" * 20_000 + "}}",
        DEEP,
    ),
    "min_p": ("2", *NUMBERS),
    "min_tokens": ("-1", *NUMBERS),
    "prompt_logprobs": ("1000000", *NUMBERS),
    "truncate_prompt_tokens": ("-2", *NUMBERS),
    "structured_outputs": ('{"regex":"' + "(a+)+" * 5000 + '"}', DEEP),
    "guided_regex": ('"' + "(a+)+" * 5000 + '"', DEEP),
    "messages": ('[{"role":"user","content":' + DEEP + "}]", '[{"role":"user","content":' + LONE + "}]", "NaN"),
    "prompt": (DEEP, LONE, "NaN", "[[-1]]", "[1.5]", f"[{DIGITS}]"),
    "input": (DEEP, LONE, "NaN", "[[-1]]", "[1.5]", f"[{DIGITS}]"),
}
"""Canonical name of a parameter -> what is sent for it, as JSON text or what is none."""

ALLOWED: dict[tuple[str, str], str] = {
    ("/messages", "tool_choice: {"): "without tools there is no choice: it is dropped, and named",
    ("/responses", "tool_choice: {"): "without tools there is no choice: it is dropped, and named",
    ("/responses", "logprobs: []"): "`include` is a list",
    (" /api/", "max_tokens: -5"): "as many as there is room for",
    (" /api/", "response_format: {"): "a schema, whatever its members",
    (" /api/", "top_logprobs: "): "without `logprobs` they are not asked for",
    (" /api/embeddings", "input: "): "the field is another route's",
}
"""(what stands in the name of a way, how the name of an abuse begins) -> why it is none there."""


class Abuse(Struct):
    """One body. allowed: it may be answered, by the model that the path names."""

    name: str
    way: Way
    body: bytes
    allowed: bool = False


def shown(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:30]}… ({len(text)})"


def of_values(way: Way) -> Iterator[Abuse]:
    for name, values in VALUES.items():
        # What vLLM adds is in no table of OpenAI's, and passed on.
        with_it = placed(way, name)
        for value in values if with_it else ():
            text = json.dumps(with_it)
            name_ = f"{name}: {shown(value)}"
            if any(part in str(way) and name_.startswith(start) for part, start in ALLOWED):
                continue
            yield Abuse(name_, way, text.replace(f'"{PLACE}"', value, 1).encode())


def placed(way: Way, name: str) -> dict[str, Any] | None:
    """A body with `PLACE` as the parameter; None where the dialect has none of that name."""
    body = way.body(model="m")
    names = [field.name for field in DIALECTS[way.dialect].fields[way.operation] if field.where == "body"]
    inner = next((one for one in names if one.endswith(f".{name}")), None)
    if name not in names and inner is not None:
        outer = inner.partition(".")[0]
        return {**body, outer: {**body.get(outer, {}), name: PLACE}}
    # What vLLM adds is in no table of OpenAI's, and passed on.
    if name in names or (name in RANGES and str(way).startswith("openai c")):
        return {**body, name: PLACE}
    field = way.field(name)
    return None if field is None else {**body, field.name: PLACE} if "." not in field.name else None


def of_bodies(way: Way) -> Iterator[Abuse]:
    good = json.dumps(way.body(model="m"))
    inside = good[1:-1]
    many = ",".join(f'"z{number}":1' for number in range(2000))
    for name, text in {
        "an unknown member of 100,000 arrays": f'{{{inside},"z":{DEEP}}}',
        "an unknown member that is NaN": f'{{{inside},"z":NaN}}',
        "an unknown member with half a letter": f'{{{inside},"z":{LONE}}}',
        "2,000 unknown members": f"{{{inside},{many}}}",
        "something behind the body": good + "{}",
        "an array": f"[{good}]",
        "half a body": good[: len(good) // 2],
        "nothing but arrays": DEEP,
    }.items():
        yield Abuse(name, way, text.encode())
    yield Abuse("UTF-16", way, good.encode("utf-16"))
    yield Abuse("a byte that is no UTF-8", way, good.encode()[:-1] + b',"z":"\xff"}')


def of_models(way: Way) -> Iterator[Abuse]:
    inside = json.dumps(way.body(model="m"))[1:-1]
    for name, members in {
        "twice, the other first": f'"model":"other",{inside}',
        "twice, the other last": f'{inside},"model":"other"',
        "twice, escaped": f'{inside},"mod\\u0065l":"other"',
        "in another letter case": f'{inside},"Model":"other"',
        "with a space": f'{inside},"model ":"other"',
    }.items():
        yield Abuse(f"model {name}", way, f"{{{members}}}".encode(), "{" in way.route.path)
    for value in (*ODD_MODELS, "1", "[]", '{"a":1}', "true", LONE):
        text = json.dumps(way.body(model=PLACE)).replace(f'"{PLACE}"', value)
        yield Abuse(f"model: {shown(value)}", way, text.encode(), "{" in way.route.path)


ODD_MODELS = (json.dumps("m" * 100_000), '"m\\u0000"', '"m\\r\\nx: y"', '"../m"', '"other"', '"sim"')


@row("B7", "parameters that crash engines or hide another model, in every dialect (B8)")
async def abused(findings: Findings) -> None:
    """In every dialect up to 150 parameters that crash engines (out of range, `NaN`, `1e999`, 5,000 digits, 100,000
    arrays, half a surrogate pair, long lists and patterns), bodies that are not JSON objects, and names that hide
    another model (twice, escaped, in another case, with line ends), before vLLM, `FULL=1`: before every backend.

    Passes if each is refused by a 4xx (SageMaker: 424) within 50 ms, and no worker sees it; no worker sees another
    model than the one that the key may use.
    """
    for backend in backends.REGISTRY if FULL else ("vllm",):
        other = {"backend": "vllm", "upstream_model": "hidden"}
        front: dict[str, Any] = {"models": {"m": {"backend": backend}, "other": other}}

        async def shared(at: House, front: dict[str, Any] = front) -> list[str]:
            """Both models are at the one worker: whatever it is sent for another stands in its ledger."""
            addresses = [worker.address for worker in at.workers]
            front["models"]["other"]["workers"] = [f"http://{address}" for address in addresses]
            return addresses

        worker = ("--model", "sim", "--model", "hidden")
        async with house({"one": {"models": ["m"]}}, front, 1, [worker], front=shared) as at:
            await judged(findings, at, backend)


async def judged(findings: Findings, at: House, backend: str) -> None:
    link, headers = Link(at.gateways[0].address), {"api-key": at.keys["one"]}
    wrong, slow, models = [], [], 0
    times: list[float] = []
    refused: dict[str, str] = {}
    for way in WAYS:
        hidden = list(of_models(way)) if way.field("model") is not None else []
        models += len(hidden)
        for abuse in [*of_values(way), *of_bodies(way), *hidden]:
            id_ = f"b7-{len(times)}"
            answer = await sent(link, request("POST", way.path("m"), {**headers, "x-request-id": id_}, abuse.body))
            refused.update({} if abuse.allowed and answer.status == 200 else {id_: f"{way}, {abuse.name}"})
            what = f"{way}, {abuse.name}: {answer.status}"
            times.append(answer.seconds * 1000)
            if not (abuse.allowed and answer.status == 200) and answer.status not in (400, 403, 404, 413, 422, 424):
                wrong.append(what)
            for _ in range(3):  # what the machine does meanwhile is not the request's
                if times[-1] > MOST_MS:
                    again = await sent(link, request("POST", way.path("m"), headers, abuse.body))
                    times[-1] = 1000 * again.seconds
            if times[-1] > MOST_MS:
                slow.append(f"{what}, {times[-1]:.0f} ms")
    control = await sent(link, request("POST", "/v1/chat/completions", headers, json.dumps(chat(1)).encode()))
    link.close()
    entries = await at.admits()
    others = [entry for entry in entries.values() if json.loads(entry["body"]).get("model") != "sim"]
    n = len(times)
    findings.none(f"{backend}: answers that refuse nothing", wrong, n)
    what = f"{backend}: refusals after more than {MOST_MS:g} ms (median {percentile(times, 0.5):.2f})"
    findings.none(what, slow, n)
    reached = [refused[id_] for id_ in entries if id_ in refused]
    findings.none(f"{backend}: refused requests that a worker saw", reached, n)
    findings.check(
        f"{backend}: status of a good request, as a control", control.status, len(entries), control.status == 200
    )
    findings.none(f"{backend}: another model that a worker saw", len(others), models)


async def sent(link: Link, data: bytes) -> Answer:
    """A connection that the gateway has closed meanwhile is opened anew."""
    try:
        return await link.send(data)
    except (OSError, asyncio.IncompleteReadError):
        return await link.send(data)
