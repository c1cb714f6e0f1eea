"""The capabilities of an engine, from its flags and the model's own files. Others stay unknown."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

PROCESSORS = "workers.vllm.processors:Sequences"
"""The logits processor for the features in `BEYOND`, as vLLM's flag names it."""
BEYOND = ("no_repeat_ngram", "bad_word_tokens")

# Flags that change what requests may ask. Their names, never their values, are advertised.
TELLING = frozenset(
    {
        *("enable-auto-tool-choice", "tool-call-parser", "reasoning-parser", "enable-lora", "enable-prompt-embeds"),
        *("enable-prompt-tokens-details", "generation-config", "skip-tokenizer-init", "scheduling-policy", "task"),
        *("speculative-config", "runner", "max-logprobs", "logprobs-mode", "quantization", "tensor-parallel-size"),
        *("pipeline-parallel-size", "data-parallel-size"),
    }
)


def flag(flags: Sequence[str], *names: str) -> str | None:
    """The last value of a flag under any of its names (with dashes), "" for one without a value, None for absent."""
    found = None
    for position, word in enumerate(flags):
        name, equals, value = word.partition("=")
        if name.startswith("-") and name.lstrip("-").replace("_", "-") in names:
            following = flags[position + 1] if position + 1 < len(flags) else ""
            found = value if equals else following if not following.startswith("-") else ""
    return found


def takes_processors(flags: Sequence[str]) -> bool:
    """False if vLLM refuses custom logits processors: for pooling models and with speculative decoding."""
    pooling = flag(flags, "runner") == "pooling" or flag(flags, "task") in ("embed", "classify", "score", "reward")
    return not pooling and flag(flags, "speculative-config", "sc") is None


def abilities(flags: Sequence[str], model: str | None) -> dict[str, bool]:
    """Feature -> whether requests may use it. model is a folder, or a name in a hub, whose files are not read."""
    found = {
        "tools": flag(flags, "enable-auto-tool-choice") is not None and flag(flags, "tool-call-parser") is not None,
        "reasoning": flag(flags, "reasoning-parser") is not None,
    }
    if flag(flags, "skip-tokenizer-init") is not None:
        found |= {"json": False, "json_schema": False, "regex": False}
    config = _config(model)
    if config is not None:
        found["vision"] = "vision_config" in config
        found["audio"] = "audio_config" in config
    if _generates(flags, model, config or {}):
        found["scores"] = False
    loaded = flag(flags, "logits-processors") is not None and takes_processors(flags)
    return found | dict.fromkeys(BEYOND, loaded)


def _generates(flags: Sequence[str], model: str | None, config: Mapping[str, Any]) -> bool:
    """Whether it surely generates, and so ranks nothing. Without a flag that decides, vLLM goes by the architecture,
    unless the model has the file of a sentence transformer."""
    task, runner = flag(flags, "task"), flag(flags, "runner")
    if "generate" in (task, runner):
        return True
    kinds = config.get("architectures")
    if (
        {task, runner} - {None, "auto"}
        or flag(flags, "convert") is not None
        or not isinstance(kinds, list)
        or not kinds
    ):
        return False
    ends = all(isinstance(kind, str) and kind.endswith(("ForCausalLM", "ForConditionalGeneration")) for kind in kinds)
    return ends and not (Path(model or "") / "modules.json").exists()


def telling(flags: Sequence[str]) -> tuple[str, ...]:
    """The names of the given flags that change what requests may ask."""
    names = (word.partition("=")[0].lstrip("-").replace("_", "-") for word in flags if word.startswith("--"))
    return tuple(sorted({name for name in names if name in TELLING}))


def _config(model: str | None) -> dict[str, Any] | None:
    if model is not None:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            return msgspec.json.decode((Path(model) / "config.json").read_bytes(), type=dict[str, Any])
    return None
