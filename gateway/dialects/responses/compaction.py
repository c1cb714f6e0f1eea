"""Compaction by the server: a summary by the model stands for a long conversation, in an item that the client keeps.

A client asks for it with a `compaction_trigger` as the last item, and sends the item that it gets instead of all items
but the user's messages. The summary is of the client's own conversation, so it is coded and not encrypted: it must be
read by every gateway, after a restart and with another key, because it cannot be had again.
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from typing import Any

from gateway.dialects._shared.faults import wrong_at

TYPE, TRIGGER = "compaction", "compaction_trigger"
ASK = (
    "This conversation outgrows your context, so a summary will replace it, which you write now. The assistant that "
    "continues knows only that summary and the user's own messages. Say what the user wants and has decided; what was "
    "done, with the names of the files, the commands and the results that matter; what failed; what is open, and what "
    "comes next. Write the summary and nothing else."
)
"""The instruction to the model, sent as the user's last message."""
_PREAMBLE = "Summary of the conversation so far, which it replaces:\n\n"
_MARK = "dgc1."


def compaction_item(request_id: str, index: int, summary: str) -> dict[str, Any]:
    """The item `index` of a response, which stands for the conversation."""
    coded = _MARK + urlsafe_b64encode(summary.encode("utf-8", "surrogatepass")).decode()
    return {"type": TYPE, "id": f"cmp_{request_id}_{index}", "encrypted_content": coded}


def read_summary(coded: str, param: str) -> str:
    """The summary in the item at `param`, as the user's words to the model. Raises GatewayError(BAD_REQUEST) if it was
    not made here or is damaged: without it the model would not know the history."""
    if not coded.startswith(_MARK):
        raise wrong_at(param, "no summary that was made here, so the history cannot be read: send the conversation")
    try:
        # Strictly: half a surrogate pair could be sent to no worker.
        summary = b64decode(coded.removeprefix(_MARK), b"-_", validate=True).decode()
    except ValueError:
        summary = ""
    if not summary.strip():
        raise wrong_at(param, "this summary is damaged")
    return _PREAMBLE + summary
