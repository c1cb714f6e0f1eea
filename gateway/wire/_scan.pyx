# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""One look over a whole JSON text: see `gateway.wire.scan`, which is where the rest of the gateway finds this."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.string cimport memchr, memcmp, memcpy

cdef enum:
    MOST_DEPTH = 64  # open objects and arrays; far below the depth at which any decoder gives up
    MOST_NAMES = 512  # of the members of all open objects
    MOST_SIBLINGS = 64  # members of one object: each name is compared with the others at most once
    MOST_NAME = 64  # bytes of a name
    MOST_DIGITS = 18  # of an integer: below 2**63
    MOST_POWER = 2  # digits of an exponent: a number with MOST_DIGITS and this one is finite
    MOST_REMOVED = 16  # names of `without_nulls`

cdef unsigned char _stops[256]  # 1 for a byte that does not stand for itself in a string
for _byte in range(256):
    _stops[_byte] = _byte < 32 or _byte == 34 or _byte == 92

ctypedef const unsigned char *Cursor

cdef unsigned long long HIGHEST = 0x8080808080808080ULL  # the highest bit of each of eight bytes


cdef inline Cursor _blank(Cursor at, Cursor end) noexcept nogil:
    """Where no white space is."""
    while at < end and (at[0] == 32 or at[0] == 10 or at[0] == 13 or at[0] == 9):
        at += 1
    return at


cdef int _unit(Cursor at, Cursor end) noexcept nogil:
    r"""The UTF-16 unit of the escape `\uXXXX` at `at`; -1 if there is none."""
    cdef int found = 0, index
    cdef unsigned char byte
    if end - at < 6 or at[0] != 92 or at[1] != 117:
        return -1
    for index in range(2, 6):
        byte = at[index]
        if 48 <= byte <= 57:
            found = found * 16 + byte - 48
        elif 97 <= byte <= 102:
            found = found * 16 + byte - 87
        elif 65 <= byte <= 70:
            found = found * 16 + byte - 55
        else:
            return -1
    return found


cdef inline unsigned long long _zeros(unsigned long long eight) noexcept nogil:
    """Not 0 if one of these eight bytes is 0: its highest bit is set then."""
    return (eight - 0x0101010101010101ULL) & ~eight


cdef Cursor _string(Cursor at, Cursor end, bint *escaped, unsigned long long *joined) noexcept nogil:
    """Where the string ends whose opening quote is before `at`, behind its closing quote; NULL if it is no good."""
    cdef unsigned long long eight, bits = 0, stops
    cdef unsigned char byte = 0
    cdef int unit
    while True:
        while end - at >= 8:  # a fifth of the instructions of a byte at a time
            memcpy(&eight, at, 8)
            stops = (eight - 0x2020202020202020ULL) & ~eight  # a byte below 32
            stops |= _zeros(eight ^ 0x2222222222222222ULL) | _zeros(eight ^ 0x5C5C5C5C5C5C5C5CULL)
            if stops & HIGHEST:
                break
            bits |= eight
            at += 8
        while at < end:
            byte = at[0]
            if _stops[byte]:
                break
            bits |= byte
            at += 1
        if at == end:
            return NULL
        if byte == 34:
            joined[0] |= bits
            return at + 1
        if byte == 92:
            escaped[0] = True
            if end - at < 2:
                return NULL
            byte = at[1]
            if byte == 117:
                unit = _unit(at, end)
                if unit < 0 or 0xDC00 <= unit <= 0xDFFF:
                    return NULL
                at += 6
                if 0xD800 <= unit <= 0xDBFF:
                    unit = _unit(at, end)
                    if not 0xDC00 <= unit <= 0xDFFF:
                        return NULL
                    at += 6
                continue
            if memchr(b'"\\/bfnrt', byte, 8) == NULL:
                return NULL
            at += 2
        else:
            return NULL


cdef inline Cursor _digits(Cursor at, Cursor end) noexcept nogil:
    while at < end and 48 <= at[0] <= 57:
        at += 1
    return at


cdef Cursor _number(Cursor at, Cursor end) noexcept nogil:
    """Where the number at `at` ends; NULL if it is none, or may be too large for some reader."""
    cdef Cursor start
    if at[0] == 45:
        at += 1
    start, at = at, _digits(at, end)
    if at == start or at - start > MOST_DIGITS or (start[0] == 48 and at - start > 1):
        return NULL
    if at < end and at[0] == 46:
        start, at = at + 1, _digits(at + 1, end)
        if at == start:
            return NULL
    if at < end and (at[0] == 101 or at[0] == 69):
        at += 1
        if at < end and (at[0] == 43 or at[0] == 45):
            at += 1
        start, at = at, _digits(at, end)
        if at == start or at - start > MOST_POWER:
            return NULL
    return at


