# C types for rfc3339.py. Errors of the functions that return integers are told by -1 or, where
# -1 is a proper value, by a check of the exception state (`except? -1`).

cimport cython

cdef long long _FIRST_MS
cdef long long _LAST_MS
cdef dict _MONTHS
cdef frozenset _DAYS
cdef frozenset _LONG_DAYS

@cython.locals(time=long, year=long, month=long, day=long, hour=long, minute=long, second=long, milli=long)
cpdef str format_ms(long long ms)

@cython.locals(time=long, year=long, month=long, day=long, hour=long, minute=long, second=long)
cpdef str format_basic_s(long long seconds)

@cython.locals(size=Py_ssize_t, at=Py_ssize_t, days="long long", seconds="long long", milli=long)
cpdef long long parse_ms(str text) except? -1

cpdef long long parse_http_date(str text) except? -1

cdef long long _fixdate(str text) except? -1

cdef long long _asctime(str text) except? -1

@cython.locals(name=str, _=str, rest=str, year=long)
cdef long long _rfc850(str text) except? -1

@cython.locals(seconds="long long")
cdef long long _utc_ms(str text, long long days, Py_ssize_t at) except? -1

cdef int _check_range(long long ms) except -1

@cython.locals(era=long, day_of_era=long, year=long, day_of_year=long, month=long, day=long)
cdef (long, long, long) _civil(long days)

@cython.locals(era=long, year_of_era=long, day_of_year=long)
cdef long _days(str text, long year, long month, long day) except? -1

cdef long _month_length(long year, long month)

@cython.locals(hour=long, minute=long, second=long)
cdef long _time_of_day(str text, Py_ssize_t at) except -1

cdef int _check_leap(str text, Py_ssize_t at, long long seconds) except -1

@cython.locals(size=Py_ssize_t, hour=long, minute=long, offset=long)
cdef long _offset_s(str text, Py_ssize_t at) except? -1

@cython.locals(at=Py_ssize_t, size=Py_ssize_t)
cdef Py_ssize_t _end_of_digits(str text, Py_ssize_t start) except -1

@cython.locals(digits=Py_ssize_t, milli=long)
cdef long _milliseconds(str text, Py_ssize_t end) except -1

cdef long _month(str text, Py_ssize_t at) except -1

@cython.locals(number=long, at=Py_ssize_t, digit=long)
cdef long _number(str text, Py_ssize_t start, Py_ssize_t end) except -1
