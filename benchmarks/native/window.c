/* The window's work in C: what a native extension would give. A prototype that is measured, not shipped.
 *
 * A ring of the last n scores and the same scores in order, each in one block of doubles: two binary
 * searches to rank, one memmove to evict and insert.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

typedef struct {
    PyObject_HEAD
    Py_ssize_t capacity, length, oldest;
    double *ring, *ordered;
} Window;

static Py_ssize_t below(const Window *w, double x) {
    Py_ssize_t low = 0, high = w->length;
    while (low < high) {
        Py_ssize_t middle = (low + high) >> 1;
        if (w->ordered[middle] < x) low = middle + 1; else high = middle;
    }
    return low;
}

static Py_ssize_t at_or_below(const Window *w, double x, Py_ssize_t low) {
    Py_ssize_t high = w->length;
    if (low == high || w->ordered[low] != x) return low;
    while (low < high) {
        Py_ssize_t middle = (low + high) >> 1;
        if (w->ordered[middle] <= x) low = middle + 1; else high = middle;
    }
    return low;
}

static int window_init(Window *w, PyObject *args, PyObject *kwds) {
    Py_ssize_t capacity;
    if (!PyArg_ParseTuple(args, "n", &capacity)) return -1;
    w->capacity = capacity;
    w->length = w->oldest = 0;
    w->ring = PyMem_Malloc(2 * capacity * sizeof(double));
    if (w->ring == NULL) { PyErr_NoMemory(); return -1; }
    w->ordered = w->ring + capacity;
    return 0;
}

static void window_dealloc(Window *w) {
    PyMem_Free(w->ring);
    Py_TYPE(w)->tp_free((PyObject *)w);
}

static PyObject *window_push(Window *w, PyObject *score) {
    double x = PyFloat_AsDouble(score) + 0.0;
    if (x == -1.0 && PyErr_Occurred()) return NULL;
    Py_ssize_t in = below(w, x);
    if (w->length < w->capacity) {
        memmove(w->ordered + in + 1, w->ordered + in, (w->length - in) * sizeof(double));
        w->ordered[in] = w->ring[w->length++] = x;
        Py_RETURN_NONE;
    }
    double evicted = w->ring[w->oldest];
    Py_ssize_t out = below(w, evicted);
    if (out < in) {
        in--;
        memmove(w->ordered + out, w->ordered + out + 1, (in - out) * sizeof(double));
    } else {
        memmove(w->ordered + in + 1, w->ordered + in, (out - in) * sizeof(double));
    }
    w->ordered[in] = w->ring[w->oldest] = x;
    w->oldest = w->oldest + 1 < w->capacity ? w->oldest + 1 : 0;
    return PyFloat_FromDouble(evicted);
}

static PyObject *window_rank(Window *w, PyObject *score) {
    double x = PyFloat_AsDouble(score);
    if (x == -1.0 && PyErr_Occurred()) return NULL;
    Py_ssize_t low = below(w, x), high = at_or_below(w, x, low);
    PyObject *first = PyLong_FromSsize_t(low), *second = PyLong_FromSsize_t(high);
    PyObject *both = first && second ? PyTuple_Pack(2, first, second) : NULL;
    Py_XDECREF(first);
    Py_XDECREF(second);
    return both;
}

static PyObject *window_order_statistic(Window *w, PyObject *which) {
    Py_ssize_t k = PyLong_AsSsize_t(which);
    if (k == -1 && PyErr_Occurred()) return NULL;
    if (k < 1 || k > w->length) return PyErr_Format(PyExc_IndexError, "no order statistic %zd", k);
    return PyFloat_FromDouble(w->ordered[k - 1]);
}

static PyObject *listed(const Window *w, Py_ssize_t start, Py_ssize_t count, const double *from) {
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list && i < count; i++) {
        Py_ssize_t at = start + i;
        PyObject *x = PyFloat_FromDouble(from[at < w->length ? at : at - w->length]);
        if (x == NULL) { Py_DECREF(list); return NULL; }
        PyList_SET_ITEM(list, i, x);
    }
    return list;
}

static PyObject *window_largest(Window *w, PyObject *how_many) {
    Py_ssize_t k = PyLong_AsSsize_t(how_many);
    if (k == -1 && PyErr_Occurred()) return NULL;
    if (k > w->length) k = w->length;
    return listed(w, w->length - k, k, w->ordered);
}

static PyObject *window_scores(Window *w, PyObject *nothing) {
    return listed(w, w->oldest, w->length, w->ring);
}

static Py_ssize_t window_length(Window *w) { return w->length; }

static PyObject *window_capacity(Window *w, void *nothing) { return PyLong_FromSsize_t(w->capacity); }

static PyMethodDef methods[] = {
    {"push", (PyCFunction)window_push, METH_O, "Add a score; return the evicted one, or None."},
    {"rank", (PyCFunction)window_rank, METH_O, "Return how many are below, and at or below."},
    {"order_statistic", (PyCFunction)window_order_statistic, METH_O, "Return the k-th smallest."},
    {"largest", (PyCFunction)window_largest, METH_O, "Return the k largest, in rising order."},
    {"scores", (PyCFunction)window_scores, METH_NOARGS, "Return the scores, oldest first."},
    {NULL},
};
static PyGetSetDef getters[] = {{"capacity", (getter)window_capacity}, {NULL}};
static PySequenceMethods sequence = {.sq_length = (lenfunc)window_length};
static PyTypeObject type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "window.Window",
    .tp_basicsize = sizeof(Window),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)window_init,
    .tp_dealloc = (destructor)window_dealloc,
    .tp_methods = methods,
    .tp_getset = getters,
    .tp_as_sequence = &sequence,
};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "window", NULL, -1};

PyMODINIT_FUNC PyInit_window(void) {
    PyObject *made = PyType_Ready(&type) < 0 ? NULL : PyModule_Create(&module);
    if (made && PyModule_AddObjectRef(made, "Window", (PyObject *)&type) < 0) Py_CLEAR(made);
    return made;
}
