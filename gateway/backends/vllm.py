"""Backend for vLLM's OpenAI server (0.10.2 to 0.33): only what differs from `openai`.

Sources: vLLM 0.33.0 `entrypoints/openai/protocol.py` and `serving_*.py`.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from gateway.backends.openai import OpenAI, unsupported
from gateway.core.messages import Chat, Complete, Embed, Output, Sampling


class Vllm(OpenAI):
    name = "vllm"

    def adjust(self, body: dict[str, Any], op: Chat | Complete | Embed) -> None:
        """vLLM answers 400 to `tools: []`, and to `tool_choice` or `parallel_tool_calls` without tools; clients send
        both (ollama, friendli-client)."""
        tools = body.get("tools")
        if not tools or (isinstance(tools, Raw) and bytes(tools).translate(None, b" \t\r\n") == b"[]"):
            body.pop("tools", None)
            body.pop("tool_choice", None)
            body.pop("parallel_tool_calls", None)
        if not op.stream:
            body.pop("stream_options", None)

    def compose_completion(self, body: dict[str, Any], op: Complete) -> None:
        if op.beams is None:
            super().compose_completion(body, op)
            return
        if op.beams.early_stopping:
            raise unsupported("early_stopping", self.name)
        body["use_beam_search"] = True
        body["n"] = op.beams.width
        if op.beams.length_penalty is not None:
            body["length_penalty"] = op.beams.length_penalty

    def compose_sampling(self, body: dict[str, Any], sampling: Sampling) -> None:
        for name in (
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "seed",
            "frequency_penalty",
            "presence_penalty",
            "repetition_penalty",
            "min_tokens",
            "ignore_eos",
        ):
            value = getattr(sampling, name)
            if value is not None:
                body[name] = value
        stops = (*sampling.stop_tokens, *sampling.eos_tokens)
        if stops:
            body["stop_token_ids"] = list(dict.fromkeys(stops))
        if sampling.bad_words:
            body["bad_words"] = sampling.bad_words
        bias = {str(token): value for token, value in (sampling.logit_bias or {}).items()}
        for sequence in sampling.bad_tokens:
            if len(sequence) != 1:
                raise unsupported("bad_word_tokens", self.name)
            bias[str(sequence[0])] = -100.0
        if bias:
            body["logit_bias"] = bias
        if sampling.no_repeat_ngram is not None and sampling.no_repeat_ngram > 1:
            raise unsupported("no_repeat_ngram", self.name)

    def compose_output(self, body: dict[str, Any], output: Output) -> None:
        """`response_format` has no regex, choice or grammar type; `structured_outputs` (since 0.12) has all."""
        if output.kind == "regex":
            body["structured_outputs"] = {"regex": output.pattern}
        elif output.kind == "grammar":
            body["structured_outputs"] = {"grammar": output.pattern}
        elif output.kind == "choice":
            body["structured_outputs"] = {"choice": output.choices}
        else:
            super().compose_output(body, output)

    def compose_tokens(self, body: dict[str, Any]) -> None:
        body["return_token_ids"] = True
