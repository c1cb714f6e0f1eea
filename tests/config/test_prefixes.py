"""Every dialect that is in the way of a prefix is named at once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.app import KNOWN
from gateway.config import ConfigError, load

EVERY = sorted({prefix or "/" for prefixes in KNOWN.dialects.values() for prefix in prefixes})


def said(folder: Path, dialects: dict[str, Any]) -> list[str]:
    path = folder / "gateway.yaml"
    path.write_text(json.dumps({"models": {"m": {"backend": "vllm", "workers": ["http://a"]}}, "dialects": dialects}))
    try:
        load(path, KNOWN, {})
    except ConfigError as error:
        return [str(fault.message) for fault in error.faults]
    return []


@pytest.mark.parametrize("dialect", KNOWN.dialects)
def test_one_round_is_enough(dialect: str, tmp_path: Path) -> None:
    found = {}
    for fault in said(tmp_path, {dialect: {"prefixes": EVERY}}):
        match = re.fullmatch(r"answers under (\S+) as (.+?) do(?:es)?; give .*", fault)
        assert match is not None, fault
        found[match[1]] = set(re.split(r", | and ", match[2]))
    own = KNOWN.dialects[dialect]
    expected = {
        prefix: {
            other
            for other, prefixes in KNOWN.dialects.items()
            if other != dialect and prefix.rstrip("/") in prefixes and prefix.rstrip("/") not in own
        }
        for prefix in EVERY
    }
    assert found == {prefix: others for prefix, others in expected.items() if others}
    # Once what the faults say is done, no other fault comes up.
    assert said(tmp_path, {dialect: {"prefixes": ["/free", *(one for one in EVERY if one not in found)]}}) == []
    off = {other: {"enabled": False} for others in found.values() for other in others}
    assert said(tmp_path, {**off, dialect: {"prefixes": EVERY}}) == []
