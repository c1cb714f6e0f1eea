"""Finds the tokens that would repeat an n-gram or complete a forbidden sequence. Does not import vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_MOST_SEQUENCES = 1024
_MOST_TOKENS = 8192


class Forbidden:
    """The tokens that may not follow a request's output.

    ngram      n, or 0: no sequence of n tokens twice in prompt and output together
    sequences  none of these in the output
    prompt     the prompt's token ids
    """

    def __init__(self, ngram: int, sequences: tuple[tuple[int, ...], ...], prompt: Sequence[int] = ()) -> None:
        self._ngram = ngram
        self._prompt = list(prompt)
        self._follows: dict[tuple[int, ...], list[int]] = {}
        self._indexed: list[int] = []
        self._by_last: dict[int, list[tuple[int, ...]]] = {}
        self._always: set[int] = set()
        for sequence in sequences:
            if len(sequence) == 1:
                self._always.add(sequence[0])
            else:
                self._by_last.setdefault(sequence[-2], []).append(sequence)

    def next(self, output: Sequence[int]) -> set[int]:
        """The tokens that may not follow `output`. Each call's `output` extends that of the call before."""
        known = [token for token in output if token >= 0]  # -1 stands for a token that vLLM has not sampled yet
        found = set(self._always)
        for sequence in self._by_last.get(known[-1], ()) if known else ():
            head = sequence[:-1]
            if tuple(known[-len(head) :]) == head:
                found.add(sequence[-1])
        if self._ngram:
            found.update(self._repeats(known))
        return found

    def _repeats(self, known: list[int]) -> Sequence[int]:
        n, indexed = self._ngram, self._indexed
        everything = self._prompt + known
        if everything[: len(indexed)] != indexed:  # vLLM took tokens back: start again
            self._follows.clear()
            indexed = []
        for end in range(max(len(indexed), n - 1), len(everything)):
            self._follows.setdefault(tuple(everything[end - n + 1 : end]), []).append(everything[end])
        self._indexed = everything
        return self._follows.get(tuple(everything[len(everything) - n + 1 :]), ()) if len(everything) >= n - 1 else ()


def asked(extra: dict[str, Any] | None) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """(n or 0, forbidden sequences) of a request. Raises ValueError naming what is wrong."""
    extra = extra or {}
    ngram = extra.get("no_repeat_ngram") or 0
    if isinstance(ngram, bool) or not isinstance(ngram, int) or ngram < 0:
        raise ValueError("no_repeat_ngram must be a whole number, at least 0")
    words = extra.get("bad_word_tokens") or ""
    if not isinstance(words, str):
        raise ValueError("bad_word_tokens must be token ids as text, sequences parted by ';'")
    try:
        sequences = tuple(tuple(int(token) for token in part.split()) for part in words.split(";"))
    except ValueError:
        raise ValueError("bad_word_tokens must be token ids as text, sequences parted by ';'") from None
    sequences = tuple(sequence for sequence in sequences if sequence)
    if len(sequences) > _MOST_SEQUENCES or sum(map(len, sequences)) > _MOST_TOKENS:
        raise ValueError(f"bad_word_tokens: at most {_MOST_SEQUENCES} sequences of {_MOST_TOKENS} tokens together")
    if any(token < 0 for sequence in sequences for token in sequence):
        raise ValueError("bad_word_tokens: token ids are not negative")
    return (ngram if ngram > 1 else 0), sequences
