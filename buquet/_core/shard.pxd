# C types for shard.py: in C the numbers of 64 bits wrap by themselves, and the masks cost nothing.

cimport cython
from libc.stdint cimport uint64_t

from buquet._core.ident cimport halves

@cython.locals(high=uint64_t, low=uint64_t, digest=uint64_t, digits=str)
cpdef str shard_of(str task_id, Py_ssize_t prefix_len)

cdef uint64_t _MASK
cdef uint64_t _PRIME_1
cdef uint64_t _PRIME_2
cdef uint64_t _PRIME_3
cdef uint64_t _PRIME_4
cdef uint64_t _PRIME_5

@cython.locals(size=Py_ssize_t, at=Py_ssize_t, digest=uint64_t)
cpdef uint64_t xxh64(bytes data, uint64_t seed=*) except? 0

@cython.locals(
    lane_1=uint64_t, lane_2=uint64_t, lane_3=uint64_t, lane_4=uint64_t, at=Py_ssize_t, digest=uint64_t
)
cdef uint64_t _stripes(bytes data, Py_ssize_t end, uint64_t seed) except? 0

cdef uint64_t _merge(uint64_t digest, uint64_t lane) noexcept

cdef uint64_t _round(uint64_t lane, uint64_t word) noexcept

cdef uint64_t _rotate(uint64_t word, int count) noexcept

cdef uint64_t _step(uint64_t digest, uint64_t word) noexcept

cdef uint64_t _avalanche(uint64_t digest) noexcept

@cython.locals(word=uint64_t, byte=uint64_t, index=Py_ssize_t)
cdef uint64_t _word(bytes data, Py_ssize_t at, Py_ssize_t size) except? 0

@cython.locals(swapped=uint64_t, _=int)
cdef uint64_t _swap(uint64_t word) noexcept
