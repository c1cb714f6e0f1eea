"""The program of docs/debugging.md serves on uvicorn and asyncio's own loop, without the gateway's server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from tests.repo.tree import ROOT
from tests.support.harness import until
from tests.support.ports import free_port

PAGE = (ROOT / "docs" / "debugging.md").read_text()


@pytest.mark.long
def test_the_page_has_a_program_that_serves(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    port = free_port()
    models = {"m": {"backend": "vllm", "workers": ["http://127.0.0.1:9"]}}
    config = tmp_path / "gateway.yaml"
    config.write_text(yaml.safe_dump({"auth": "open", "listen": {"port": port}, "models": models}))
    with subprocess.Popen([sys.executable, "-c", program, str(config)], cwd=ROOT) as serving:
        try:
            until(lambda: answers(f"http://127.0.0.1:{port}/livez"))
            listed = httpx.get(f"http://127.0.0.1:{port}/v1/models").json()
            assert [model["id"] for model in listed["data"]] == ["m"]
        finally:
            serving.terminate()


def answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False
