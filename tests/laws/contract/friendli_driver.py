"""Runs friendli-client 1.5.8, which needs an environment of its own: a JSON call a line in, a JSON outcome a line out.

Call: {"api": "completions" | "chat", "how": "whole" | "stream" | "wait", "with": keyword arguments of `create`}.
Outcome: {"value": what the client returned or yielded, "raised": [class names, nearest first] or null, "said": text}.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from friendli import Friendli


def main() -> None:
    client = Friendli(token="flp_test", team_id="TEAM", base_url=sys.argv[1])
    apis = {"completions": client.completions, "chat": client.chat.completions}
    for line in sys.stdin:
        call = json.loads(line)
        print(json.dumps(run(apis[call["api"]], call["how"], call["with"])), flush=True)


def run(api: Any, how: str, given: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"value": None, "raised": None, "said": ""}
    try:
        if how == "whole":
            out["value"] = api.create(**given).model_dump()
            return out
        stream = api.create(stream=True, **given)
        if how == "wait":
            out["value"] = stream.wait().model_dump()
            return out
        out["value"] = []
        for one in stream:
            out["value"].append(one.model_dump())
    except Exception as error:
        out["raised"], out["said"] = [kind.__name__ for kind in type(error).__mro__], str(error)
    return out


if __name__ == "__main__":
    main()