cdef bint _plain(Cursor at, Cursor end, unsigned long long *joined) noexcept nogil:
    """`is_plain`, but for the encoding of characters. joined: all that strings have, joined by `or`, eight in a row."""
    cdef Cursor names[MOST_NAMES]
    cdef Py_ssize_t sizes[MOST_NAMES]
    cdef int firsts[MOST_DEPTH]  # where the names of each open object begin; -1 for an array
    cdef unsigned long long marks[MOST_DEPTH]  # a bit for each name of it, by its length and its last byte
    cdef unsigned long long mark
    cdef int depth = 0, count = 0, other
    cdef bint escaped, begun = False  # begun: an object or an array was just opened
    cdef Cursor start
    cdef Py_ssize_t size
    while True:
        at = _blank(at, end)
        if at == end:
            return False
        if depth and begun and at[0] == (93 if firsts[depth - 1] < 0 else 125):
            pass  # it is empty: its end is read below
        else:
            if depth and firsts[depth - 1] >= 0:  # a name comes first
                start, escaped = at + 1, False
                if at[0] != 34:
                    return False
                at = _string(start, end, &escaped, joined)
                if at == NULL or escaped:
                    return False
                size = at - 1 - start
                if size > MOST_NAME or count == MOST_NAMES or count - firsts[depth - 1] == MOST_SIBLINGS:
                    return False
                mark = 1ULL << ((size * 7 + (start[size - 1] if size else 0)) & 63)
                if marks[depth - 1] & mark:
                    for other in range(firsts[depth - 1], count):
                        if sizes[other] == size and memcmp(names[other], start, size) == 0:
                            return False
                marks[depth - 1] |= mark
                names[count], sizes[count] = start, size
                count += 1
                at = _blank(at, end)
                if at == end or at[0] != 58:
                    return False
                at = _blank(at + 1, end)
                if at == end:
                    return False
            begun = at[0] == 123 or at[0] == 91
            if begun:
                if depth == MOST_DEPTH:
                    return False
                firsts[depth], marks[depth] = count if at[0] == 123 else -1, 0
                depth += 1
                at += 1
                continue
            if at[0] == 34:
                at = _string(at + 1, end, &escaped, joined)
                if at == NULL:
                    return False
            elif at[0] == 45 or 48 <= at[0] <= 57:
                at = _number(at, end)
                if at == NULL:
                    return False
            elif end - at >= 4 and (memcmp(at, b"null", 4) == 0 or memcmp(at, b"true", 4) == 0):
                at += 4
            elif end - at >= 5 and memcmp(at, b"false", 5) == 0:
                at += 5
            else:
                return False
        begun = False
        while True:  # behind a value
            at = _blank(at, end)
            if at == end:
                return depth == 0
            if depth == 0:
                return False
            if at[0] == 44:
                at += 1
                break
            if at[0] != (93 if firsts[depth - 1] < 0 else 125):
                return False
            depth -= 1
            if firsts[depth] >= 0:
                count = firsts[depth]
            at += 1


def is_plain(text not None):
    cdef Py_buffer view
    cdef unsigned long long joined = 0
    cdef bint plain
    PyObject_GetBuffer(text, &view, PyBUF_SIMPLE)
    try:
        plain = _plain(<Cursor>view.buf, <Cursor>view.buf + view.len, &joined)
        if plain and joined & HIGHEST:
            try:
                PyUnicode_DecodeUTF8(<const char *>view.buf, view.len, NULL)
            except UnicodeDecodeError:
                return False
        return plain
    finally:
        PyBuffer_Release(&view)


cdef class _Nulls:
    cdef list _members  # which own the bytes below
    cdef const char *_starts[MOST_REMOVED]
    cdef Py_ssize_t _sizes[MOST_REMOVED]
    cdef int _count

    def __init__(self, names):
        cdef int number
        self._members = [b',"%b":null' % name for name in names]
        self._count = len(self._members)
        if self._count > MOST_REMOVED:
            raise ValueError("too many names")
        for number in range(self._count):
            self._starts[number] = PyBytes_AS_STRING(self._members[number])
            self._sizes[number] = PyBytes_GET_SIZE(self._members[number])

    cdef Py_ssize_t _size(self, const char *at, Py_ssize_t left) noexcept:
        """The length of the member at `at`, if it is one of these; else 0."""
        cdef int number
        if left > 8 and at[1] == 34:
            for number in range(self._count):
                if left >= self._sizes[number] and memcmp(at, self._starts[number], self._sizes[number]) == 0:
                    return self._sizes[number]
        return 0

    def __call__(self, bytes text not None):
        cdef const char *at = PyBytes_AS_STRING(text)
        cdef const char *end = at + PyBytes_GET_SIZE(text)
        cdef const char *rest = at  # what is from here on has not been copied
        cdef char *out = NULL
        cdef Py_ssize_t written = 0, size
        cdef bytes made = None
        while True:
            at = <const char *>memchr(at, 44, end - at)
            if at == NULL:
                break
            size = self._size(at, end - at)
            if size == 0:
                at += 1
                continue
            if made is None:
                made = PyBytes_FromStringAndSize(NULL, PyBytes_GET_SIZE(text))
                out = PyBytes_AS_STRING(made)
            memcpy(out + written, rest, at - rest)
            written += at - rest
            at += size
            rest = at
        if made is None:
            return text
        memcpy(out + written, rest, end - rest)
        written += end - rest
        return made[:written]


def without_nulls(*names):
    return _Nulls(names)
