"""The field table: the handling of each field that a Friendli client can send. The names are those of friendli-client's
`V1CompletionsRequest`; see `gateway.dialects.friendli`."""

from __future__ import annotations

from gateway.core.fields import WORDS, Example, Examples, Field, Tables, model_row, renamed, rows
from gateway.wire.openai.requests.fields import LOGPROBS, TOOLS, mapped, stream_options

TEAM = Field("X-Friendli-Team", "ignored", "team", "header; a key belongs to one team", where="header")
TIMEOUT = Field("timeout_microseconds", "emulated", 60_000_000, "429 before the first byte, else an error event")
_MODEL = model_row("names the pool; null is the default model")
_BEAMS = {"num_beams": 4}
_TOTAL = "less the prompt's length; for a text the worker is asked for it first; 400 with max_tokens"
_NGRAM = "unless 0 or 1: vLLM has none; mapped where its workers run our logits processor"
_ENCODER = "unless 1: only for encoder-decoder models, of which none is served"
_WORDS = "entries of one id; longer ones 422, mapped where the workers run our logits processor"
_ENDS = "the ids of all entries: any one of them ends the choice"
_SEARCH = "DETERMINISTIC only, else 422; ignored without num_beams, as specified"
_STOPPING = "unless false: vLLM has none; 400 without num_beams"
_FORMAT = "response_format or structured_outputs"
_JSON = {"type": "json_object"}
_UNKNOWN = "in no specification, only in friendli-client"

FIELDS: Tables = {
    "complete": (
        TEAM,
        *mapped("prompt", note="exactly one of prompt and tokens, else 400"),
        Field("tokens", "renamed", [1, 2, 3], "token ids", "prompt", beside={"prompt": None}),
        _MODEL,
        *mapped("stream", note="400 with num_beams"),
        TIMEOUT,
        *mapped("max_tokens", note="absent: as many as the context holds, sent explicitly"),
        Field("max_total_tokens", "emulated", 32, _TOTAL, "max_tokens"),
        *mapped("min_tokens"),
        Field("min_total_tokens", "emulated", 8, "as max_total_tokens; 400 with min_tokens", "min_tokens"),
        *mapped("n", note="400 with num_beams unless 1"),
        renamed("num_beams", "use_beam_search, n", 4, "1 to 31; the best beam is the one choice"),
        Field("length_penalty", "mapped", 1.5, "with num_beams, else 400 unless 1", beside=_BEAMS),
        Field("early_stopping", "refused", True, _STOPPING, beside=_BEAMS),
        Field("no_repeat_ngram", "refused", 3, _NGRAM),
        Field("encoder_no_repeat_ngram", "refused", 3, _ENCODER),
        *mapped("repetition_penalty", note="at least 1"),
        Field("encoder_repetition_penalty", "refused", 1.1, _ENCODER),
        *mapped("frequency_penalty", "presence_penalty"),
        *mapped("temperature", note="1 is sent when absent"),
        *mapped("top_k", note="0, no filter, is sent when absent"),
        *mapped("top_p", note="1 is sent when absent"),
        *mapped("stop", note="400 with num_beams"),
        renamed("stop_tokens", "stop_token_ids", [{"tokens": [7]}], _ENDS),
        Field("seed", "mapped", 42, "drawn when absent; each run of a list that rises by one is a request"),
        *rows("refused", "unless empty", token_index_to_replace=[0], embedding_to_replace=[0.5]),
        Field("beam_search_type", "consumed", "DETERMINISTIC", _SEARCH, beside=_BEAMS, probe="STOCHASTIC"),
        Field("bad_words", "mapped", ["x"]),
        renamed("bad_word_tokens", "logit_bias", [{"tokens": [5]}], _WORDS),
        Field("include_output_logits", "refused", True, "unless false"),
        renamed("include_output_logprobs", "logprobs", True, "answered in choices[].logprobs"),
        renamed("eos_token", "stop_token_ids", [2], "beside the model's own"),
        renamed("response_format", _FORMAT, _JSON, "text, json_object with or without schema, regex"),
        *rows("refused", _UNKNOWN, beam_compat_pre_normalization=True, beam_compat_no_post_normalization=True),
        *rows("refused", _UNKNOWN, forced_output_tokens=[1], soft_prompts=[0.5], position_ids=[0], generation_offset=1),
    ),
    "chat": (
        TEAM,
        *mapped("messages"),
        _MODEL,
        *mapped("stream"),
        stream_options("the usage chunk comes only if it is asked for here"),
        *mapped("frequency_penalty", "presence_penalty"),
        *mapped("repetition_penalty", note="at least 1"),
        *mapped("max_tokens"),
        *mapped("min_tokens", note="400 above max_tokens"),
        *mapped("n", "stop"),
        *mapped("seed", note="one number"),
        *mapped("temperature", "top_p", note="1 is sent when absent"),
        *mapped("top_k", note="0, no filter, is sent when absent"),
        *mapped("logit_bias"),
        *LOGPROBS,
        TIMEOUT,
        *TOOLS,
        renamed("response_format", _FORMAT, _JSON, "as for text completions, and json_schema as OpenAI has it"),
    ),
}
EXAMPLES: Examples = {
    "complete": (
        Example("complete", {"prompt": WORDS}, ends=b'"complete"'),
        Example("chunks", {"prompt": WORDS}, ends=b"data: [DONE]"),
    ),
    "chat": (Example("chat", {"messages": [{"role": "user", "content": WORDS}]}, ends=b"data: [DONE]"),),
}
NEVER = tuple(field.name for field in FIELDS["complete"] if field.note is _UNKNOWN)
