"""Compaction by the server: a summary by the model stands for a long conversation, in an item that the client keeps.

A client asks for it with a `compaction_trigger` as the last item, and sends the item that it gets instead of all items
but the user's messages. The summary is of the client's own conversation, so it is coded and not encrypted: it must be
read by every gateway, after a restart and with another key, because it cannot be had again.
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from typing import Any

TYPE, TRIGGER = "compaction", "compaction_trigger"
ASK = (
    "This conversation outgrows your context, so a summary will replace it, which you write now. The assistant that "
    "continues knows only that summary and the user's own messages. Say what the user wants and has decided; what was "
    "done, with the names of the files, the commands and the results that matter; what failed; what is open, and what "
    "comes next. Write the summary and nothing else."
)
"""The instruction to the model, sent as the user's last message."""
_TOLD = "Summary of the conversation so far, which it replaces:\n\n"
_MARK = "dgc1."


class Damaged(ValueError):
    """A summary of ours that cannot be read."""


def compaction_item(request_id: str, index: int, summary: str) -> dict[str, Any]:
    """The item `index` of a response, which stands for the conversation."""
    coded = _MARK + urlsafe_b64encode(summary.encode("utf-8", "surrogatepass")).decode()
    return {"type": TYPE, "id": f"cmp_{request_id}_{index}", "encrypted_content": coded}


def as_told(coded: str) -> str | None:
    """A summary as the model gets it, or None if the summary was not made here. Raises Damaged."""
    if not coded.startswith(_MARK):
        return None
    try:
        # Strictly: half a surrogate pair could be sent to no worker.
        summary = b64decode(coded.removeprefix(_MARK), b"-_", validate=True).decode()
    except (Base64Error, ValueError):
        raise Damaged from None
    if not summary.strip():
        raise Damaged
    return _TOLD + summary
