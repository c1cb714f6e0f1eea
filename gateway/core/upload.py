"""Uploads: bodies of type multipart/form-data. Texts are in memory; files stay where the body was put."""

from __future__ import annotations

from msgspec import Struct


class File(Struct, frozen=True):
    """One file of an upload.

    field  its name in the form; filename and content_type are the client's, cleaned
    start, size  where it is among the bytes of all files of the upload
    head   its first bytes, a few hundred
    """

    field: str
    filename: str
    content_type: str
    start: int
    size: int
    head: bytes = b""
