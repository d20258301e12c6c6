/* The hot path in C: what a native extension would give. A prototype that is measured, not shipped.
 *
 * Window: a ring of the last n scores and the same scores in order, each in one block of doubles: two
 * binary searches to rank, one memmove to evict and insert.
 *
 * Stream: all that an event of a stream goes through where nothing is unusual, from its reading to its
 * verdict: one Gaussian, rank, window, band, label, severity, evidence.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
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

/* Take a score in; return whether one was evicted, and which. */
static int enter(Window *w, double x, double *evicted) {
    Py_ssize_t in = below(w, x);
    if (w->length < w->capacity) {
        memmove(w->ordered + in + 1, w->ordered + in, (w->length - in) * sizeof(double));
        w->ordered[in] = w->ring[w->length++] = x;
        return 0;
    }
    *evicted = w->ring[w->oldest];
    Py_ssize_t out = below(w, *evicted);
    if (out < in) {
        in--;
        memmove(w->ordered + out, w->ordered + out + 1, (in - out) * sizeof(double));
    } else {
        memmove(w->ordered + in + 1, w->ordered + in, (out - in) * sizeof(double));
    }
    w->ordered[in] = w->ring[w->oldest] = x;
    w->oldest = w->oldest + 1 < w->capacity ? w->oldest + 1 : 0;
    return 1;
}

static PyObject *window_push(Window *w, PyObject *score) {
    double evicted, x = PyFloat_AsDouble(score) + 0.0;
    if (x == -1.0 && PyErr_Occurred()) return NULL;
    if (enter(w, x, &evicted)) return PyFloat_FromDouble(evicted);
    Py_RETURN_NONE;
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

static PyMethodDef window_methods[] = {
    {"push", (PyCFunction)window_push, METH_O, "Add a score; return the evicted one, or None."},
    {"rank", (PyCFunction)window_rank, METH_O, "Return how many are below, and at or below."},
    {"order_statistic", (PyCFunction)window_order_statistic, METH_O, "Return the k-th smallest."},
    {"largest", (PyCFunction)window_largest, METH_O, "Return the k largest, in rising order."},
    {"scores", (PyCFunction)window_scores, METH_NOARGS, "Return the scores, oldest first."},
    {NULL},
};
static PyGetSetDef window_getters[] = {{"capacity", (getter)window_capacity}, {NULL}};
static PySequenceMethods window_sequence = {.sq_length = (lenfunc)window_length};
static PyTypeObject window_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hot.Window",
    .tp_basicsize = sizeof(Window),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)window_init,
    .tp_dealloc = (destructor)window_dealloc,
    .tp_methods = window_methods,
    .tp_getset = window_getters,
    .tp_as_sequence = &window_sequence,
};

enum { MOST_COLUMNS = 64, FIELDS = 34 };
static const double LARGEST_SEVERITY = 1e6, LN_10 = 2.302585092994046;

typedef struct {
    PyObject_HEAD
    Window *window;
    Py_ssize_t d, n_tail, edges[3], seq;
    int by_mid_rank;
    double constant, mean[MOST_COLUMNS], root[MOST_COLUMNS][MOST_COLUMNS]; /* a column after the other */
    double *tail, sigma, shape, start, shade;                             /* calibration scores */
    double least, ordinary, most, limit, level;                           /* of the evidence */
    PyObject *verdict, *labels, *ambiguous, *sure, *confident, *rare, *of_tail, *plain[FIELDS];
} Stream;

/* Copy a sequence of floats; return how many, or -1. */
static Py_ssize_t copied(PyObject *from, double *to, Py_ssize_t most) {
    PyObject *list = PySequence_Fast(from, "a sequence of floats");
    Py_ssize_t count = list ? PySequence_Fast_GET_SIZE(list) : -1;
    if (count > most) PyErr_SetString(PyExc_ValueError, "too many columns"), count = -1;
    for (Py_ssize_t i = 0; i < count; i++) to[i] = PyFloat_AsDouble(PySequence_Fast_GET_ITEM(list, i));
    Py_XDECREF(list);
    return PyErr_Occurred() ? -1 : count;
}

/* Stream(window, gaussian, edges, by_mid_rank, tables, tail, evidence, verdict, labels, ambiguous, plain, seq) */
static int stream_init(Stream *s, PyObject *args, PyObject *kwds) {
    PyObject *window, *mean, *columns, *tail, *plain;
    if (!PyArg_ParseTuple(
            args, "O(dOO)(nnn)p(OOO)(OOdddd)(dddd)OOOOn", &window, &s->constant, &mean, &columns, s->edges,
            s->edges + 1, s->edges + 2, &s->by_mid_rank, &s->sure, &s->confident, &s->rare, &tail,
            &s->of_tail, &s->sigma, &s->shape, &s->start, &s->shade, &s->least, &s->ordinary,
            &s->most, &s->limit, &s->verdict, &s->labels, &s->ambiguous, &plain, &s->seq))
        return -1;
    s->window = (Window *)Py_NewRef(window);
    PyObject *kept[] = {s->sure, s->confident, s->rare, s->of_tail, s->verdict, s->labels, s->ambiguous};
    for (int i = 0; i < 7; i++) Py_INCREF(kept[i]); /* for as long as the prototype runs */
    for (int i = 0; i < FIELDS; i++) s->plain[i] = Py_NewRef(PyTuple_GET_ITEM(plain, i));
    if ((s->d = copied(mean, s->mean, MOST_COLUMNS)) < 0) return -1;
    for (Py_ssize_t j = 0; j < s->d; j++)
        if (copied(PyList_GET_ITEM(columns, j), s->root[j], MOST_COLUMNS) < 0) return -1;
    s->n_tail = PySequence_Size(tail);
    s->tail = PyMem_Malloc(s->n_tail * sizeof(double));
    return copied(tail, s->tail, s->n_tail) < 0 ? -1 : 0;
}

