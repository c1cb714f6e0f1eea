"""Backend for vLLM's OpenAI server (0.10.2 to 0.33): the differences from `openai`.

Sources: vLLM 0.33.0 `entrypoints/openai/protocol.py` and `serving_*.py`.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hmac import digest
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from gateway.backends.vllm.handover import KvTransfer
from gateway.core.http import Request
from gateway.core.lifecycle import Detokenized, TokenCount, Tokens
from gateway.core.messages import (
    Chat,
    Complete,
    Detokenize,
    Embed,
    Generate,
    Media,
    Message,
    Output,
    Sampling,
    Score,
    Tokenize,
)
from gateway.core.ports import Ask, Capabilities, Gauges, Partial, Resumption
from gateway.wire.json import encode
from gateway.wire.openai.backend import OpenAIBackend, Written
from gateway.wire.openai.media import requests as media
from gateway.wire.openai.media.fields import IDLE, REFUSED
from gateway.wire.openai.replies import views as wire
from gateway.wire.openai.requests.resuming import append_to_chat, resumed
from gateway.wire.openai.requests.unsupported import (
    OPENAI_IDLE,
    OPENAI_MEMBERS,
    Unread,
    no_token_ids,
    refuse_given,
    refuse_sampling,
    unsupported,
)
from gateway.wire.openai.requests.writing import PATHS, ParameterWriter, outgoing, prompt_of
from gateway.wire.openai.scores import RERANK, SCORE, pairs_body, rerank_body
from gateway.wire.openai.tokens import read_text, read_tokens, with_spans

# More tokens than any context has.
_MOST_TOKENS = 2**31 - 1


class _CountIn(Struct):
    count: wire.Count


_count = msgspec.json.Decoder(_CountIn)


NAME = "vllm"


_UNREAD = Unread({**OPENAI_MEMBERS, "detokenize": (True,)}, OPENAI_IDLE, NAME)


class _Parameters(ParameterWriter):
    """vLLM's names for what OpenAI's wire does not define."""

    passed = (*ParameterWriter.passed, "top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos")
    neutral = {"no_repeat_ngram": (0, 1)}

    def completion(self, body: dict[str, Any], op: Complete, can: Capabilities) -> None:
        if op.max_output is None:
            body["max_tokens"] = _rest(op, can)
        if op.beams is None:
            super().completion(body, op, can)
            return
        if op.beams.early_stopping:
            raise unsupported("early_stopping", NAME)
        _refuse_with_beams(op)
        body["use_beam_search"] = True
        body["n"] = op.beams.width
        if op.beams.length_penalty is not None:
            body["length_penalty"] = op.beams.length_penalty

    def sampling(self, body: dict[str, Any], sampling: Sampling) -> None:
        super().sampling(body, sampling)
        stops = (*sampling.stop_tokens, *sampling.eos_tokens)
        if stops:
            body["stop_token_ids"] = list(dict.fromkeys(stops))
        if sampling.bad_words:
            body["bad_words"] = sampling.bad_words
        for sequence in sampling.bad_tokens:
            if len(sequence) != 1:
                raise unsupported("bad_word_tokens", NAME)
            body.setdefault("logit_bias", {})[str(sequence[0])] = -100.0

    def output(self, body: dict[str, Any], output: Output) -> None:
        """`response_format` has no regex, choice or grammar type; `structured_outputs` (since 0.12) has all."""
        if output.kind == "regex":
            body["structured_outputs"] = {"regex": output.pattern}
        elif output.kind == "grammar":
            body["structured_outputs"] = {"grammar": output.pattern}
        elif output.kind == "choice":
            body["structured_outputs"] = {"choice": output.choices}
        else:
            super().output(body, output)

    def message(self, message: Message) -> dict[str, Any]:
        """Thinking under both of its names: `reasoning` since vLLM 0.16, `reasoning_content` before."""
        written = super().message(message)
        if "reasoning_content" in written:
            written.setdefault("reasoning", written["reasoning_content"])
        return written

    def continuation(self, body: dict[str, Any], op: Chat) -> None:
        body["continue_final_message"] = True
        body["add_generation_prompt"] = False

    def truncation(self, body: dict[str, Any]) -> None:
        body["truncate_prompt_tokens"] = -1

    def tokens(self, body: dict[str, Any]) -> None:
        body["return_token_ids"] = True


_PARAMETERS = _Parameters(NAME)


class Vllm(OpenAIBackend):
    name = NAME
    salts = True
    bounds_texts = True
    gauges = Gauges(
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:prompt_tokens_total",
        "vllm:prefix_cache_hits_total",
        "vllm:generation_tokens_total",
        "num_requests_waiting",
        # Tokens count when a step has an output. The chunks of a long prompt have none, and take blocks of the cache.
        progress=(
            "vllm:prompt_tokens_total",
            "vllm:generation_tokens_total",
            "vllm:kv_cache_usage_perc",
            "vllm:gpu_cache_usage_perc",  # its name in older engines
            "vllm:prefix_cache_queries_total",
        ),
    )
    handover = KvTransfer()
    adapters = True
    cache_events = True
    tasks = {"chat": PATHS[Chat], "completions": PATHS[Complete], "embeddings": PATHS[Embed], "scores": RERANK}

    def _media(self, op: Media, can: Capabilities) -> Request:
        return media.written(op, can, NAME, refused=REFUSED, idle=IDLE)

    def _written(self, op: Chat | Complete | Embed | Score, can: Capabilities) -> Written:
        dropped: tuple[str, ...] = ()
        if type(op) is Score:
            # Scores of several queries have a path of their own. Reranking has members that it lacks in older versions.
            alone = len(op.queries) == 1
            path, body = (RERANK, rerank_body(op, can, NAME)) if alone else (SCORE, pairs_body(op, can))
        else:
            if type(op) is not Embed:
                if can.version:
                    _refuse_for_age(op, can.version)
                if op.raw is None or op.wire != "openai":
                    op = _with_processors(op, can)
            path = PATHS[type(op)]
            body, dropped = outgoing(op, can, _PARAMETERS)
        if not _LOOKED_AT[type(op)].isdisjoint(body):  # else nothing of it is left out or changed, as of most requests
            dropped += _UNREAD.leave_out(body, op) + _adjust(body, op)
            if not _GUIDED.keys().isdisjoint(body):
                _rename_guided(body, can.version)
        if op.salt is not None:
            own = body.get("cache_salt")
            body["cache_salt"] = op.salt if own is None else _within(op.salt, own)
        return Written(path, body, dropped)

    def resume(self, request: Request, partial: Partial) -> Resumption | str:
        if request.path != PATHS[Chat]:
            return super().resume(request, partial)
        return resumed(request, partial, append_to_chat, trim=True)

    def count(self, op: Generate, can: Capabilities) -> Ask[TokenCount]:
        body: dict[str, Any] = {"model": can.upstream_model}
        if isinstance(op, Chat):
            body |= prompt_of(op, can, _PARAMETERS)
        else:
            (body["prompt"],) = op.prompts
        name = "chat_template_kwargs" if isinstance(op, Chat) else "add_special_tokens"
        if name in op.extra:
            body[name] = op.extra[name]
        return self._ask(op, "/tokenize", body, lambda answer: TokenCount(_count.decode(answer).count))

    def tokenize(self, op: Tokenize | Detokenize, can: Capabilities) -> Ask[Tokens | Detokenized]:
        body: dict[str, Any] = {"model": can.upstream_model}
        if isinstance(op, Detokenize):
            return self._ask(op, "/detokenize", {**body, "tokens": op.tokens}, read_text)
        body |= prompt_of(op.prompt, can, _PARAMETERS) if isinstance(op.prompt, Chat) else {"prompt": op.prompt}
        body["add_special_tokens"] = op.special
        if op.texts or op.spans:
            body["return_token_strs"] = True
        return self._ask(op, "/tokenize", body, lambda answer: with_spans(read_tokens(answer), op, NAME))


def _adjust(body: dict[str, Any], op: Chat | Complete | Embed | Score) -> tuple[str, ...]:
    """Removes members that vLLM answers with 400 and clients (ollama, friendli-client) do send: `tools: []`, and
    `tool_choice` or `parallel_tool_calls` without tools. Returns the names of others that are left out: `request_id`
    loses against the header X-Request-Id, which every request to a worker has."""
    tools = body.get("tools")
    if not tools or (isinstance(tools, Raw) and bytes(tools).translate(None, b" \t\r\n") == b"[]"):
        body.pop("tools", None)
        body.pop("tool_choice", None)
        body.pop("parallel_tool_calls", None)
    if not op.stream:
        body.pop("stream_options", None)
    elif type(op) is Chat and op.early_usage:
        body["stream_options"]["continuous_usage_stats"] = True
    return ("request_id",) if body.pop("request_id", None) is not None else ()


# Members of vLLM before 0.12 -> the members of `structured_outputs`, which replaced them. Later versions ignore them.
_GUIDED = {"guided_choice": "choice", "guided_grammar": "grammar", "guided_json": "json", "guided_regex": "regex"}
# Operation -> the members that `_written` may change or leave out.
_LOOKED_AT = {
    operation: names | {"tools", "tool_choice", "parallel_tool_calls", "stream_options", "request_id", *_GUIDED}
    for operation, names in _UNREAD.looked_at.items()
}


def _rename_guided(body: dict[str, Any], version: tuple[int, ...]) -> None:
    """Gives a constraint the name that a worker of this version reads; both names if the version is unknown. Raises
    GatewayError(UNSUPPORTED) for a second constraint."""
    given = [name for name in _GUIDED if name in body]
    if version and version < (0, 12):
        return
    if len(given) > 1 or "structured_outputs" in body:
        raise unsupported(given[-1], NAME, "it must be the only constraint")
    name = given[0]
    body["structured_outputs"] = {_GUIDED[name]: body[name]}
    if version:
        del body[name]


# Parameters that vLLM's beam search silently ignores -> the values that change nothing.
_NEUTRAL_TO_BEAMS: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_tokens": (0,),
    "min_p": (0,),
    "top_k": (0,),
    "top_p": (1,),
    **dict.fromkeys(("logit_bias", "stop_tokens", "eos_tokens", "bad_words", "bad_tokens"), ()),
}


def _refuse_with_beams(op: Complete) -> None:
    """Raises GatewayError(UNSUPPORTED) for parameters that vLLM's beam search would silently ignore: all but
    temperature, length_penalty, max_tokens and ignore_eos."""
    refuse_sampling(op.sampling, _NEUTRAL_TO_BEAMS, NAME)
    given = {
        "stop": bool(op.stop),
        "response_format": op.output is not None and op.output.kind != "text",
        "logprobs": op.logprobs is not None,
    }
    refuse_given(given, NAME)


def _within(salt: str, own: Raw) -> str:
    """Combines a client's own cache salt with its team's, so that it can divide its team's cache but never read
    another team's."""
    return urlsafe_b64encode(digest(salt.encode(), bytes(own), "sha256")).rstrip(b"=").decode()


