"""The field tables of OpenAI's audio and images, and the smallest requests.

Sources: openai-python 3.54 (`resources/audio`, `resources/images`); vLLM 0.33's `entrypoints/speech_to_text`, whose
server has no other of these paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from gateway.core.fields import WORDS, Example, Examples, Field, Tables, model_row, rows
from gateway.core.messages import Work

PATHS: Mapping[Work, str] = {
    "transcribe": "/v1/audio/transcriptions",
    "translate": "/v1/audio/translations",
    "speak": "/v1/audio/speech",
    "draw": "/v1/images/generations",
    "edit": "/v1/images/edits",
    "vary": "/v1/images/variations",
}
"""Operation -> the worker's path. A client's begins in the same way."""
FORMS: Mapping[Work, tuple[str, ...]] = {
    "transcribe": ("file",),
    "translate": ("file",),
    "edit": ("image", "mask", "markup"),
    "vary": ("image",),
}
"""Operation with an upload -> the names of its files, the one that it needs first."""
REFUSED = frozenset({"include", "known_speaker_names", "known_speaker_references"})
"""Texts of an upload that ask for another reply, which vLLM reads none of."""
IDLE = frozenset({"chunking_strategy", "keywords", "languages"})
"""Those that vLLM reads neither, and that its reply does not show."""
MANY = frozenset({"timestamp_granularities"}) | REFUSED | IDLE
"""Texts of an upload that are lists or objects: `name[]`, `name[of an object]`, and more than once."""
_UNREAD = "vLLM does not read it; other servers get it"
_mapped = partial(rows, "mapped", "")
_MODEL = model_row("names the pool; anywhere in an upload")
_STREAM = Field("stream", "mapped", True, "a reply of events, if the worker streams")
_FILE = Field("file", "mapped", "other", "passed on from where it was put", where="file")
_VLLM = _mapped(
    seed=7, top_p=0.9, top_k=5, min_p=0.1, frequency_penalty=0.5, repetition_penalty=1.1, presence_penalty=0.5,
    max_completion_tokens=16, hotwords="Dragoman", to_language="en", vllm_xargs='{"a": 1}', n=2, use_beam_search=True,
    length_penalty=1.5, include_stop_str_in_output=True, watermarking=True, stream_include_usage=True,
    stream_continuous_usage_stats=True,
)  # fmt: skip
_IMAGES = _mapped(
    n=2, size="512x512", response_format="b64_json", user="user-1", quality="low", background="opaque",
    output_format="png", output_compression=50, partial_images=1, safety_identifier="s", complexity="low",
    frame_count=2, frame_duration_ms=100, svg="{}",
)  # fmt: skip
FIELDS: Tables = {
    "transcribe": (
        _FILE,
        _MODEL,
        *_mapped(language="en", prompt="hi", response_format="verbose_json", temperature=0.5),
        *_mapped(timestamp_granularities="word"),
        _STREAM,
        *[Field(name, "ignored", "x", _UNREAD) for name in sorted(IDLE)],
        *[Field(name, "refused", "x", _UNREAD) for name in sorted(REFUSED)],
        *_VLLM,
    ),
    "translate": (
        _FILE,
        _MODEL,
        *_mapped(prompt="hi", response_format="text", temperature=0.5, language="fr"),
        _STREAM,
        *_VLLM,
    ),
    "speak": (
        Field("input", "mapped", "hi"),
        _MODEL,
        *_mapped(voice="alloy", instructions="slowly", response_format="wav", speed=1.5, stream_format="sse"),
    ),
    "draw": (
        Field("prompt", "mapped", "hi"),
        _MODEL,
        *_IMAGES,
        *_mapped(style="vivid", moderation="low"),
        _STREAM,
    ),
    "edit": (
        Field("image", "mapped", "other", "one or more; also named `image[]`", where="file"),
        Field("mask", "mapped", "other", where="file"),
        Field("markup", "mapped", "other", where="file"),
        _MODEL,
        *_mapped(prompt="other", input_fidelity="high"),
        *_IMAGES,
        _STREAM,
    ),
    "vary": (
        Field("image", "mapped", "other", where="file"),
        _MODEL,
        *_mapped(n=2, size="512x512", response_format="b64_json", user="user-1"),
    ),
}
EXAMPLES: Examples = {
    "transcribe": (Example("transcribe", {}, files={"file": "a.wav"}),),
    "translate": (Example("translate", {}, files={"file": "a.wav"}),),
    "speak": (Example("speak", {"input": WORDS}, streams="never"),),
    "draw": (Example("draw", {"prompt": WORDS}),),
    "edit": (Example("edit", {"prompt": WORDS}, files={"image": "a.png"}),),
    "vary": (Example("vary", {}, files={"image": "a.png"}, streams="never"),),
}
"""The smallest valid requests."""
