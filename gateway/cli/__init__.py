"""The command `dragoman`. Each of its commands is one module here.

A command's module has two functions: `options(parser)` adds the command's arguments, `run(options)` does it and
returns the exit status. Its `ABOUT` is the part of `--help` behind the command's line in `COMMANDS`.

Only the module of the chosen command is imported, so that `keys new` does not load a web server. Nothing is imported
before `serve` has taken over the process's signals: even argparse takes a tenth of a second on a slow machine, in which
Ctrl-C would end in a traceback.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

WORKERS = ("embedded", "simulated", "vllm")
COMMANDS = {
    "serve": ("run the gateway", "dragoman serve --config gateway.yaml"),
    "check": ("report everything that is wrong with a configuration", "dragoman check gateway.yaml --strict"),
    "translate": (
        "print what a worker would get for a request on standard input",
        "dragoman translate --from anthropic --to vllm < request.json",
    ),
    "explain": (
        "show which worker would take a request on standard input, and why",
        "dragoman explain --model smollm2 < request.json",
    ),
    "schema": ("print the JSON Schema of gateway.yaml, for editors", "dragoman schema > gateway.schema.json"),
    "routes": ("list method, path and dialect of every route", "dragoman routes --config gateway.yaml"),
    "clients": (
        "print what a client needs to call the gateway: environment, file or code",
        "dragoman clients claude-code --model llama --gateway https://llm.example.com",
    ),
    "keys": ("make client keys", "dragoman keys new --name team-a >> keys.yaml"),
    "teams": (
        "show and change teams: their models, limits and budgets",
        "dragoman teams list --key-file admin.key",
    ),
    "status": ("show what a running gateway does, live or once", "dragoman status --url http://127.0.0.1:9090"),
    "logs": ("print a gateway's log for people to read, filtered", "dragoman logs gateway.log --key team-a --follow"),
    "limits": ("show what a key has used of its limits, or reset it", "dragoman limits show --key team-a"),
    "spend": (
        "report what was spent, by team, key, model or day",
        "dragoman spend --by team,model --csv",
    ),
    "backup": (
        "write what gateways keep in Redis and in the folder of batches to a file",
        "dragoman backup monday.tgz",
    ),
    "restore": ("put back what `backup` wrote; gateways must be stopped", "dragoman restore monday.tgz --yes"),
    "import": (
        "write a configuration from another gateway's",
        "dragoman import litellm config.yaml --keys keys.json --out gateway.yaml",
    ),
    "completion": ("print a script by which a shell completes this command at Tab", "dragoman completion bash"),
    "worker": ("run a worker: " + ", ".join(WORKERS), "dragoman worker simulated --port 8081"),
}
"""Name -> one line of help, and an example. `gateway.cli.NAME` is the command's module, but for `_MODULES`."""
_MODULES = {"import": "importing"}
"""Names that Python has for itself."""


INTERRUPTED = 130
"""The exit status of a command that Ctrl-C ended, as shells have it."""


class CommandError(Exception):
    """Ends a command with a line on standard error, and an exit status: 1 for a failure, 2 for a caller's mistake."""

    def __init__(self, message: object, status: int = 2) -> None:
        super().__init__(str(message))
        self.status = status


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the process's exit status: 0, 1 for a failure, 2 for a mistake of the caller, 130 if
    Ctrl-C ended it."""
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(argv: list[str]) -> int:
    if argv[:1] == ["serve"]:
        from gateway.cli import starting

        starting.take_signals()
    import importlib
    import io
    import os

    if argv[:1] == ["worker"] and len(argv) > 1 and argv[1] in WORKERS:
        # A worker has its own options and needs nothing of the gateway.
        status: int = importlib.import_module(f"workers.{argv[1]}").main(argv[2:])
        return status
    options = parser(argv).parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name may hold characters that this terminal lacks
    try:
        status = options.run(options)
        print(end="", flush=True)
    except BrokenPipeError:
        # The reader closed the output pipe, as `head` does. The interpreter flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except CommandError as error:
        print(f"dragoman: {error}", file=sys.stderr)
        status = error.status
    except Exception as error:
        from gateway.config import ConfigError  # takes longer to import than some commands take

        if not isinstance(error, ConfigError):
            raise
        for fault in error.faults:
            print(fault, file=sys.stderr)
        if error.partial:
            print("dragoman: rules between options wait for these values: mend them, then check again", file=sys.stderr)
        status = 2
    return status


def parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser for `argv`: every command by name and help, the one that `argv` names with its arguments."""
    import argparse
    import importlib

    found = argparse.ArgumentParser(
        prog="dragoman",
        description="A gateway that lets any LLM client keep its own language.",
        epilog="`dragoman COMMAND --help` explains a command, with an example.",
        formatter_class=argparse.RawDescriptionHelpFormatter,  # the version is one line on any terminal
    )
    found.add_argument("--version", action="version", version=_version() if "--version" in argv else "")
    commands = found.add_subparsers(title="commands", required=True, metavar="COMMAND")
    chosen = next((word for word in argv if not word.startswith("-")), None)
    for name, (text, example) in COMMANDS.items():
        command = subcommand(commands, name, text, example)
        if name == chosen:
            module = importlib.import_module(f"gateway.cli.{_MODULES.get(name, name)}")
            command.description = f"{command.description} {module.ABOUT}"
            module.options(command)
            command.set_defaults(run=module.run)
    return found


def _version() -> str:
    """The version, its commit and build as setup.py wrote them, and whether there is a native relay."""
    from importlib.metadata import version
    from pathlib import Path

    from gateway.native import BUILT

    build = Path(__file__).with_name("build.txt")
    origin = build.read_text().strip() if build.is_file() else "checkout"
    return f"dragoman {version('dragoman')} ({origin}; native relay: {'yes' if BUILT else 'no'})"


def subcommand(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str, example: str
) -> argparse.ArgumentParser:
    about = f"{text[0].upper()}{text[1:]}."
    return actions.add_parser(name, help=text, description=about, epilog=f"example: {example}")