def _refuse_for_age(op: Chat | Complete, version: tuple[int, ...]) -> None:
    """Raises GatewayError(UNSUPPORTED) for parameters that this version of vLLM silently ignores."""
    if op.want_tokens and version < (0, 10, 2):
        raise no_token_ids(f"vllm {_dotted(version)}")
    if op.output is not None and op.output.kind in ("regex", "grammar", "choice") and version < (0, 12):
        raise unsupported("response_format", f"vllm {_dotted(version)}")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _with_processors(op: Chat | Complete, can: Capabilities) -> Chat | Complete:
    """`op` with some parameters renamed for our logits processor (workers/vllm/processors.py), if the workers have it.
    Otherwise the parameters stay and are refused later."""
    sampling = op.sampling
    if type(op) is Complete and op.beams is not None:  # vLLM's beam search ignores logits processors
        return op
    ours: dict[str, Any] = {}
    if (sampling.no_repeat_ngram or 0) > 1 and "no_repeat_ngram" in can.beyond:
        ours["no_repeat_ngram"] = sampling.no_repeat_ngram
        sampling = replace(sampling, no_repeat_ngram=None)
    several = [sequence for sequence in sampling.bad_tokens if len(sequence) != 1]
    if several and "bad_word_tokens" in can.beyond:
        ours["bad_word_tokens"] = ";".join(" ".join(map(str, sequence)) for sequence in several)
        single = tuple(sequence for sequence in sampling.bad_tokens if len(sequence) == 1)
        sampling = replace(sampling, bad_tokens=single)
    if not ours:
        return op
    given = op.extra.get("vllm_xargs")
    theirs = msgspec.json.decode(given, type=dict[str, Any] | None) if given is not None else None
    return replace(op, sampling=sampling, extra={**op.extra, "vllm_xargs": Raw(encode({**(theirs or {}), **ours}))})


def _rest(op: Complete, can: Capabilities) -> int:
    """max_tokens for "as many as fit". vLLM's text completions have no value for that: absent and null mean 16.
    vLLM 0.11 and later shorten a value that is too large. For earlier versions an exact value needs a prompt of token
    ids and a known context length."""
    if can.max_context is None:
        return _MOST_TOKENS
    longest = max((0 if isinstance(prompt, str) else len(prompt) for prompt in op.prompts), default=0)
    return max(1, can.max_context - longest)
