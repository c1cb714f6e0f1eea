"""`dragoman serve --processes N`: processes that share an address, and the parent that looks after them.

The parent binds a socket for each process (SO_REUSEPORT: the kernel spreads connections over them), forks, and
replaces each process that dies. It keeps all sockets, so that the next process serves the connections that wait for a
dead one. It has neither a thread nor an event loop, which a fork would copy half.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD}
# One that ends so early by itself never served: starting it again would change nothing.
_EARLY_S = 3.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0


def listeners(host: str, port: int, count: int) -> list[socket.socket]:
    """Sockets that listen at one address, for one process each. Raises OSError, also if others listen there."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]

    def bound(shared: bool) -> socket.socket:
        one = socket.socket(family, kind, protocol)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared)
        one.bind(address)
        return one

    found = [bound(shared=False)]
    if count > 1:  # sockets that share a port do not notice another process: the first one, alone, does
        address = found[0].getsockname()
        found[0].close()
        found = [bound(shared=True) for _ in range(count)]
    for one in found:
        one.listen(2048)
        one.setblocking(False)
    return found


class SharedOutput:
    """Standard output as several processes write it: one batch of whole lines after the other. Opened in each process
    by itself.

    lock  a file that all of them lock in turn
    """

    def __init__(self, lock: Path) -> None:
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, data: bytes, /) -> int:
        """Raises OSError when nothing could be written."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            left = memoryview(data)
            while left:
                try:
                    left = left[os.write(1, left) :]
                except BlockingIOError:
                    time.sleep(0.01)
                except OSError:
                    if len(left) == len(data):
                        raise
                    break
            return len(data) - len(left)
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)


class Supervisor:
    """Starts processes and keeps them running.

    serve  what each does, given its number and whether one with that number died before; returns its exit status died
    is called for a process that ended without a signal from us: its number, its process id, its exit status (negative:
    the signal that killed it)"""

    def __init__(self, count: int, serve: Callable[[int, bool], int], died: Callable[[int, int, int], None]) -> None:
        self._count = count
        self._serve = serve
        self._died = died
        self._running: dict[int, int] = {}
        self._due: dict[int, float] = {}
        self._pauses: dict[int, float] = {}
        self._ending = False
        self._status = 0
        # The children read from it: its end is their parent's.
        self._lifeline, self._held = os.pipe()

    def run(self) -> int:
        """Returns the exit status when all processes have ended: 0 if each ended at our signal."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        began = time.monotonic()
        for number in range(self._count):
            self._start(number)
        while self._running or self._due:
            received = signal.sigtimedwait(_SIGNALS, self._next())
            if received is not None and received.si_signo != signal.SIGCHLD:
                self._ending = self._ending or received.si_signo != signal.SIGHUP
                if self._ending:
                    self._due.clear()
                self._signal(received.si_signo)
            self._reap(early=time.monotonic() - began < _EARLY_S)
            now = time.monotonic()
            for number in [number for number, due in self._due.items() if due <= now]:
                del self._due[number]
                self._start(number)
        return self._status

    def _next(self) -> float:
        """Seconds until something is due."""
        return max(0.0, min(self._due.values(), default=time.monotonic() + 3600.0) - time.monotonic())

    def _signal(self, number: int) -> None:
        for process in self._running:
            os.kill(process, number)

    def _reap(self, early: bool) -> None:
        while self._running:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                return
            number = self._running.pop(process)
            code = os.waitstatus_to_exitcode(status)
            if self._ending:
                self._status = self._status or abs(code)
                continue
            self._died(number, process, code)
            if early and code > 0:
                self._ending, self._status = True, abs(code) or 1
                self._due.clear()
                self._signal(signal.SIGTERM)
                continue
            pause = self._pauses.get(number, _FIRST_PAUSE_S)
            self._pauses[number] = min(_LONGEST_PAUSE_S, 2 * pause)
            self._due[number] = time.monotonic() + pause

    def _start(self, number: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if process:
            self._running[process] = number
            return
        status = 1
        try:
            os.close(self._held)
            threading.Thread(target=self._follow_parent, name="parent", daemon=True).start()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            status = self._serve(number, number in self._pauses)
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _follow_parent(self) -> None:
        """Ends this process as a signal would when its parent is gone."""
        os.read(self._lifeline, 1)
        os.kill(os.getpid(), signal.SIGTERM)


def forget(sockets: Sequence[Sequence[socket.socket]], number: int) -> None:
    """Closes those that belong to other processes."""
    for other, owned in enumerate(sockets):
        if other != number:
            for one in owned:
                one.close()
