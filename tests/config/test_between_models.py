"""Fallbacks that lead back, in configurations with many models."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Config, ConfigError, Model, load
from gateway.config.between_models import between_models

COUNT = 2000


def models(folder: Path, fallbacks: dict[str, str]) -> Path:
    path = folder / "gateway.yaml"
    entries = [f"  m{number}: {{backend: b, workers: [http://w]}}\n" for number in range(COUNT)]
    for name, fallback in fallbacks.items():
        number = int(name[1:])
        entries[number] = f"  {name}: {{backend: b, workers: [http://w], fallback: [{fallback}]}}\n"
    path.write_text("models:\n" + "".join(entries))
    return path


def test_a_long_chain_of_fallbacks_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once more for each model in it."""
    asked: Counter[str] = Counter()

    def resolve(config: Config, name: str) -> str | None:
        asked[name] += 1
        return config.model_names.get(name)

    monkeypatch.setattr(Config, "resolve", resolve)
    load(models(tmp_path, {f"m{number}": f"m{number + 1}" for number in range(COUNT - 1)}), environ={})
    assert 0 < asked.total() < 5 * COUNT


def test_a_long_ring_of_fallbacks_is_told_in_few_words(tmp_path: Path) -> None:
    path = models(tmp_path, {f"m{number}": f"m{(number + 1) % COUNT}" for number in range(COUNT)})
    with pytest.raises(ConfigError) as caught:
        load(path, environ={})
    said = [str(fault).split(": ", 1)[1] for fault in caught.value.faults]
    assert len(said) == 101
    way = "m3 -> m4 -> m5 -> m6 -> m7 -> m8 -> ... -> m3"
    assert said[3] == f"models.m3.fallback.0: leads back to this model: {way}"
    assert said[100] == f"(file): and {COUNT - 100} more faults from here on"


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=12))
def test_a_fallback_leads_back_exactly_where_a_walk_comes_back(edges: list[tuple[int, int]]) -> None:
    ahead = {number: sorted({to for at, to in edges if at == number and to != number}) for number in range(8)}
    config = Config(
        models={
            f"m{at}": Model(backend="b", workers=("http://w",), fallback=tuple(f"m{to}" for to in others))
            for at, others in ahead.items()
        }
    )
    expected = {(at, to) for at, others in ahead.items() for to in others if at in _reached(ahead, to)}
    ways: dict[tuple[int, int], list[int]] = {}
    for path, message in between_models(config, set(config.models)):
        at, index = int(str(path[1])[1:]), int(path[3])
        what, _, steps = str(message).partition(": ")
        assert what == "leads back to this model"
        ways[at, ahead[at][index]] = [int(step[1:]) for step in steps.split(" -> ")]
    assert ways.keys() == expected
    for (at, to), way in ways.items():
        assert way[:2] == [at, to]
        assert way[-1] == at
        assert all(step in ahead[before] for before, step in itertools.pairwise(way))


def _reached(ahead: dict[int, list[int]], start: int) -> set[int]:
    found, todo = set[int](), [start]
    while todo:
        for to in ahead[todo.pop()]:
            if to not in found:
                found.add(to)
                todo.append(to)
    return found
