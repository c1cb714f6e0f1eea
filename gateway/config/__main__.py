"""`python -m gateway.config update FOLDER`: writes what is made of the options in FOLDER's configuration.md and
gateway.schema.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gateway.config.reference import documented, json_schema


def main(arguments: list[str]) -> int:
    match arguments:
        case ["update", folder]:
            page = Path(folder) / "configuration.md"
            page.write_text(documented(page.read_text(encoding="utf-8")), encoding="utf-8")
            schema = json.dumps(json_schema(), indent=2) + "\n"
            (Path(folder) / "gateway.schema.json").write_text(schema, encoding="utf-8")
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
