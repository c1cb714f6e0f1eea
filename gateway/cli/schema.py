"""`dragoman schema`: the JSON Schema of gateway.yaml."""

from __future__ import annotations

import argparse
import json

from gateway.config import json_schema

ABOUT = (
    "An editor completes and checks a file by it that begins with `# yaml-language-server: "
    "$schema=gateway.schema.json`."
)


def options(parser: argparse.ArgumentParser) -> None:
    """It has none."""


def run(options: argparse.Namespace) -> int:
    print(json.dumps(json_schema(), indent=2))
    return 0
