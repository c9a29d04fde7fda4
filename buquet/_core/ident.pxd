# C types for ident.py.

cimport cython
from libc.stdint cimport uint64_t

cdef object _pack

@cython.locals(high=uint64_t, low=uint64_t)
cpdef bytes parse(str text)

@cython.locals(high=uint64_t, low=uint64_t)
cpdef (uint64_t, uint64_t) halves(str text) except *

@cython.locals(high=uint64_t, _=uint64_t)
cpdef int version(str task_id) except -1

@cython.locals(high=uint64_t, _=uint64_t)
cpdef uint64_t due_ms(str task_id) except? 0

@cython.locals(_=uint64_t, low=uint64_t, value=int)
cpdef int priority(str task_id) except -1

@cython.locals(high=uint64_t, low=uint64_t)
cdef (uint64_t, uint64_t) _halves_of_v7(str task_id) except *

@cython.locals(low=uint64_t)
cdef str _format(uint64_t due_ms, uint64_t priority, uint64_t random_bits)

@cython.locals(number=uint64_t, at=Py_ssize_t, code=long)
cdef uint64_t _hex(str text, Py_ssize_t start, Py_ssize_t end) except? 0
