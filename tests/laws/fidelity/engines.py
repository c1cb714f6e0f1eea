"""The top-level members that each engine reads of each of its paths; others it accepts and passes over in silence.

Sources: vLLM 0.32.0, the request classes behind these paths (`tests/acceptance/engine/test_fields.py` compares them
with the installed ones); llama.cpp's `tools/server` (`params_from_json_cmpl`, `oaicompat_chat_params_parse`), and what
xllamacpp 2026.10.11549 was measured to do (`tests/acceptance/e2e/test_fields.py`); TGI 3.3's `ChatRequest`,
`GenerateRequest` and `GenerateParameters`. A remote server of OpenAI's wire (the backend `openai`) reads what it will:
nobody can know.
"""

from __future__ import annotations

from collections.abc import Mapping


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_VLLM_COMMON = _names("""
    add_special_tokens allowed_token_ids bad_words cache_salt ec_transfer_params echo frequency_penalty ignore_eos
    include_stop_str_in_output kv_transfer_params length_penalty logit_bias logprob_token_ids logprobs max_tokens min_p
    min_tokens model n presence_penalty priority prompt_logprobs repetition_detection repetition_penalty
    request_id response_format return_mm_kwargs return_token_ids return_token_offsets return_tokens_as_token_ids
    routed_experts_prompt_start seed session_id skip_special_tokens spaces_between_special_tokens stop stop_token_ids
    stream stream_interval stream_options structured_outputs temperature thinking_token_budget top_k top_p
    truncate_prompt_tokens truncation_side use_beam_search user vllm_xargs watermarking
""")
# Until 0.12.
_VLLM_BEFORE = _names("guided_choice guided_grammar guided_json guided_regex logits_processors")
_VLLM_CHAT = _names("""
    add_generation_prompt chat_template chat_template_kwargs continue_final_message documents include_reasoning
    max_completion_tokens media_io_kwargs messages mm_processor_kwargs parallel_tool_calls reasoning_effort
    return_prompt_text tool_choice tools top_logprobs
""")
_VLLM_POOLING = _names("""
    cache_salt mm_processor_kwargs model padding priority request_id truncate_prompt_tokens truncation_side
    use_activation user
""")
_VLLM_SCORES = _names("chat_template_kwargs documents instruction max_tokens_per_doc max_tokens_per_query")
# Of all tasks of llama.cpp's server. `grammar` and its companions reach it from chats too.
_LLAMACPP = _names("""
    cache_prompt frequency_penalty grammar ignore_eos json_schema logit_bias max_tokens min_p n n_predict n_probs
    presence_penalty repeat_last_n repeat_penalty response_fields return_tokens seed stop stream stream_options
    temperature top_k top_p verbose
""")
_LLAMACPP_CHAT = _names("""
    add_generation_prompt chat_template_kwargs continue_final_message logprobs messages model parallel_tool_calls
    reasoning_effort response_format tool_choice tools top_logprobs
""")
_TGI_CHAT = _names("""
    frequency_penalty logprobs max_tokens messages model response_format seed stop stream stream_options temperature
    tool_choice tools top_logprobs top_p
""")
_TGI_TEXT = _names("""
    best_of decoder_input_details details do_sample frequency_penalty grammar inputs max_new_tokens repetition_penalty
    return_full_text seed stop temperature top_k top_n_tokens top_p truncate typical_p watermark adapter_id
""")

READ: Mapping[str, Mapping[str, frozenset[str]]] = {
    "vllm": {
        "/v1/chat/completions": _VLLM_COMMON | _VLLM_BEFORE | _VLLM_CHAT,
        "/v1/completions": _VLLM_COMMON | _VLLM_BEFORE | _names("mm_payload prompt prompt_embeds suffix"),
        "/v1/embeddings": _VLLM_POOLING | _names("add_special_tokens dimensions encoding_format input"),
        "/v1/rerank": _VLLM_POOLING | _VLLM_SCORES | {"query"},
        "/v1/score": _VLLM_POOLING | _VLLM_SCORES | _names("text_1 text_2"),
    },
    "llamacpp": {
        "/v1/chat/completions": _LLAMACPP | _LLAMACPP_CHAT,
        "/completion": _LLAMACPP | {"prompt"},
        "/v1/embeddings": _names("embd_normalize encoding_format input model"),
        "/v1/rerank": _names("documents model query top_n"),
    },
    "tgi": {
        "/v1/chat/completions": _TGI_CHAT,
        "/generate": _TGI_TEXT,
        "/generate_stream": _TGI_TEXT,
    },
}
"""By backend and path. Paths that are not here answer questions, and need no model."""

EVERY: Mapping[str, object] = {
    "add_generation_prompt": False,
    "add_special_tokens": False,
    "allowed_token_ids": [5],
    "audio": {"voice": "alloy", "format": "wav"},
    "bad_words": ["x"],
    "best_of": 2,
    "cache_salt": "salt",
    "chat_template": "{{ messages }}",
    "chat_template_kwargs": {"enable_thinking": False},
    "continue_final_message": True,
    "detokenize": False,
    "dimensions": 8,
    "documents": [{"text": "d"}],
    "ec_transfer_params": {"k": "v"},
    "echo": True,
    "frequency_penalty": 0.5,
    "guided_choice": ["a"],
    "guided_grammar": "root ::= x",
    "guided_json": {"type": "object"},
    "guided_regex": "a+",
    "ignore_eos": True,
    "include_reasoning": False,
    "include_stop_str_in_output": True,
    "kv_transfer_params": {"k": "v"},
    "length_penalty": 2.0,
    "logit_bias": {"5": 1},
    "logits_processors": ["x"],
    "logprob_token_ids": [5],
    "media_io_kwargs": {"video": {"num_frames": 3}},
    "max_completion_tokens": 5,
    "max_tokens": 5,
    "metadata": {"k": "v"},
    "min_p": 0.1,
    "min_tokens": 2,
    "mm_payload": {"k": "v"},
    "mm_processor_kwargs": {"k": "v"},
    "modalities": ["text", "audio"],
    "moderation": {},
    "n": 2,
    "padding": True,
    "parallel_tool_calls": False,
    "prediction": {"type": "content", "content": "x"},
    "presence_penalty": 0.5,
    "priority": 3,
    "prompt_cache_options": {"k": "v"},
    "prompt_cache_retention": "24h",
    "prompt_embeds": "AAAA",
    "prompt_logprobs": 1,
    "reasoning_effort": "low",
    "repetition_detection": {"k": 1},
    "repetition_penalty": 1.2,
    "request_id": "mine",
    "response_format": {"type": "json_object"},
    "return_mm_kwargs": True,
    "return_prompt_text": True,
    "return_token_ids": True,
    "return_token_offsets": True,
    "return_tokens_as_token_ids": True,
    "routed_experts_prompt_start": 1,
    "safety_identifier": "s",
    "seed": 7,
    "service_tier": "flex",
    "session_id": "mine",
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "stop": ["END"],
    "stop_token_ids": [5],
    "store": True,
    "stream_interval": 3,
    "structured_outputs": {"regex": "a+"},
    "suffix": "x",
    "temperature": 0.5,
    "thinking_token_budget": 5,
    "tool_choice": "auto",
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "top_k": 5,
    "top_logprobs": 2,
    "top_p": 0.5,
    "truncate_prompt_tokens": 5,
    "truncation_side": "left",
    "use_beam_search": True,
    "user": "u",
    "verbosity": "low",
    "vllm_xargs": {"k": 1},
    "watermarking": True,
    "web_search_options": {},
}
"""Every member of OpenAI's and vLLM's requests that asks for something, with a value that does."""
