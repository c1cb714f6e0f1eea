"""vLLM 0.33's answers, byte for byte: compact JSON in pydantic's field order.

A plain answer is a full dump with nulls. A stream dumps only the fields that vLLM sets, so its chunks carry explicit
nulls; the usage chunk carries none. Sources: vLLM 0.33's protocol.py and serving.py of both endpoints.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from tests.support.simulated import tokenizer
from tests.support.simulated.plan import Plan, Step
from tests.support.simulated.requests import Chat, Complete, Generate, Refused

FINGERPRINT = "vllm-0.33.0-51d5ca7e"
_encode = msgspec.json.encode


def text(value: object) -> str:
    """JSON, for most a string."""
    return _encode(value).decode()


def error(status: int, kind: str, message: str, param: str | None = None) -> bytes:
    """vLLM's error body."""
    return Refused(status, kind, message, param).body()


def token_text(token: int, as_id: bool | None) -> str:
    """How logprobs name a token."""
    return f"token_id:{token}" if as_id else tokenizer.piece(token)


def logprob(token: int) -> float:
    """An invented but fixed log probability of a sampled token: -0.01 to -0.97."""
    return -(token % 97 + 1) / 100


def rivals(token: int, count: int) -> list[tuple[int, float]]:
    """The sampled token and `count - 1` others that were less likely."""
    found = [(token, logprob(token))]
    for i in range(count - 1):
        other = tokenizer.token_id(" " + "".join(chr(97 + (token // 26**k + i) % 26) for k in range(3)))
        if other != token:
            found.append((other, round(logprob(token) - 0.5 * (i + 1), 2)))
    return found


class Meta(msgspec.Struct):
    """What all chunks of one reply share."""

    id: str
    created: int
    model: str
    prompt_tokens: int
    cached_tokens: int
    token_details: bool
    reasoning_details: bool


def usage(
    meta: Meta, plans: list[Plan], nulls: bool, done: int | None = None, forms: frozenset[str] = frozenset()
) -> str:
    """The usage object; `done` replaces the completion tokens (continuous usage)."""
    completion = sum([plan.tokens for plan in plans]) if done is None else done
    if "nan-usage" in forms:
        return '{"prompt_tokens":NaN,"total_tokens":Infinity,"completion_tokens":-1}'
    out = (
        f'{{"prompt_tokens":{meta.prompt_tokens},"total_tokens":{meta.prompt_tokens + completion},'
        f'"completion_tokens":{completion}'
    )
    if meta.token_details and done is None:
        out += f',"prompt_tokens_details":{{"cached_tokens":{meta.cached_tokens}}}'
    elif nulls:
        out += ',"prompt_tokens_details":null'
    if meta.reasoning_details:
        out += f',"completion_tokens_details":{{"reasoning_tokens":{sum([plan.reasoning_tokens for plan in plans])}}}'
    elif nulls:
        out += ',"completion_tokens_details":null'
    return out + "}"


class Stream(Protocol):
    """One reply as chunks, without framing."""

    plans: list[Plan]

    def opening(self) -> list[str]:
        """Chunks before the first token."""

    def chunk(self, index: int, at: int) -> str:
        """The chunk of one step of one choice."""

    def closing(self) -> list[str]:
        """Chunks after the last token."""

    def template(self, index: int) -> tuple[bytes, bytes] | None:
        """What stands before and after an invented word, when all its chunks differ in nothing else."""


class _Stream:
    kind = ""

    def __init__(self, request: Generate, meta: Meta, plans: list[Plan], forms: frozenset[str]) -> None:
        self.meta, self.plans, self.forms = meta, plans, forms
        options = request.stream_options
        self.usage = bool(options and options.include_usage) and "no-usage" not in forms
        self.continuous = self.usage and bool(options and options.continuous_usage_stats)
        self.token_ids = bool(request.return_token_ids)
        self.as_ids = request.return_tokens_as_token_ids
        self.done = [0] * len(plans)
        self.offsets = [0] * len(plans)
        self.whole: list[list[Step]] = [[] for _ in plans]
        self.head = f'{{"id":{text(meta.id)},"object":"{self.kind}","created":{meta.created},"model":{text(meta.model)}'

    def step(self, index: int, at: int) -> tuple[Step, bool]:
        """Step `at` of a choice, and whether it is the last."""
        plan = self.plans[index]
        steps = self.whole[index]
        if not steps and plan.length > plan.eos:
            steps = self.whole[index] = plan.whole()
        step = steps[at] if at < len(steps) else Step("content", "", [tokenizer.EOS])
        self.done[index] += len(step.ids)
        return step, at == plan.length - 1

    def tail(self, index: int, last: bool) -> str:
        """The end of a chunk, after its choices."""
        out = ""
        if self.continuous:
            out += f',"usage":{usage(self.meta, [], False, self.done[index])}'
        elif last and "usage-last" in self.forms and index == len(self.plans) - 1:
            out += f',"usage":{usage(self.meta, self.plans, False)}'
        if last and not self.usage:
            out += f',"system_fingerprint":"{FINGERPRINT}"'
        return out + "}"

    def closing(self) -> list[str]:
        if not self.usage or "usage-last" in self.forms:
            return []
        total = usage(self.meta, self.plans, False, None, self.forms)
        return [f'{self.head},"choices":[],"usage":{total},"system_fingerprint":"{FINGERPRINT}"}}']


def _ids(tokens: list[int] | None) -> str:
    return "null" if tokens is None else _encode(tokens).decode()


class ChatStream(_Stream):
    """Chunks of /v1/chat/completions."""

    kind = "chat.completion.chunk"

    def __init__(
        self, request: Chat, meta: Meta, plans: list[Plan], forms: frozenset[str], prompt: list[int] | None
    ) -> None:
        super().__init__(request, meta, plans, forms)
        self.logprobs = request.top_logprobs or 0 if request.logprobs else None
        self.prompt = prompt
        self.hidden = not request.include_reasoning

    def opening(self) -> list[str]:
        shown = f',"usage":{usage(self.meta, [], False, 0)}' if self.continuous else ""
        prompt = _ids(self.prompt)
        return [
            f'{self.head},"choices":[{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,'
            f'"finish_reason":null}}]{shown},"prompt_token_ids":{prompt},"prompt_text":null}}'
            for index in range(len(self.plans))
        ]

    def chunk(self, index: int, at: int) -> str:
        step, last = self.step(index, at)
        plan = self.plans[index]
        if step.kind == "content":
            delta = f'{{"content":{text(step.text)}}}'
        elif step.kind == "reasoning":
            delta = f'{{"reasoning":{text(step.text)}}}'
            if self.hidden:
                if not last:
                    return ""
                delta = "{}"
        elif step.kind == "call":
            delta = (
                f'{{"tool_calls":[{{"id":{text(step.call_id)},"type":"function","index":{step.call},'
                f'"function":{{"name":{text(step.name)}}}}}]}}'
            )
        else:
            delta = f'{{"tool_calls":[{{"index":{step.call},"function":{{"arguments":{text(step.text)}}}}}]}}'
        probs = "null" if self.logprobs is None else chat_logprobs(step.ids, self.logprobs, self.as_ids)
        ids = _ids(step.ids) if self.token_ids else "null"
        out = f'{self.head},"choices":[{{"index":{index},"delta":{delta},"logprobs":{probs},"finish_reason":'
        if last:
            out += f'"{plan.finish}","stop_reason":{_encode(plan.stop_reason).decode()}'
        else:
            out += "null"
        return f'{out},"token_ids":{ids},"weight_versions":null}}]{self.tail(index, last)}'

    def template(self, index: int) -> tuple[bytes, bytes] | None:
        if self.logprobs is not None or self.token_ids or self.continuous or not self.plans[index].words:
            return None
        before = f'{self.head},"choices":[{{"index":{index},"delta":{{"content":"'
        after = '"},"logprobs":null,"finish_reason":null,"token_ids":null,"weight_versions":null}]}'
        return before.encode(), after.encode()


class TextStream(_Stream):
    """Chunks of /v1/completions; `prompts` are echoed, `prompt_ids` returned, one for each choice."""

    kind = "text_completion"

    def __init__(
        self,
        request: Complete,
        meta: Meta,
        plans: list[Plan],
        forms: frozenset[str],
        prompts: list[str],
        prompt_ids: list[list[int]] | None,
    ) -> None:
        super().__init__(request, meta, plans, forms)
        self.logprobs = request.logprobs
        self.echo = bool(request.echo)
        self.prompts = prompts
        self.prompt_ids = prompt_ids

    def opening(self) -> list[str]:
        return []

    def chunk(self, index: int, at: int) -> str:
        step, last = self.step(index, at)
        plan = self.plans[index]
        said, ids = step.text, step.ids
        if self.echo and at == 0:
            said, ids = self.prompts[index] + said, tokenizer.encode(self.prompts[index]) + ids
        probs = "null"
        if self.logprobs is not None:
            probs = text_logprobs(ids, self.logprobs, self.as_ids, self.offsets[index])
        self.offsets[index] += len(said)
        prompt = _ids(self.prompt_ids[index]) if self.prompt_ids is not None and at == 0 else "null"
        finish = f'"{plan.finish}"' if last else "null"
        return (
            f'{self.head},"choices":[{{"index":{index},"text":{text(said)},"logprobs":{probs},"finish_reason":{finish},'
            f'"stop_reason":{_encode(plan.stop_reason).decode() if last else "null"},"prompt_token_ids":{prompt},'
            f'"token_ids":{_ids(step.ids) if self.token_ids else "null"},"weight_versions":null}}]'
            f"{self.tail(index, last)}"
        )

    def template(self, index: int) -> tuple[bytes, bytes] | None:
        if self.logprobs is not None or self.token_ids or self.continuous or self.echo or not self.plans[index].words:
            return None
        before = f'{self.head},"choices":[{{"index":{index},"text":"'
        after = (
            '","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null,'
            '"weight_versions":null}]}'
        )
        return before.encode(), after.encode()


def chat_logprobs(ids: list[int], top: int, as_ids: bool | None) -> str:
    """Chat logprobs of these tokens, each with the `top` likeliest."""

    def entry(token: int, value: float) -> dict[str, Any]:
        name = token_text(token, as_ids)
        return {"token": name, "logprob": value, "bytes": list(name.encode())}

    content = [
        {**entry(token, logprob(token)), "top_logprobs": [entry(*rival) for rival in rivals(token, top)[:top]]}
        for token in ids
    ]
    return _encode({"content": content}).decode()


def text_logprobs(ids: list[int], top: int, as_ids: bool | None, offset: int) -> str:
    """Completion logprobs of these tokens; `top_logprobs` holds the sampled token besides the `top` likeliest."""
    names = [token_text(token, as_ids) for token in ids]
    offsets = []
    for name in names:
        offsets.append(offset)
        offset += len(name)
    best = [{token_text(rival, as_ids): value for rival, value in rivals(token, top + 1)} for token in ids]
    body = {
        "text_offset": offsets,
        "token_logprobs": [logprob(token) for token in ids],
        "tokens": names,
        "top_logprobs": best,
    }
    return _encode(body).decode()


def begun(meta: Meta, kind: str, rest: str) -> bytes:
    """A whole body from its part that starts with `choices`."""
    head = f'{{"id":{text(meta.id)},"object":"{kind}","created":{meta.created},"model":{text(meta.model)},'
    return (head + rest).encode()


def chat_plain(
    request: Chat, meta: Meta, plans: list[Plan], forms: frozenset[str], prompt: list[int] | None, kv: Any = None
) -> str:
    """The body of a plain chat reply, from `choices` on."""
    named = request.tool_choice not in (msgspec.UNSET, None, "none", "auto")
    choices = []
    for index, plan in enumerate(plans):
        ids = _ids(plan.ids()) if request.return_token_ids else "null"
        probs = (
            chat_logprobs(plan.ids(), request.top_logprobs or 0, request.return_tokens_as_token_ids)
            if (request.logprobs)
            else "null"
        )
        calls = ""
        if plan.calls:
            made = [
                {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
                for call_id, name, arguments in plan.calls
            ]
            calls = f'"tool_calls":{_encode(made).decode()},'
        content = text(plan.text) if plan.text or not (plan.calls or plan.reasoning) or named else "null"
        thought = text(plan.reasoning) if plan.reasoning and request.include_reasoning else "null"
        choices.append(
            f'{{"index":{index},"message":{{"role":"assistant","content":{content},"refusal":null,"annotations":null,'
            f'"audio":null,"function_call":null,{calls}"reasoning":{thought}}},"logprobs":{probs},'
            f'"finish_reason":"{plan.finish}","stop_reason":{_encode(plan.stop_reason).decode()},"token_ids":{ids},'
            '"routed_experts":null,"weight_versions":null}'
        )
    return (
        f'"choices":[{",".join(choices)}],"service_tier":null,"system_fingerprint":"{FINGERPRINT}",'
        f'"usage":{usage(meta, plans, True, None, forms)},"prompt_logprobs":null,"prompt_token_ids":{_ids(prompt)},'
        f'"prompt_text":null,"kv_transfer_params":{_encode(kv).decode()},"ec_transfer_params":null,"metrics":null}}'
    )


def text_plain(
    request: Complete,
    meta: Meta,
    plans: list[Plan],
    forms: frozenset[str],
    prompts: list[str],
    prompt_ids: list[list[int]] | None,
    kv: Any = None,
) -> str:
    """The body of a plain text completion, from `choices` on."""
    choices = []
    for index, plan in enumerate(plans):
        said, ids = plan.text, plan.ids() if request.return_token_ids or request.logprobs is not None else []
        shown = ids
        if request.echo:
            said = prompts[index] + said
            shown = tokenizer.encode(prompts[index]) + ids
        probs = "null"
        if request.logprobs is not None:
            probs = text_logprobs(shown, request.logprobs, request.return_tokens_as_token_ids, 0)
        choices.append(
            f'{{"index":{index},"text":{text(said)},"logprobs":{probs},"finish_reason":"{plan.finish}",'
            f'"stop_reason":{_encode(plan.stop_reason).decode()},'
            f'"token_ids":{_ids(ids) if request.return_token_ids else "null"},"prompt_logprobs":null,'
            f'"prompt_token_ids":{_ids(prompt_ids[index]) if prompt_ids is not None else "null"},"routed_experts":null,'
            '"weight_versions":null}'
        )
    return (
        f'"choices":[{",".join(choices)}],"service_tier":null,"system_fingerprint":"{FINGERPRINT}",'
        f'"usage":{usage(meta, plans, True, None, forms)},"kv_transfer_params":{_encode(kv).decode()},'
        '"ec_transfer_params":null,"metrics":null}'
    )
