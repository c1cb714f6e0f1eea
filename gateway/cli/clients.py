"""`dragoman clients`: the environment, the configuration file or the code by which a client calls the gateway.

The lines are those of `clients.yaml`. docs/clients.md has those of agents, too; a test compares both.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import yaml

from gateway.cli import CommandError

ADDRESS, MODEL = "http://127.0.0.1:8080", "smollm2"
"""The gateway and the model in the lines, for which others are put."""
CLIENTS: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
_MODEL_NAME = re.compile(r"[A-Za-z0-9._:/@+-]{1,200}")
_URL = re.compile(r"https?://[A-Za-z0-9._:\[\]-]+(/[A-Za-z0-9._~/-]*)?")
ABOUT = "Without a name it lists the clients that it knows. It calls nothing, and prints no key: put your own."


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", choices=[*CLIENTS], help="a client (default: list them all)")
    parser.add_argument("--model", default=MODEL, help=f"the model that it asks for (default: {MODEL})")
    parser.add_argument("--gateway", metavar="URL", default=ADDRESS, help=f"the gateway (default: {ADDRESS})")
    parser.add_argument(
        "--max-context",
        metavar="N",
        type=int,
        help="the model's context in tokens, for claude-code and codex (default: none)",
    )


def run(options: argparse.Namespace) -> int:
    """Prints the client's line and comments on it. Raises CommandError for a value that a shell or a file could read
    as something else."""
    if options.name is None:
        wide = max(map(len, CLIENTS))
        print("\n".join(f"{name:{wide}}  {client['title']}" for name, client in CLIENTS.items()))
        return 0
    if not _MODEL_NAME.fullmatch(options.model):
        raise CommandError("--model must be letters, digits and . _ : / @ + - only")
    if not _URL.fullmatch(options.gateway):
        raise CommandError("--gateway must be a URL such as https://llm.example.com, without a query")
    client = CLIENTS[options.name]
    line = client["line"].replace(ADDRESS, options.gateway.rstrip("/")).replace(MODEL, options.model)
    if options.max_context is not None:
        if "max_context" not in client or options.max_context < 1:
            able = " and ".join(name for name, client in CLIENTS.items() if "max_context" in client)
            raise CommandError(f"--max-context is a number of tokens, for {able} only")
        line += " " + client["max_context"].format(tokens=options.max_context)
    notes = client.get("notes", "").splitlines()
    if MODEL not in client["line"]:
        notes.append(f"Each request names the model: {options.model}")
    if "none" in line:
        notes.append("With keys, put yours for `none`.")
    mark = "//" if "new " in line or line.startswith("create") else "#"
    print("\n".join([line, *(f"{mark} {note}" for note in notes)]))
    return 0
