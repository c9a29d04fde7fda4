# C types for sign.py. Python sees only the attributes that are `readonly`, so not the secret.

cimport cython

from buquet._core.rfc3339 cimport format_basic_s

cpdef str payload_hash(bytes body)

cpdef str encode_path(str key)

@cython.locals(encoded=list)
cpdef str canonical_query(object pairs)

cdef str _tidy(str value)

cdef class _DayKey:
    cdef long long day
    cdef str scope
    cdef object _inner
    cdef object _outer

    cdef str mac(self, str text)

cdef class Signer:
    cdef readonly str access_key_id
    cdef readonly str region
    cdef str _secret
    cdef str _session_token
    cdef str _service
    cdef _DayKey _key

    @cython.locals(
        seconds="long long", key=_DayKey, date=str, extra=dict, signed=dict, names=list, lines=str,
        listed=str, request=str, signature=str
    )
    cpdef dict sign(
        self, str method, str host, str path, object query, object headers, str payload_hash, object unix_s
    )

    cdef _DayKey _key_of_day(self, long long seconds)
