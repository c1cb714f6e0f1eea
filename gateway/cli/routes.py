"""`dragoman routes`: method, path and dialect of every route, and the header that selects it."""

from __future__ import annotations

import argparse

from gateway.app import KNOWN
from gateway.app.routes import route_table
from gateway.cli.configured import config_option
from gateway.config import Config, load

ABOUT = "A header behind a route selects it where several APIs have the same path."


def options(parser: argparse.ArgumentParser) -> None:
    config_option(parser, "use the prefixes of this configuration (default: the dialects' own)")


def run(options: argparse.Namespace) -> int:
    lines = route_table(load(options.config, KNOWN) if options.config else Config())
    wide = max(len(line.path) for line in lines)
    for line in lines:
        when = f" (with {line.when})" if line.when else ""
        print(f"{line.method:6} {line.path:{wide}} {line.dialect}{when}")
    return 0
