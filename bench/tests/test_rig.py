"""The manifest for the public board of gateways starts a gateway that answers each wire that it declares."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from tests.repo.tree import ROOT
from tests.support.daemon import Daemon
from tests.support.ports import free_port
from tests.support.simulated import Simulated

RIG = ROOT / "bench" / "rig" / "dragoman"
DEFINITION = json.loads((RIG / "definition.json").read_text())
MODEL = DEFINITION["model"]
TURN = {"messages": [{"role": "user", "content": "hello"}]}
WIRES = [
    ("/v1/chat/completions", {"model": MODEL, **TURN, "max_tokens": 16}, "choices"),
    ("/v1/responses", {"model": MODEL, "input": "hello"}, "output"),
    ("/v1/messages", {"model": MODEL, **TURN, "max_tokens": 64}, "content"),
    (f"/v1beta/models/{MODEL}:generateContent", {"contents": [{"parts": [{"text": "hello"}]}]}, "candidates"),
    ("/v2/chat", {"model": MODEL, **TURN}, "message"),
    (f"/model/{MODEL}/converse", {"messages": [{"role": "user", "content": [{"text": "hello"}]}]}, "output"),
]
"""As the board asks: its six wires in its order, the body of its probe, and a member that their replies have."""


class Gateway(Daemon):
    """The launch of the manifest, with the port of the mock and its own in place of the rig's."""

    def __init__(self, directory: Path, mock: int) -> None:
        super().__init__(directory)
        self.values = {"GW_DIR": str(directory), "GW_PORT": self.port, "GW_MODEL": MODEL, "MOCK_PORT": mock}

    def filled(self, text: str) -> str:
        for name, value in self.values.items():
            text = text.replace("{" + name + "}", str(value))
        return text

    def words(self) -> Sequence[str]:
        for file in DEFINITION["config_files"]:
            (self.directory / file["output"]).write_text(self.filled((RIG / file["template"]).read_text()))
        return [str(Path(sys.executable).parent / "dragoman"), *map(self.filled, DEFINITION["launch"]["args"])]


@pytest.mark.long
async def test_each_wire_that_the_manifest_declares_is_answered(tmp_path: Path) -> None:
    async with Simulated(models=(MODEL,)) as worker:
        with Gateway(tmp_path, worker.port) as gateway:
            async with httpx.AsyncClient(base_url=f"http://{gateway.address}", trust_env=False) as client:
                for declared, (path, body, member) in zip(DEFINITION["matrix"], WIRES, strict=True):
                    reply = await client.post(path, json=body)
                    assert (reply.status_code, member in reply.json()) == (
                        (200, True) if "1" in declared else (404, False)
                    )


def test_each_setting_has_a_reason_and_each_reason_a_setting() -> None:
    template = Gateway(Path(), free_port()).filled((RIG / "config.gen.yaml.tmpl").read_text())
    settings = [line.partition(":")[0].strip() for line in template.splitlines()]
    reasons = [line.split()[:2] for line in (RIG / "why").read_text().splitlines() if not line.startswith("#")]
    assert [setting for setting, _ in reasons] == settings
    assert {reason for _, reason in reasons} <= {"boot", "upstream", "ingress", "bind"}