static double severity(const Stream *s, double x) {
    Py_ssize_t low = 0, high = s->n_tail;
    while (low < high) {
        Py_ssize_t middle = (low + high) >> 1;
        if (s->tail[middle] < x) low = middle + 1; else high = middle;
    }
    if (low == s->n_tail) {
        double nats = (x - s->tail[low - 1]) / s->sigma;
        if (s->shape != 0.0) nats = log1p(s->shape * nats) / s->shape;
        double far = s->start + nats / LN_10;
        return far < LARGEST_SEVERITY ? far : LARGEST_SEVERITY;
    }
    double rare = PyFloat_AS_DOUBLE(PyTuple_GET_ITEM(s->of_tail, low));
    if (!low) return rare;
    double a = s->tail[low - 1], b = s->tail[low], part = (b - x) / (b - a);
    double before = PyFloat_AS_DOUBLE(PyTuple_GET_ITEM(s->of_tail, low - 1));
    double shaded = rare - s->shade * part * (rare - before);
    return part <= 1.0 ? (shaded > before ? shaded : before) : rare;
}

static PyObject *statistic(const Window *w, Py_ssize_t k) {
    return k >= 1 && k <= w->length ? PyFloat_FromDouble(w->ordered[k - 1]) : Py_NewRef(Py_None);
}

/* Judge the next reading of the stream: finite values, a full window that is not constant. */
static PyObject *stream_judge(Stream *s, PyObject *reading) {
    Window *w = s->window;
    PyObject *values = PyTuple_GET_ITEM(reading, 3);
    double centred[MOST_COLUMNS], total = 0.0, evicted;
    for (Py_ssize_t i = 0; i < s->d; i++)
        centred[i] = PyFloat_AsDouble(PyTuple_GET_ITEM(values, i)) - s->mean[i];
    for (Py_ssize_t j = 0; j < s->d; j++) {
        double white = 0.0;
        for (Py_ssize_t i = 0; i < s->d; i++) white += centred[i] * s->root[j][i];
        total += white * white;
    }
    double score = -(s->constant - 0.5 * total);
    Py_ssize_t low = below(w, score), high = at_or_below(w, score, low), n = w->length;
    Py_ssize_t rank = s->by_mid_rank ? (low + high) / 2 : high;
    int cell = (rank >= s->edges[0]) + (rank >= s->edges[1]) + (rank >= s->edges[2]);
    PyObject *label = PyTuple_GET_ITEM(s->labels, cell);
    PyObject *fields[FIELDS];
    memcpy(fields, s->plain, sizeof fields);
    fields[0] = PyTuple_GET_ITEM(reading, 4);
    for (int i = 0; i < 3; i++) fields[1 + i] = PyTuple_GET_ITEM(reading, i);
    fields[5] = label;
    fields[6] = cell == 1 || cell == 2 ? s->ambiguous : Py_None;
    fields[15] = PyTuple_GET_ITEM(s->sure, rank);
    fields[16] = PyTuple_GET_ITEM(s->confident, rank);
    PyObject *made[] = {
        PyLong_FromSsize_t(s->seq++), PyFloat_FromDouble(score), PyLong_FromSsize_t(rank),
        PyLong_FromSsize_t(high - low), PyFloat_FromDouble((double)rank / (double)n),
        statistic(w, s->edges[1]), statistic(w, s->edges[0]), statistic(w, s->edges[2]),
        PyFloat_FromDouble(severity(s, score)),
    };
    static const int at[] = {4, 7, 8, 9, 14, 17, 18, 19, 26};
    for (int i = 0; i < 9; i++) fields[at[i]] = made[i];
    PyObject *verdict = PyObject_Vectorcall(s->verdict, fields, FIELDS, NULL);
    for (int i = 0; i < 9; i++) Py_DECREF(made[i]);
    enter(w, score + 0.0, &evicted);
    double rare = PyFloat_AS_DOUBLE(PyTuple_GET_ITEM(s->rare, low < n ? low : n - 1));
    if (s->level || rare > s->least) {
        s->level += (rare < s->most ? rare : s->most) - s->ordinary;
        if (s->level <= 0.0) s->level = 0.0;
        if (s->level >= s->limit) {
            Py_XDECREF(verdict);
            return PyErr_Format(PyExc_NotImplementedError, "an incident opens: not in the prototype");
        }
    }
    return verdict;
}

static PyMethodDef stream_methods[] = {
    {"judge", (PyCFunction)stream_judge, METH_O, "Return the verdict for the next reading."},
    {NULL},
};
static PyTypeObject stream_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hot.Stream",
    .tp_basicsize = sizeof(Stream),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)stream_init,
    .tp_methods = stream_methods,
};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "hot", NULL, -1};

PyMODINIT_FUNC PyInit_hot(void) {
    if (PyType_Ready(&window_type) < 0 || PyType_Ready(&stream_type) < 0) return NULL;
    PyObject *made = PyModule_Create(&module);
    if (made && PyModule_AddObjectRef(made, "Window", (PyObject *)&window_type) < 0) Py_CLEAR(made);
    if (made && PyModule_AddObjectRef(made, "Stream", (PyObject *)&stream_type) < 0) Py_CLEAR(made);
    return made;
}
