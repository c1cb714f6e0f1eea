"""Reads texts as configuration files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.app.routes import served_at
from gateway.config import Available, Config, ConfigError, load
from gateway.wire.openai.requests.members import Member

KNOWN = Available(
    {"openai": ("/openai", "/"), "ollama_style": ("/ollama",)},
    serves=served_at,
    member=Member,
    backends={"openai": frozenset(), "vllm": frozenset({"prefill", "adapters", "kv_events"})},
)
SMALL = "models:\n  small:\n    backend: openai\n    workers: [http://127.0.0.1:8081]\n"
HASH = "sha256:" + "ab" * 32


def read(folder: Path, text: str | bytes, **environ: str) -> Config:
    path = folder / "gateway.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(path, KNOWN, environ)


def faults(folder: Path, text: str | bytes, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, text, **environ)
    return [str(fault).replace(f"{folder}{os.sep}", "") for fault in caught.value.faults]


def redis(folder: Path, section: str, **environ: str) -> tuple[object, ...]:
    found = read(folder, f"{SMALL}redis:\n  {section}\n", **environ).redis
    assert found is not None
    assert "canary" not in repr(found)
    return tuple(found.server)
