# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The native relay of one stream: `SameWire` if its client and worker speak the same wire, else `Translated`.

A `Relay` takes two roles: that of the exchange's sink, and that of the connection in its transport. A read that is
whole HTTP chunks, each an ordinary event by the lane's templates, becomes the client's bytes here, with the same result
and the same books as by `WorkerConnection`, `Pump.block` and the lane's `feed`. Every other read goes to the
connection, unchanged. So back-pressure, deadlines, ends, failures and TLS stay where they are.

The connection's parser sees nothing of a relayed read. So reads are relayed only while the parser is known to stand
between two chunks (`_expect`).
"""

import time

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.string cimport memcmp, memcpy

from gateway.core.continuation import FOLD_LENGTH, FOLD_MASK
from gateway.core.events import Delta
from gateway.wire.chunk_template import text_of

cdef enum:
    MOST_BYTES = 4096  # the largest read that is relayed; below what the connection calls a large read
    MOST_OUT = 16384  # the most bytes that it becomes
    MOST_DIGITS = 4  # of a chunk's size
    MOST_TEMPLATES = 8  # chunk_template.TRIES
    MOST_NUMBER = 9  # digits of a token's id or of a count, as in chunk_template
    HEAD = 6  # MOST_DIGITS and CRLF: the most bytes in front of a client's chunk

cdef enum:  # the parts of a `ChunkTemplate`
    BEFORE, AFTER, MIDDLE, END

cdef object _delta = Delta
cdef object _text_of = text_of
cdef object _monotonic = time.monotonic
cdef long _fold_mask = FOLD_MASK
cdef Py_ssize_t _fold_length = FOLD_LENGTH


cdef Py_ssize_t _chunk(const unsigned char *data, Py_ssize_t size, Py_ssize_t *at) noexcept:
    """The length of the chunk that begins at `at`, if all of it is in `data`, in the plainest form. Sets `at` to where
    its content begins. Else -1."""
    cdef Py_ssize_t length = 0, index = at[0]
    cdef Py_ssize_t most = min(size, index + MOST_DIGITS)
    cdef unsigned char byte
    while index < most:
        byte = data[index]
        if 48 <= byte <= 57:
            length = length * 16 + byte - 48
        elif 97 <= byte <= 102:
            length = length * 16 + byte - 87
        elif 65 <= byte <= 70:
            length = length * 16 + byte - 55
        else:
            break
        index += 1
    if index == at[0] or size - index < length + 4 or memcmp(data + index, b"\r\n", 2) != 0:
        return -1
    at[0] = index + 2
    return length if memcmp(data + index + 2 + length, b"\r\n", 2) == 0 else -1


cdef class Relay:
    """The common part; see above. The arguments are an `Incoming` that has not ended, its lane and `Pump`; the model's
    gaps; what writes to the client, and the `RequestCycle` that this belongs to, or None."""

    cdef object _exchange, _lane, _pump, _gaps, _bounds, _counts, _write
    cdef object _connection, _transport, _loop_time
    cdef object _expected  # what the parser makes of the last read, if it stood between two chunks before it
    # What writes to the client at the end of the turn; None without a cycle.
    cdef object _cycle, _round, _client_write, _client_closing
    cdef bint _queued  # the round is to call `flush`
    # While the parser is known to stand between two chunks:
    cdef bint _known
    cdef object _view
    cdef Py_buffer _buffer
    cdef double _written_at  # the pump's

    def __init__(self, exchange, lane, pump, gaps, write, cycle):
        self._exchange, self._lane, self._pump, self._gaps, self._write = exchange, lane, pump, gaps, write
        self._bounds, self._counts = gaps.bounds, gaps.counts
        if cycle is not None:
            client = cycle.client
            self._cycle, self._round = cycle, client.loop_round
            self._client_write, self._client_closing = client.transport.write, client.transport.is_closing
        self._connection = connection = exchange.source
        self._loop_time = connection.loop.time
        self._transport = connection.transport
        self._transport.set_protocol(self)
        exchange.pipe(self)

    def __dealloc__(self):
        if self._view is not None:
            PyBuffer_Release(&self._buffer)

    cdef _forget(self):
        """The parser may stand anywhere."""
        self._known = False
        if self._view is not None:
            PyBuffer_Release(&self._buffer)
            self._view = None

    cdef _leave(self):
        """Gives both roles back. Idempotent."""
        self._forget()
        if self._transport is not None:
            if self._transport.get_protocol() is self:
                self._transport.set_protocol(self._connection)
            self._exchange = self._lane = self._transport = self._write = None
            if not self._queued:
                self._cycle = self._round = self._client_write = self._client_closing = None

    # -- the sink of the exchange -----------------------------------------------------------------------------------

    def block(self, data):
        expected, self._expected = self._expected, None
        self._pump.block(data)
        if expected == data:
            self._learn()

    def finished(self, error):
        self._leave()
        self._pump.finished(error)

    # -- the protocol of the worker's transport ---------------------------------------------------------------------

    def get_buffer(self, sizehint):
        return self._view if self._known else self._connection.get_buffer(sizehint)

    def buffer_updated(self, Py_ssize_t nbytes):
        cdef bint small
        if self._known:
            small = nbytes <= MOST_BYTES and nbytes < self._buffer.len
            # Neither is the client slow or gone, nor is the reply over.
            if small and self._exchange.push is not None and self._lane.error is None and self._relayed(nbytes):
                return
            self._forget()
        self._expect(nbytes)
        self._connection.buffer_updated(nbytes)

    def connection_lost(self, error):
        connection = self._connection
        self._leave()
        connection.connection_lost(error)

    def eof_received(self):
        return self._connection.eof_received()

    def pause_writing(self):
        self._connection.pause_writing()

    def resume_writing(self):
        self._connection.resume_writing()

    # -- where the parser stands ------------------------------------------------------------------------------------

    cdef _expect(self, Py_ssize_t size):
        """A read goes to the parser. If it is whole chunks, and the parser makes of it just their contents, which all
        begin with `data: ` and have no CR, then the parser stands between two chunks behind it. From any other state
        it would have taken for content a digit or a CR of the framing, or less, or failed."""
        cdef const unsigned char *data
        cdef Py_ssize_t at = 0, length
        cdef Py_buffer buffer
        before, self._expected = self._expected, None
        # The one before has not been taken in yet, or there is nothing that a chunk could be ordinary by.
        if before is not None or size > MOST_BYTES or not self._usual():
            return
        contents = []
        PyObject_GetBuffer(self._connection.get_buffer(-1), &buffer, PyBUF_SIMPLE)
        try:
            data = <const unsigned char *>buffer.buf
            while at < size <= buffer.len:
                length = _chunk(data, size, &at)
                if length < 6 or memcmp(data + at, b"data: ", 6) != 0:
                    return
                contents.append(PyBytes_FromStringAndSize(<const char *>data + at, length))
                at += length + 2
        finally:
            PyBuffer_Release(&buffer)
        content = b"".join(contents)
        if b"\r" not in content:
            self._expected = content

    cdef _learn(self):
        """The parser stands between two chunks."""
        lane = self._lane
        if lane is None or lane.done or lane.error is not None or self._exchange.source is None:
            return
        if self._learned(self._usual()):
            view = self._connection.get_buffer(-1)
            PyObject_GetBuffer(view, &self._buffer, PyBUF_SIMPLE)
            self._view, self._known, self._written_at = view, True, self._pump.written_at

    # -- of each kind -----------------------------------------------------------------------------------------------

    cdef object _usual(self):
        """The lane's templates, or something false."""
        raise NotImplementedError

    cdef bint _learned(self, usual) except -1:
        """Takes the lane's templates `usual`. False if there are none, or the lane does not stand between two
        events."""
        raise NotImplementedError

    cdef bint _relayed(self, Py_ssize_t size) except -1:
        """Relays a read of `size` bytes. False, and nothing has happened, if it is not all ordinary."""
        raise NotImplementedError

    # -- ordinary chunks --------------------------------------------------------------------------------------------

    cdef _note(self):
        """Does the pump's books, and the model's, for output."""
        cdef int bucket = 0
        cdef double gap
        now = _monotonic()
        gap = <double>now - self._written_at
        self._written_at = now
        self._pump.written_at = now
        for bound in <tuple?>self._bounds:
            if gap <= <double>bound:
                break
            bucket += 1
        (<list?>self._counts)[bucket] += 1
        self._gaps.total += gap

    cdef _pass_on(self, char *out, Py_ssize_t used):
        """Writes out[HEAD:used], in front of which there is room for its framing."""
        cdef Py_ssize_t length = used - HEAD, start = HEAD - 2
        cycle = self._cycle
        if cycle is None or cycle.pending:
            self._write(PyBytes_FromStringAndSize(out + HEAD, length))
        elif not cycle.gone:
            memcpy(out + start, b"\r\n", 2)
            memcpy(out + used, b"\r\n", 2)
            while length:
                start -= 1
                out[start] = b"0123456789abcdef"[length & 15]
                length >>= 4
            cycle.pending = PyBytes_FromStringAndSize(out + start, used + 2 - start)
            if not self._queued:
                self._queued = True
                outbox = self._round.outbox
                if outbox:
                    (<list?>outbox).append(self)  # without a call of Python
                else:
                    self._round.send(self)

    def flush(self):
        """Called at the end of the turn, in place of the cycle. The stream may have ended since."""
        self._queued = False
        cycle = self._cycle
        pending = cycle.pending
        if pending:
            cycle.pending = b""
            if not cycle.gone and not self._client_closing():
                self._client_write(pending)
        if self._transport is None:
            self._cycle = self._round = self._client_write = self._client_closing = None


