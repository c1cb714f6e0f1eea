"""Scripted faults, and the moment at which they happen.

Grammar: `name[:argument][@when]`, several joined with commas, for example `reset@5`, `status:429`, `crlf,fin@3`.
`when` is `before` (no byte of the answer is sent; the default), `headers` (right after the head) or a number k: after
the k-th token of the reply. A plain reply has no byte before its last token, so there k only says how long it takes.

Ends of the request (at most one a request):
  die            the worker dies: its process exits, or, inside a test, every connection and the listener go away
  reset          the connection is reset (RST)
  fin            the connection is closed (FIN) without the end of the body
  eof            the body ends in an orderly way, but early: no finish chunk, no [DONE]
  stall[:s]      silence, for s seconds or, without them, until `Simulated.go_on`; then the request goes on
  status:N       an error answer with vLLM's body; `status:429:3` adds `Retry-After: 3`
  error-frame[:N]  a stream that says 200 and then `data: {"error": ..., "code": N}` and [DONE] (N: 500)
  bad-chunk      a chunk-size line that is no number
  bad-json       a frame (or a body) that is no JSON, then the connection goes on
  many-choices[:n]  a frame (or a body) that lists n choices (50000), all of index 0, then the connection goes on
  many-calls[:n]    the same with n tool calls in one choice
  many-values[:n]   the same with n objects in a member that no API has
  html[:N]       an HTML page with status N (200)
  empty          status 200 and an empty body
  huge-headers[:n]  n header lines of about 100 bytes (100000)
  header-junk    a header line that no parser takes
  endless[:MB]   one line (in a stream) or one body that does not end before MB megabytes (1048576)
  gzip-bomb[:MB] a gzip body that unpacks to MB megabytes of zeros (64), asked for or not
  short-body     Content-Length larger than what is sent, then FIN
  long-body      Content-Length smaller than what is sent

Forms of the stream (any number, no `when`):
  no-done        no [DONE]                       crlf       lines end with CR LF
  nospace        `data:` without a space         comments   a comment line before every event
  multi-data     one event over several data lines
  nan-usage      usage that says NaN             no-usage   no usage, even if asked for
  usage-last     usage on the finish chunk       close      `Connection: close`, body ended by closing
  drip[:n]       written n bytes at a time (1)   bom        a byte order mark first
"""

from __future__ import annotations

from dataclasses import dataclass, field

CROWDED = ("many-choices", "many-calls", "many-values")
_REPLY_ENDS = ("die", "reset", "fin", "eof", "stall", "error-frame", "bad-chunk", "bad-json", "endless", *CROWDED)
_ANSWERS = ("status", "html", "empty", "huge-headers", "header-junk", "gzip-bomb", "short-body", "long-body")
_STREAM_FORMS = ("no-done", "crlf", "nospace", "comments", "multi-data", "bom", "nan-usage", "no-usage", "usage-last")
ENDS = frozenset((*_REPLY_ENDS, *_ANSWERS))
FORMS = frozenset((*_STREAM_FORMS, "close", "drip"))
BEFORE = -1
HEADERS = 0


@dataclass
class Fault:
    """One request's faults. `at`: BEFORE, HEADERS or the number of tokens after which `end` happens."""

    spec: str
    end: str = ""
    argument: str = ""
    at: int = BEFORE
    forms: frozenset[str] = frozenset()
    drip: int = 1

    def number(self, default: float) -> float:
        """The argument as a number."""
        return float(self.argument.partition(":")[0]) if self.argument else default


def parse(spec: str) -> Fault:
    """Read a fault. Raises ValueError, naming the part it cannot read."""
    fault = Fault(spec)
    forms = set()
    for part in filter(None, (part.strip() for part in spec.split(","))):
        rest, _, when = part.partition("@")
        name, _, argument = rest.partition(":")
        if name in FORMS and not when:
            forms.add(name)
            if name == "drip" and argument:
                fault.drip = int(argument)
            continue
        if name not in ENDS:
            raise ValueError(f"unknown fault {part!r}")
        if fault.end:
            raise ValueError(f"a request ends once: {fault.end!r} or {name!r}")
        if when not in ("", "before", "headers") and not when.isdigit():
            raise ValueError(f"{part!r}: when is 'before', 'headers' or a number of tokens")
        fault.end, fault.argument = name, argument
        fault.at = int(when) if when.isdigit() else HEADERS if when == "headers" else BEFORE
        if name == "status" and not argument.partition(":")[0].isdigit():
            raise ValueError(f"{part!r}: status needs a number")
        fault.number(0)
    fault.forms = frozenset(forms)
    return fault


def crowded(fault: Fault, holder: str) -> bytes:
    """The frame or the body of a fault in CROWDED, with its content in `holder`: delta or message."""
    entries = int(fault.number(50_000))
    choice = f'{{"index":0,"text":"a","{holder}":{{"content":"a"}}}}'
    if fault.end == "many-values":
        return f'{{"id":"chatcmpl-1","choices":[{choice}],"more":[{",".join(["{}"] * entries)}]}}'.encode()
    if fault.end == "many-choices":
        choices = [choice] * entries
    else:
        called = ",".join(f'{{"id":"call_{at}","function":{{"name":"f"}}}}' for at in range(entries))
        choices = [f'{{"index":0,"text":"a","{holder}":{{"tool_calls":[{called}]}}}}']
    return f'{{"id":"chatcmpl-1","choices":[{",".join(choices)}]}}'.encode()


@dataclass
class Defaults:
    """The fault of requests that name none: `count` of them (None: all), after the first `skip`."""

    fault: Fault | None = None
    count: int | None = None
    skip: int = 0
    path: str = ""
    applied: int = field(default=0, init=False)

    def take(self, path: str) -> Fault | None:
        """The fault for the next request on `path`, or None."""
        if self.fault is None or not path.startswith(self.path):
            return None
        if self.skip > 0:
            self.skip -= 1
            return None
        if self.count is not None and self.applied >= self.count:
            return None
        self.applied += 1
        return self.fault
