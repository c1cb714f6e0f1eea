"""`python -m gateway.config`: writes what is generated from the options.

schema                 the JSON Schema, to standard output
reference              the tables of docs/configuration.md, to standard output
update FOLDER          configuration.md and gateway.schema.json in FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gateway.config.reference import documented, json_schema, reference_markdown


def main(arguments: list[str]) -> int:
    match arguments:
        case ["schema"]:
            print(json.dumps(json_schema(), indent=2))
        case ["reference"]:
            print(reference_markdown(), end="")
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