cdef class SameWire(Relay):
    """Its lane is a `PassthroughLane`."""

    cdef object _text  # the lane's
    cdef long _produced  # likewise
    cdef list _templates

    cdef object _usual(self):
        return self._lane.usual if self._lane is not None else None

    cdef bint _learned(self, usual) except -1:
        if not self._lane.frames.idle:
            return False
        self._text, self._produced = self._lane.text, self._lane.produced
        self._templates = usual[:MOST_TEMPLATES]
        return len(self._templates) > 0

    cdef bint _relayed(self, Py_ssize_t size) except -1:
        cdef const unsigned char *data = <const unsigned char *>self._buffer.buf
        cdef const unsigned char *literal
        cdef Py_ssize_t at = 0, length, inside, used = HEAD, part_size
        cdef bint first
        cdef bytes part
        cdef tuple usual
        cdef list texts = []
        cdef char out[HEAD + MOST_OUT + 2]
        while at < size:
            length = _chunk(data, size, &at)
            if length < 0:
                return False
            usual = self._matching(data + at, length)
            if usual is None:
                return False
            # The inside of the text's literal: its quotes are the templates'.
            part_size = PyBytes_GET_SIZE(<bytes>usual[0])
            literal = data + at + part_size
            inside = length - part_size - PyBytes_GET_SIZE(<bytes>usual[1])
            text = _text(literal, inside)
            if not text:
                return False
            texts.append(text)
            first = True
            for part in <list?>usual[2]:
                part_size = PyBytes_GET_SIZE(part)
                if used + inside + part_size > HEAD + MOST_OUT:
                    return False
                if not first:
                    memcpy(out + used, literal, inside)
                    used += inside
                memcpy(out + used, PyBytes_AS_STRING(part), part_size)
                used += part_size
                first = False
            at += length + 2
        self._connection.since = self._loop_time()
        try:
            self._keep(texts)
            self._note()
            self._pass_on(out, used)
        except Exception as bug:
            self._pump.broken(bug)
        return True

    cdef tuple _matching(self, const unsigned char *event, Py_ssize_t length):
        """The template of `event`, or None."""
        cdef tuple usual
        cdef bytes before, after
        cdef Py_ssize_t size
        for usual in self._templates:
            before, after = <bytes?>usual[0], <bytes?>usual[1]
            size = PyBytes_GET_SIZE(after)
            if (
                length > PyBytes_GET_SIZE(before) + size
                and memcmp(event, PyBytes_AS_STRING(before), PyBytes_GET_SIZE(before)) == 0
                and memcmp(event + length - size, PyBytes_AS_STRING(after), size) == 0
            ):
                return usual
        return None

    cdef _keep(self, list texts):
        """Does the lane's books."""
        for text in texts:
            self._produced += 1
            self._text.add(text)
            if not self._produced & _fold_mask or len(text) > _fold_length:
                self._text.fold()
        self._lane.produced = self._produced


