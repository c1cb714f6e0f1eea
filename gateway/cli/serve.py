"""`dragoman serve`: runs the gateway until a signal ends it, and reloads its configuration on the way."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import uvloop

from gateway.app import KNOWN, Gateway
from gateway.background import keep_running
from gateway.cli import CommandError, processes, starting
from gateway.cli.configured import config_option, configuration
from gateway.config import Config, ConfigError, Fault, FileThread, Listen, TooSlow, Watch, load, watched_files
from gateway.config.faults import ENVIRONMENT, Position
from gateway.observe.log import Log
from gateway.observe.process_group import ProcessGroup
from gateway.redis import split_address
from gateway.server import OperationsListener, Server, fitting_connections

_LOG = logging.getLogger(__name__)
# A reload cannot change these: their sockets are bound.
_BOUND = (("listen", "host"), ("listen", "port"), ("metrics", "listen"))
# How often to look at the files that name callers.
_LOOK_S = 1.0
_MOST_PROCESSES = 256
_SWITCH_S = 0.0005
"""After so long the thread that reads a configuration hands over the interpreter. By default it is 5 ms, for which
each system call of each request waits: beside 9,000 keys the worst of those with four calls took 50 to 130 ms, and with
this 8 to 11 ms."""
READ_S = 30.0
"""How long a reload may take to read and check the configuration. A mounted file may answer never."""
ABOUT = (
    "It serves until SIGTERM or Ctrl-C. On SIGHUP it reads its configuration again; a keys file that changes "
    "needs no signal."
)


def options(parser: argparse.ArgumentParser) -> None:
    config_option(parser)
    parser.add_argument(
        "--processes", metavar="N", type=_count, default=1, help="processes that share the address (default: 1)"
    )


def _count(text: str) -> int:
    count = int(text) if text.isdecimal() else 0
    if not 1 <= count <= _MOST_PROCESSES:
        raise argparse.ArgumentTypeError(f"a number from 1 to {_MOST_PROCESSES}")
    return count


def run(options: argparse.Namespace) -> int:
    gc.disable()  # until all that is read is frozen: collections would be most of the time of many keys
    config, path = configuration(options.config, options.processes)
    addresses = [(config.listen.host, config.listen.port)]
    if config.metrics.listen is not None:
        addresses.append(split_address(config.metrics.listen))
    bound = []
    for host, port in addresses:
        try:
            bound.append(processes.listeners(host, port, options.processes))
        except OSError as error:
            raise CommandError(f"cannot listen on {host}:{port}: {error.strerror}", 1) from None
    shares = list(zip(*bound, strict=True))
    if options.processes == 1:
        log = Log(config.log.level, config.log.requests, form=config.log.format)
        return _serve(config, path, shares[0], log)
    return _serve_together(config, path, shares)


def _serve(
    config: Config, path: str | None, listeners: Sequence[socket.socket], log: Log, group: ProcessGroup | None = None
) -> int:
    async def serving() -> int:
        return await _Serving(config, path, listeners, log, group).run()

    try:
        with log.libraries(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serving())
    finally:
        starting.leave_signals()
        log.close()


def _serve_together(config: Config, path: str | None, shares: Sequence[Sequence[socket.socket]]) -> int:
    """Serves by as many processes as there are shares of the sockets."""
    form = "console" if config.log.format == "auto" and sys.stdout.isatty() else config.log.format
    count = len(shares)
    with tempfile.TemporaryDirectory(prefix="dragoman-") as folder:
        lock = Path(folder, "log.lock")

        def log_of(one: Config) -> Log:
            return Log(one.log.level, one.log.requests, processes.SharedOutput(lock), form)

        def one(number: int, again: bool) -> int:
            processes.forget(shares, number)
            current = config
            if again:  # with the file of today, or that of the start while today's is faulty
                with contextlib.suppress(ConfigError):
                    current = load(path, replace(KNOWN, processes=count))
            return _serve(current, path, shares[number], log_of(current), ProcessGroup(Path(folder), number, count))

        def died(number: int, process: int, status: int) -> None:
            log = log_of(config)
            log.event("error", "process died", number=number, process=process, status=status)
            log.close()

        # Pages that no collection writes to stay shared with the parent.
        gc.collect()
        gc.freeze()
        return processes.Supervisor(count, one, died).run()


class _Serving:
    """One gateway, and what happens to it from outside: signals, and keys that change in a mounted file.

    Clients are served on the first of `listeners`, metrics on the second, if there is one. group is given where this
    process is one of several.
    """

    def __init__(
        self,
        config: Config,
        path: str | None,
        listeners: Sequence[socket.socket],
        log: Log,
        group: ProcessGroup | None = None,
    ) -> None:
        self._config = config
        self._path = path
        self._known = replace(KNOWN, processes=group.count) if group is not None else KNOWN
        self._listener, *self._more = listeners
        self._log = log
        self._ended = False
        self._watch = Watch(watched_files(config))
        self._gateway = gateway = Gateway(config, log, group)
        self._reader = FileThread(READ_S)
        self._reloading = asyncio.Lock()
        self._server = Server(
            gateway,
            self._fitting(config.listen),
            self._drain,
            self._reload,
            gateway.refused,
            gateway.opens_socket,
            OperationsListener(gateway.operations, self._more[0]) if self._more else None,
        )
        gateway.process.connections = lambda: len(self._server.server_state.connections)

    async def run(self) -> int:
        """Serves until a signal ends it; returns the exit status."""
        tasks = [asyncio.create_task(job()) for job in (self._announce, self._follow)]
        # Collections need not look at objects that live as long as the process.
        gc.collect()
        gc.freeze()
        gc.enable()
        # A request leaves no cycles behind; looking for some after every 700 allocations costs 4 % of all CPU.
        gc.set_threshold(20_000, 20, 20)
        await self._server.serve(sockets=[self._listener])
        starting.leave_signals()
        for task in tasks:
            task.cancel()
        self._log.event("info", "stopped")
        return 0 if self._ended or self._server.listening.is_set() else 1

    async def _announce(self) -> None:
        await self._server.listening.wait()
        name = Path(self._path).name if self._path else None
        metrics = {"metrics": _url(self._more[0])} if self._more else {}
        self._log.event("info", "listening", address=_url(self._listener), config=name, **metrics)
        if starting.reload_wanted:
            await self._reload()

    async def _follow(self) -> None:
        """Reloads when a watched file has changed, because a mounted secret changes without a signal."""
        await self._server.listening.wait()
        while not self._gateway.draining:
            await asyncio.sleep(_LOOK_S)
            with keep_running("watched files"), contextlib.suppress(TooSlow):  # the next look reports more
                if await self._reader(self._watch.changed):
                    self._log.event("info", "keys changed")
                    await self._reload()

    async def _drain(self) -> float:
        self._ended = True
        self._log.event("info", "draining")
        return await self._gateway.drain()

    async def _reload(self) -> None:
        """Reads and checks the configuration in a thread, and gives it to the gateway. A bad one changes nothing."""
        await self._server.listening.wait()  # what is still starting cannot be replaced
        async with self._reloading:
            if self._gateway.draining:
                self._log.event("warning", "reload refused, the gateway is shutting down")
                return
            # A collection among the thousands of objects of a new configuration stops all requests for 0.1 s and more.
            gc.disable()
            usual = sys.getswitchinterval()
            sys.setswitchinterval(min(usual, _SWITCH_S))
            try:
                changed = await self._reader(self._load)
                await self._gateway.reload(changed)
            except ConfigError as error:
                self._refused([str(fault) for fault in error.faults])
            except TooSlow as slow:
                self._refused([self._whole(str(slow))])
            except Exception as error:  # a file that is gone since it was checked, such as a certificate
                if not isinstance(error, OSError | ValueError):
                    _LOG.error("a configuration could not be put to use", exc_info=error)
                self._refused([self._whole(f"could not be put to use: {type(error).__name__}")])
            else:
                self._gateway.metrics.reloads.labels("done").inc()
                self._server.configure(self._fitting(changed.listen))
                self._log.event("info", "reloaded")
                self._log_restart(changed)
            finally:
                sys.setswitchinterval(usual)
                gc.freeze()  # and so all that is new is old at once: no collection has to look at it soon
                gc.unfreeze()
                gc.enable()

    def _load(self) -> Config:
        looked = self._watch.look()
        changed = load(self._path, self._known)
        self._watch.take(watched_files(changed), looked)
        return changed

    def _whole(self, what: str) -> str:
        """A fault of the configuration as a whole."""
        return str(Fault(Position(Path(self._path).name if self._path else ENVIRONMENT), what))

    def _refused(self, faults: list[str]) -> None:
        self._gateway.metrics.reloads.labels("refused").inc()
        self._log.event("error", "reload refused, the old configuration stays", faults=faults)

    def _log_restart(self, changed: Config) -> None:
        keys = [
            f"{section}.{key}"
            for section, key in _BOUND
            if getattr(getattr(changed, section), key) != getattr(getattr(self._config, section), key)
        ]
        if keys:
            self._log.event("warning", "a restart is needed for some changes to hold", keys=keys)

    def _fitting(self, listen: Listen) -> Listen:
        """`listen`, with as many connections as the limit on open files is enough for."""
        connections = fitting_connections(listen.max_connections)
        if connections < listen.max_connections:
            self._log.event(
                "warning",
                "fewer connections than listen.max_connections, the limit on open files is too low",
                max_connections=connections,
                remedy="raise `ulimit -n` (systemd: LimitNOFILE), or lower listen.max_connections",
            )
        return listen.model_copy(update={"max_connections": connections})


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
