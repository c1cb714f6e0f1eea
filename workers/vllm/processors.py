"""A logits processor for vLLM, for parameters of text requests that stock vLLM does not have.

Loaded by `--logits-processors workers.vllm.processors:Sequences` (vLLM's V1 engine; seen with 0.32). A request asks by
`vllm_xargs`:

    no_repeat_ngram   n >= 2: no sequence of n tokens occurs twice in prompt and output together (n = 1 and 0 are off)
    bad_word_tokens   "5 6 7;8 9": none of these token sequences occurs in the output

`vllm_xargs` cannot hold lists of lists, therefore the text form. The semantics are those of Friendli's specification,
which are those of Hugging Face's `no_repeat_ngram_size` and `bad_words_ids`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, process_dict_updates

from workers.vllm.sequences import Forbidden, asked

if TYPE_CHECKING:
    import torch
    from vllm import SamplingParams
    from vllm.config import VllmConfig


class Sequences(LogitsProcessor):  # type: ignore[misc]
    """Masks every token that would complete a forbidden sequence."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, tuple[Forbidden, list[int]]] = {}

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raises ValueError, which vLLM answers with 400."""
        asked(sampling_params.extra_args)

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._rows, batch_update, _state)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        size = logits.shape[-1]
        for row, (state, output) in self._rows.items():
            tokens = [token for token in state.next(output) if token < size]
            if tokens:
                logits[row, tokens] = float("-inf")
        return logits


def _state(params: SamplingParams, prompt: list[int] | None, output: list[int]) -> tuple[Forbidden, list[int]] | None:
    # vLLM keeps `output` up to date by reference. There is no prompt where embeddings were sent.
    ngram, sequences = asked(params.extra_args)
    return (Forbidden(ngram, sequences, prompt or ()), output) if ngram or sequences else None