cdef class Translated(Relay):
    """Its lane is an `EventLane` with a `wire.openai.streams.reading.Reader`, and writes the events that this reads."""

    cdef object _reader
    cdef object _template  # the `ChunkTemplate` below
    cdef object _choice, _index  # of its text
    cdef bytes _digits  # the number of the last event
    cdef const unsigned char *_parts[4]  # before, after, middle, end
    cdef Py_ssize_t _sizes[4]

    def __cinit__(self, exchange, lane, *more):
        self._reader = lane.reader

    cdef object _usual(self):
        return self._reader.usual

    cdef bint _learned(self, usual) except -1:
        cdef int i
        cdef bytes part
        if usual is None or not self._reader.frames.idle:
            return False
        self._template = usual
        self._choice, self._index = self._reader.usual_at
        for i, part in enumerate((usual.before, usual.after, usual.middle, usual.end)):
            self._parts[i], self._sizes[i] = <const unsigned char *>PyBytes_AS_STRING(part), PyBytes_GET_SIZE(part)
        return True

    cdef bint _relayed(self, Py_ssize_t size) except -1:
        cdef const unsigned char *data = <const unsigned char *>self._buffer.buf
        cdef Py_ssize_t at = 0, length
        cdef list events = []
        cdef bytes written
        cdef char out[HEAD + MOST_OUT + 2]
        lane = self._lane
        while at < size:
            length = _chunk(data, size, &at)
            if length < 0:
                return False
            event = self._event(data + at, length)
            if event is None:
                return False
            events.append(event)
            at += length + 2
        self._connection.since = self._loop_time()
        try:
            if self._sizes[MIDDLE]:
                self._reader.late_output = self._digits
            written = lane.take(events)
            length = PyBytes_GET_SIZE(written)
            if length:
                self._note()
            if length > MOST_OUT:
                self._write(written)
            elif length:
                memcpy(out + HEAD, PyBytes_AS_STRING(written), length)
                self._pass_on(out, HEAD + length)
            if lane.error is not None:
                self._pump.ended()
        except Exception as bug:
            self._pump.broken(bug)
        return True

    cdef object _event(self, const unsigned char *event, Py_ssize_t length):
        """The `Delta` of an event, as by `Reader.ordinary`; None if it does not match the template."""
        cdef Py_ssize_t before = self._sizes[BEFORE], close = length, stop
        if length <= before or memcmp(event, self._parts[BEFORE], before) != 0:
            return None
        if self._sizes[END]:
            stop = self._part(event, close, END)
            close = _number(event, before, stop)
            if close < 0:
                return None
            self._digits = PyBytes_FromStringAndSize(<const char *>event + close, stop - close)
            if self._sizes[MIDDLE]:
                close = _number(event, before, self._part(event, close, MIDDLE))
                if close < 0:
                    return None
        close = self._part(event, close, AFTER)
        text = _text(event + before, close - before) if close > before else None
        if not text:
            return None
        if self._sizes[END] and not self._sizes[MIDDLE]:
            return _delta(self._choice, self._index, text, (int(self._digits),))
        return _delta(self._choice, self._index, text)

    cdef Py_ssize_t _part(self, const unsigned char *event, Py_ssize_t end, int which) noexcept:
        """Where in `event` this part of the template begins, if it ends at `end` and is all behind the first; else
        -1."""
        cdef Py_ssize_t start = end - self._sizes[which]
        if start < self._sizes[BEFORE] or memcmp(event + start, self._parts[which], self._sizes[which]) != 0:
            return -1
        return start


cdef Py_ssize_t _number(const unsigned char *event, Py_ssize_t least, Py_ssize_t end) noexcept:
    """Where in `event` the number in JSON's form begins that ends at `end`, not before `least`; else -1."""
    cdef Py_ssize_t start = end
    while start > least and end - start <= MOST_NUMBER and 48 <= event[start - 1] <= 57:
        start -= 1
    if start >= end or end - start > MOST_NUMBER or (event[start] == 48 and end - start > 1):
        return -1
    return start


cdef object _text(const unsigned char *literal, Py_ssize_t size):
    """The text of a JSON string, of which `literal` is the inside and the bytes beside it are its quotes; None if it is
    not one."""
    cdef Py_ssize_t i
    for i in range(size):
        if literal[i] < 32 or literal[i] > 126 or literal[i] == 34 or literal[i] == 92:
            break
    else:
        return PyUnicode_DecodeASCII(<const char *>literal, size, NULL)
    try:
        return _text_of(PyBytes_FromStringAndSize(<const char *>literal - 1, size + 2))
    except ValueError:  # msgspec.DecodeError and UnicodeDecodeError
        return None
