"""Options that name other models, in configurations with many of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.app import KNOWN
from gateway.cli import main
from gateway.config import load
from tests.support.steps import steps


def models(path: Path, count: int, fallbacks: int) -> Path:
    """Each model names the `fallbacks` models after it, so that all of them lead back."""
    entries = []
    for number in range(count):
        others = ", ".join(f"m{(number + 1 + step) % count}" for step in range(fallbacks))
        limits = f"max_context: 1000, fallback: [{others}], fallback_on: [context_length]"
        entries.append(f"  m{number}: {{backend: vllm, workers: [http://w], {limits}}}\n")
    path.write_text("models:\n" + "".join(entries))
    return path


def test_models_may_back_each_other_up(tmp_path: Path) -> None:
    path = models(tmp_path / "gateway.yaml", 2, 1)
    config = load(path, KNOWN, environ={})
    assert {name: model.fallback for name, model in config.models.items()} == {"m0": ("m1",), "m1": ("m0",)}


def test_checking_costs_in_proportion_to_the_fallbacks(tmp_path: Path) -> None:
    """The second has twice the models, the third twice the fallbacks of each."""
    counts = []
    for number, (count, fallbacks) in enumerate(((30, 5), (60, 5), (30, 10))):
        path = models(tmp_path / f"{number}.yaml", count, fallbacks)
        load(path, KNOWN, environ={})
        counts.append(steps(lambda path=path: load(path, KNOWN, environ={}), "line"))  # type: ignore[misc]
    assert counts[1] < 2.1 * counts[0]
    assert counts[2] < 2.1 * counts[0]


def test_what_workers_cannot_do_is_found_once_for_models_that_are_alike(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    counts = []
    for count in (2, 40):
        words = ["check", str(models(tmp_path / f"{count}.yaml", count, 1))]
        main(words)
        counts.append(steps(lambda words=words: main(words), "line", "gateway/translation"))  # type: ignore[misc]
    assert counts[0] == counts[1] > 0
    assert "openai chat" not in capfd.readouterr().err
