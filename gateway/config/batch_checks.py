"""Faults between options of batches."""

from __future__ import annotations

from gateway.config.faults import Faults
from gateway.config.rules import Facts, bucket_faults

_MOST_COPIED = 5 << 30  # by one request of S3's protocol


def batches(facts: Facts) -> Faults:
    options = facts.config.batches
    if options is None:
        return
    if options.max_line_bytes > facts.config.listen.max_body_bytes:
        yield ("batches", "max_line_bytes"), "must be at most listen.max_body_bytes"
    bucket = options.bucket
    if bucket is None:
        if options.directory is None:
            yield ("batches",), "must say where: directory or bucket"
        return
    at = ("batches", "bucket")
    if options.directory is not None:
        yield at, "and directory exclude each other"
    if options.max_file_bytes > _MOST_COPIED:
        yield ("batches", "max_file_bytes"), "must be at most 5GiB with a bucket: no larger object can be copied"
    yield from bucket_faults(facts, at, bucket)
