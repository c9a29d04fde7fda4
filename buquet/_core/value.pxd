# C types for value.py.

cimport cython

cpdef object plain(object value, Py_ssize_t max_depth=*, str where=*)

@cython.locals(kind=type)
cdef object _convert(object value, Py_ssize_t room, tuple trail, object key)

cdef object _convert_other(object value, Py_ssize_t room, tuple trail, object key)

@cython.locals(here=tuple, converted=dict)
cdef dict _object(object value, Py_ssize_t room, tuple trail, object key)

@cython.locals(here=tuple, converted=list)
cdef list _array(object value, Py_ssize_t room, tuple trail, object key)

cdef str _text(str value, tuple trail, object key)

cdef object _integer(object value, tuple trail, object key)

cdef object _number(object value, tuple trail, object key)
