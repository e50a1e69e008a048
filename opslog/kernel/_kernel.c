/* The kernel: loops over bytes and documents, for which Python is too slow. One file, limited API, no dependencies.
 *
 * Python decides and is the reference. Each function here either does exactly what its Python path does, or says that
 * it does not know: it returns None, and the caller goes the Python path. On any doubt it does not know.
 *
 * Memory: every allocation is checked; no byte outside of a buffer is read. Nothing here calls Python code while it
 * walks a Python object, so nothing changes under it as long as the interpreter's lock is held.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* Changes with what the functions take and return: opslog/kernel/__init__.py refuses another one. */
#define INTERFACE 3

/* orjson writes at most this many levels, and so does the format. */
#define DEPTH_MAX 254

/* -- documents ---------------------------------------------------------------------------------------------------- */

static int
is_finite(double value)
{
    return value - value == 0.0;
}

/* Whether a value consists of what JSON carries exactly: dicts with str keys, lists, str, int, float, bool and None,
 * of these very types. Sizes of integers, surrogates in strings and the number of levels are left to the encoder. */
static int
is_plain(PyObject *value, int depth)
{
    if (PyUnicode_CheckExact(value) || PyLong_CheckExact(value) || value == Py_None || PyBool_Check(value)) {
        return 1;
    }
    if (PyFloat_CheckExact(value)) {
        return is_finite(PyFloat_AsDouble(value));
    }
    if (depth == DEPTH_MAX) {
        return 0;
    }
    if (PyDict_CheckExact(value)) {
        PyObject *key, *item;
        Py_ssize_t position = 0;
        while (PyDict_Next(value, &position, &key, &item)) {
            if (!PyUnicode_CheckExact(key) || !is_plain(item, depth + 1)) {
                return 0;
            }
        }
        return 1;
    }
    if (PyList_CheckExact(value)) {
        Py_ssize_t count = PyList_Size(value);
        for (Py_ssize_t index = 0; index < count; index++) {
            if (!is_plain(PyList_GetItem(value, index), depth + 1)) {
                return 0;
            }
        }
        return 1;
    }
    return 0;
}

PyDoc_STRVAR(encode_doc,
"encode(document, dumps)\n--\n\n"
"The JSON text of a document, by orjson's `dumps`, if it is a dict and will come back exactly; None if that has to be\n"
"found out, or is not so.");

static PyObject *
encode(PyObject *module, PyObject *args)
{
    PyObject *document, *dumps;
    if (!PyArg_UnpackTuple(args, "encode", 2, 2, &document, &dumps)) {
        return NULL;
    }
    if (!PyDict_CheckExact(document) || !is_plain(document, 0)) {
        Py_RETURN_NONE;
    }
    /* The encoder runs no Python code for these types, so it sees what was walked. */
    PyObject *text = PyObject_CallFunctionObjArgs(dumps, document, NULL);
    if (text == NULL) {
        /* What is wrong with it the Python path says. */
        if (PyErr_ExceptionMatches(PyExc_TypeError) || PyErr_ExceptionMatches(PyExc_ValueError)
            || PyErr_ExceptionMatches(PyExc_RecursionError)) {
            PyErr_Clear();
            Py_RETURN_NONE;
        }
        return NULL;
    }
    /* A copy, because what orjson returns holds on to all of the 4 KiB that it began to write into. */
    char *bytes;
    Py_ssize_t length;
    PyObject *copied = NULL;
    if (PyBytes_AsStringAndSize(text, &bytes, &length) == 0) {
        copied = PyBytes_FromStringAndSize(bytes, length);
    }
    Py_DECREF(text);
    return copied;
}

/* A new reference. */
static PyObject *
copy_of(PyObject *value, int depth)
{
    if (PyUnicode_CheckExact(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value) || value == Py_None
        || PyBool_Check(value)) {
        return Py_NewRef(value);
    }
    int is_dict = PyDict_CheckExact(value);
    if (!is_dict && !PyList_CheckExact(value)) {
        PyErr_SetString(PyExc_TypeError, "only dicts, lists, strings, numbers, booleans and None are copied");
        return NULL;
    }
    if (depth == DEPTH_MAX) {
        PyErr_Format(PyExc_RecursionError, "nested more than %d levels deep", DEPTH_MAX);
        return NULL;
    }
    if (is_dict) {
        PyObject *copied = PyDict_Copy(value);
        if (copied == NULL) {
            return NULL;
        }
        PyObject *key, *item;
        Py_ssize_t position = 0;
        while (PyDict_Next(copied, &position, &key, &item)) {
            if (!PyUnicode_CheckExact(key)) {
                PyErr_SetString(PyExc_TypeError, "only dicts whose keys are strings are copied");
                Py_DECREF(copied);
                return NULL;
            }
            if (PyUnicode_CheckExact(item) || PyLong_CheckExact(item)) {
                continue;
            }
            PyObject *inner = copy_of(item, depth + 1);
            /* Another value for a key that is there: this moves nothing. */
            if (inner == NULL || (inner != item && PyDict_SetItem(copied, key, inner) < 0)) {
                Py_XDECREF(inner);
                Py_DECREF(copied);
                return NULL;
            }
            Py_DECREF(inner);
        }
        return copied;
    }
    Py_ssize_t count = PyList_Size(value);
    PyObject *copied = PyList_New(count);
    if (copied == NULL) {
        return NULL;
    }
    for (Py_ssize_t index = 0; index < count; index++) {
        /* An allocation may run the garbage collector, and that the finalizer of anything. */
        PyObject *item = PyList_GetItem(value, index);
        Py_XINCREF(item);
        PyObject *inner = item == NULL ? NULL : copy_of(item, depth + 1);
        Py_XDECREF(item);
        if (inner == NULL || PyList_SetItem(copied, index, inner) < 0) {
            Py_DECREF(copied);
            return NULL;
        }
    }
    return copied;
}

PyDoc_STRVAR(copy_doc,
"copy(document)\n--\n\n"
"A decoded document again, with dicts and lists of its own.\n\n"
":raises TypeError: something in it is no JSON.\n"
":raises RecursionError: it is nested more deeply than documents can be.");

static PyObject *
copy(PyObject *module, PyObject *document)
{
    return copy_of(document, 0);
}

/* -- lines -------------------------------------------------------------------------------------------------------- */

/* Whether the text of a string needs no escaping in JSON. */
static int
needs_no_escape(const char *text, Py_ssize_t length)
{
    for (Py_ssize_t index = 0; index < length; index++) {
        unsigned char byte = (unsigned char)text[index];
        if (byte < 0x20 || byte == '"' || byte == '\\') {
            return 0;
        }
    }
    return 1;
}

static char *
put(char *to, const char *bytes, size_t length)
{
    memcpy(to, bytes, length);
    return to + length;
}

#define PUT(to, literal) put(to, literal, sizeof(literal) - 1)

static char *
put_number(char *to, unsigned long long number)
{
    char digits[20];
    int count = 0;
    do {
        digits[count++] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    while (count) {
        *to++ = digits[--count];
    }
    return to;
}

PyDoc_STRVAR(set_line_doc,
"set_line(ts, clock, agent, id, data, v)\n--\n\n"
"The line of a set of a log that its agent owns, with its newline; None where the id has to be escaped.");

static PyObject *
set_line(PyObject *module, PyObject *args)
{
    PyObject *ts_object, *agent_object, *id_object, *data_object;
    unsigned long long clock, version;
    if (!PyArg_ParseTuple(args, "UKUUOK:set_line", &ts_object, &clock, &agent_object, &id_object, &data_object,
                          &version)) {
        return NULL;
    }
    Py_ssize_t ts_length, agent_length, id_length;
    const char *ts = PyUnicode_AsUTF8AndSize(ts_object, &ts_length);
    const char *agent = PyUnicode_AsUTF8AndSize(agent_object, &agent_length);
    const char *id = PyUnicode_AsUTF8AndSize(id_object, &id_length);
    if (ts == NULL || agent == NULL || id == NULL) {
        return NULL;
    }
    if (!needs_no_escape(id, id_length)) {
        Py_RETURN_NONE;
    }
    Py_buffer data;
    if (PyObject_GetBuffer(data_object, &data, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    PyObject *line = NULL;
    char head[20], tail[20];
    size_t head_length = (size_t)(put_number(head, clock) - head);
    size_t tail_length = version == 1 ? 0 : (size_t)(put_number(tail, version) - tail);
    /* Each is the length of something in memory: the sum of four and some does not overflow in 64 bits. */
    size_t length = sizeof("{\"ts\":\"\",\"clock\":,\"agent\":\"\",\"op\":\"set\",\"id\":\"\",\"data\":}\n") - 1
        + (size_t)ts_length + head_length + (size_t)agent_length + (size_t)id_length + (size_t)data.len
        + (tail_length ? sizeof(",\"v\":") - 1 + tail_length : 0);
    if (length <= PY_SSIZE_T_MAX) {
        line = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)length);
    } else {
        PyErr_NoMemory();
    }
    if (line != NULL) {
        char *to = PyBytes_AsString(line);
        to = PUT(to, "{\"ts\":\"");
        to = put(to, ts, (size_t)ts_length);
        to = PUT(to, "\",\"clock\":");
        to = put(to, head, head_length);
        to = PUT(to, ",\"agent\":\"");
        to = put(to, agent, (size_t)agent_length);
        to = PUT(to, "\",\"op\":\"set\",\"id\":\"");
        to = put(to, id, (size_t)id_length);
        to = PUT(to, "\",\"data\":");
        to = put(to, data.buf, (size_t)data.len);
        if (tail_length) {
            to = PUT(to, ",\"v\":");
            to = put(to, tail, tail_length);
        }
        PUT(to, "}\n");
    }
    PyBuffer_Release(&data);
    return line;
}

/* -- sets in a log ------------------------------------------------------------------------------------------------- */

/* Lines with longer documents are left to Python: what is here fits into blocks of memory. */
#define DATA_MAX (1u << 20)
#define ID_MAX (1u << 16)
#define V_MAX (1u << 12)
/* The greatest clock and version of the format. */
#define NUMBER_MAX 9223372036854775807ULL

typedef const unsigned char *Bytes;

/* Where the character ends that begins with a byte from 0x80 on; NULL where that is no UTF-8. */
static Bytes
skip_character(Bytes at, Bytes end)
{
    unsigned char first = at[0];
    size_t left = (size_t)(end - at);
    if (first < 0xC2) {
        return NULL;
    }
    if (left < 2 || (at[1] & 0xC0) != 0x80) {
        return NULL;
    }
    if (first < 0xE0) {
        return at + 2;
    }
    if (left < 3 || (at[2] & 0xC0) != 0x80) {
        return NULL;
    }
    if (first < 0xF0) {
        /* Neither too long a form nor half of a surrogate pair. */
        if ((first == 0xE0 && at[1] < 0xA0) || (first == 0xED && at[1] > 0x9F)) {
            return NULL;
        }
        return at + 3;
    }
    if (left < 4 || (at[3] & 0xC0) != 0x80 || first > 0xF4 || (first == 0xF0 && at[1] < 0x90)
        || (first == 0xF4 && at[1] > 0x8F)) {
        return NULL;
    }
    return at + 4;
}

/* The first byte that is a quote, a backslash, below 0x20 or above 0x7F; or the end. */
static Bytes
skip_ordinary(Bytes at, Bytes end)
{
#if defined(__SSE2__)
    const __m128i quotes = _mm_set1_epi8('"'), backslashes = _mm_set1_epi8('\\'), spaces = _mm_set1_epi8(0x20);
    while (end - at >= 16) {
        __m128i some = _mm_loadu_si128((const __m128i *)at);
        /* Compared with signs, what is above 0x7F is below a space. */
        __m128i found = _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(some, quotes), _mm_cmpeq_epi8(some, backslashes)),
                                     _mm_cmplt_epi8(some, spaces));
        unsigned int mask = (unsigned int)_mm_movemask_epi8(found);
        if (mask) {
            while (!(mask & 1)) {
                mask >>= 1;
                at++;
            }
            return at;
        }
        at += 16;
    }
#endif
    while (at < end && *at != '"' && *at != '\\' && *at >= 0x20 && *at < 0x80) {
        at++;
    }
    return at;
}

static int
is_digit(unsigned char byte)
{
    return byte >= '0' && byte <= '9';
}

static int
hex_value(unsigned char byte)
{
    if (is_digit(byte)) {
        return byte - '0';
    }
    byte |= 0x20;
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

/* Where a string ends, behind its closing quote, of which `at` is behind the opening one; NULL: no string in UTF-8, or an
 * escaped surrogate, or escapes where there may be none. */
static Bytes
skip_string(Bytes at, Bytes end, int may_escape)
{
    while ((at = skip_ordinary(at, end)) < end) {
        if (*at == '"') {
            return at + 1;
        }
        if (*at >= 0x80) {
            if ((at = skip_character(at, end)) == NULL) {
                return NULL;
            }
            continue;
        }
        if (*at != '\\' || !may_escape || end - at < 2) {
            return NULL;
        }
        switch (at[1]) {
        case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't':
            at += 2;
            break;
        case 'u': {
            if (end - at < 6) {
                return NULL;
            }
            int code = 0;
            for (int index = 2; index < 6; index++) {
                int value = hex_value(at[index]);
                if (value < 0) {
                    return NULL;
                }
                code = code * 16 + value;
            }
            if (code >= 0xD800 && code <= 0xDFFF) {
                return NULL;
            }
            at += 6;
            break;
        }
        default:
            return NULL;
        }
    }
    return NULL;
}

static Bytes
skip_digits(Bytes at, Bytes end)
{
    Bytes start = at;
    while (at < end && is_digit(*at)) {
        at++;
    }
    return at == start ? NULL : at;
}

static Bytes
skip_number(Bytes at, Bytes end)
{
    if (at < end && *at == '-') {
        at++;
    }
    if (at < end && *at == '0') {
        at++;
    } else if ((at = skip_digits(at, end)) == NULL) {
        return NULL;
    }
    if (at < end && *at == '.' && (at = skip_digits(at + 1, end)) == NULL) {
        return NULL;
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        at++;
        if (at < end && (*at == '+' || *at == '-')) {
            at++;
        }
        return skip_digits(at, end);
    }
    return at;
}

static Bytes
skip_word(Bytes at, Bytes end, const char *word, size_t length)
{
    return (size_t)(end - at) >= length && memcmp(at, word, length) == 0 ? at + length : NULL;
}

#define SKIP(at, end, literal) skip_word(at, end, literal, sizeof(literal) - 1)

/* Where a JSON value without spaces between its tokens ends; NULL where there is none. */
static Bytes
skip_value(Bytes at, Bytes end, int depth)
{
    if (at == end) {
        return NULL;
    }
    switch (*at) {
    case '"':
        return skip_string(at + 1, end, 1);
    case 't':
        return SKIP(at, end, "true");
    case 'f':
        return SKIP(at, end, "false");
    case 'n':
        return SKIP(at, end, "null");
    case '{':
    case '[':
        break;
    default:
        return skip_number(at, end);
    }
    int is_object = *at == '{';
    unsigned char closing = is_object ? '}' : ']';
    if (depth == DEPTH_MAX) {
        return NULL;
    }
    at++;
    if (at < end && *at == closing) {
        return at + 1;
    }
    for (;;) {
        if (is_object) {
            if (at == end || *at != '"' || (at = skip_string(at + 1, end, 1)) == NULL || at == end || *at != ':') {
                return NULL;
            }
            at++;
        }
        if ((at = skip_value(at, end, depth + 1)) == NULL || at == end) {
            return NULL;
        }
        if (*at == closing) {
            return at + 1;
        }
        if (*at != ',') {
            return NULL;
        }
        at++;
    }
}

/* A positive integer as JSON has it, up to NUMBER_MAX. */
static Bytes
read_number(Bytes at, Bytes end, uint64_t *number)
{
    Bytes start = at;
    uint64_t value = 0;
    while (at < end && is_digit(*at)) {
        if (at - start == 19) {
            return NULL;
        }
        value = value * 10 + (uint64_t)(*at - '0'); /* below 10^19, which fits */
        at++;
    }
    if (at == start || *start == '0' || value > NUMBER_MAX) {
        return NULL;
    }
    *number = value;
    return at;
}

#define TS_LENGTH 27

/* A time such as 2026-11-24T12:00:00.123456Z in 60 bits, in the same order as its text; 0 where the text has another form
 * or a part that is too large for its bits. */
static const struct {
    int first, count, bits;
} TS_PARTS[] = {{0, 4, 14}, {5, 2, 4}, {8, 2, 5}, {11, 2, 5}, {14, 2, 6}, {17, 2, 6}, {20, 6, 20}};
static const char TS_FORM[] = "0000-00-00T00:00:00.000000Z";

static int
read_ts(Bytes at, uint64_t *ts)
{
    for (int index = 0; index < TS_LENGTH; index++) {
        if (TS_FORM[index] == '0' ? !is_digit(at[index]) : at[index] != (unsigned char)TS_FORM[index]) {
            return 0;
        }
    }
    uint64_t packed = 0;
    for (size_t part = 0; part < sizeof(TS_PARTS) / sizeof(TS_PARTS[0]); part++) {
        uint64_t value = 0;
        for (int index = 0; index < TS_PARTS[part].count; index++) {
            value = value * 10 + (uint64_t)(at[TS_PARTS[part].first + index] - '0');
        }
        if (value >> TS_PARTS[part].bits) {
            return 0;
        }
        packed = packed << TS_PARTS[part].bits | value;
    }
    *ts = packed;
    return 1;
}

static void
write_ts(char *to, uint64_t packed)
{
    memcpy(to, TS_FORM, TS_LENGTH);
    for (int part = (int)(sizeof(TS_PARTS) / sizeof(TS_PARTS[0])) - 1; part >= 0; part--) {
        uint64_t value = packed & (((uint64_t)1 << TS_PARTS[part].bits) - 1);
        packed >>= TS_PARTS[part].bits;
        for (int index = TS_PARTS[part].count - 1; index >= 0; index--) {
            to[TS_PARTS[part].first + index] = (char)('0' + value % 10);
            value /= 10;
        }
    }
}

/* A set as a line has it; offsets are those in the chunk. */
typedef struct {
    uint64_t clock, ts, v;
    uint32_t id, id_length, data, data_length;
} Line;

/* Whether these bytes, without the newline, are a set of the usual form. */
static int
read_line(Bytes base, Bytes at, Bytes end, Bytes agent, size_t agent_length, Line *line)
{
    if ((at = SKIP(at, end, "{\"ts\":\"")) == NULL || end - at < TS_LENGTH || !read_ts(at, &line->ts)) {
        return 0;
    }
    if ((at = SKIP(at + TS_LENGTH, end, "\",\"clock\":")) == NULL || (at = read_number(at, end, &line->clock)) == NULL
        || (at = SKIP(at, end, ",\"agent\":\"")) == NULL
        || (at = skip_word(at, end, (const char *)agent, agent_length)) == NULL
        || (at = SKIP(at, end, "\",\"op\":\"set\",\"id\":\"")) == NULL) {
        return 0;
    }
    line->id = (uint32_t)(at - base);
    if ((at = skip_string(at, end, 0)) == NULL) {
        return 0;
    }
    line->id_length = (uint32_t)(at - base) - line->id - 1;
    if ((at = SKIP(at, end, ",\"data\":")) == NULL || at == end || *at != '{') {
        return 0;
    }
    line->data = (uint32_t)(at - base);
    if ((at = skip_value(at, end, 0)) == NULL) {
        return 0;
    }
    line->data_length = (uint32_t)(at - base) - line->data;
    line->v = 1;
    Bytes next = SKIP(at, end, ",\"v\":");
    if (next != NULL && (at = read_number(next, end, &line->v)) == NULL) {
        return 0;
    }
    if ((next = SKIP(at, end, ",\"joined\":true")) != NULL) {
        at = next;
    }
    return end - at == 1 && *at == '}' && line->id_length < ID_MAX && line->data_length < DATA_MAX && line->v < V_MAX;
}

/* The sets of the usual form in a chunk, in order. */
typedef struct {
    PyObject_HEAD
    PyObject *chunk; /* bytes */
    PyObject *agent; /* str */
    Line *lines;
    Py_ssize_t count;
} Sets;

static void
sets_dealloc(PyObject *self)
{
    Sets *sets = (Sets *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(sets->chunk);
    Py_XDECREF(sets->agent);
    free(sets->lines);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static Py_ssize_t
sets_length(PyObject *self)
{
    return ((Sets *)self)->count;
}

static PyObject *
ts_text(uint64_t ts)
{
    char text[TS_LENGTH];
    write_ts(text, ts);
    return PyUnicode_FromStringAndSize(text, TS_LENGTH);
}

static PyObject *
sets_clocks(PyObject *self, void *closure)
{
    Sets *sets = (Sets *)self;
    return Py_BuildValue("(KK)", (unsigned long long)sets->lines[0].clock,
                         (unsigned long long)sets->lines[sets->count - 1].clock);
}

static PyObject *
sets_ts(PyObject *self, void *closure)
{
    Sets *sets = (Sets *)self;
    uint64_t greatest = 0;
    for (Py_ssize_t index = 0; index < sets->count; index++) {
        if (sets->lines[index].ts > greatest) {
            greatest = sets->lines[index].ts;
        }
    }
    return ts_text(greatest);
}

static PyGetSetDef sets_getters[] = {
    {"clocks", sets_clocks, NULL, "Of the first and of the last one.", NULL},
    {"ts", sets_ts, NULL, "The greatest one.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot sets_slots[] = {
    {Py_tp_dealloc, sets_dealloc},
    {Py_sq_length, sets_length},
    {Py_tp_getset, sets_getters},
    {Py_tp_doc, "Sets of a chunk of a log."},
    {0, NULL},
};

static PyType_Spec sets_spec = {
    .name = "opslog.kernel._kernel.Sets",
    .basicsize = sizeof(Sets),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = sets_slots,
};

/* A line that is left to Python: where it is, and the clocks of the sets before and after it. */
typedef struct {
    size_t start, stop;
    uint64_t before, after;
} Other;

typedef struct {
    PyTypeObject *sets_type;
} ModuleState;

PyDoc_STRVAR(scan_doc,
"scan(chunk, agent)\n--\n\n"
"The sets of the usual form in whole lines of the log of an agent, and the other lines of it, for Python to read: each as\n"
"(where it starts, where it stops, the clock of the last set before it or 0, the clock of the next set or 0).\n\n"
"None where most are others, or where the clocks of the sets do not ascend.");

static PyObject *
scan(PyObject *module, PyObject *args)
{
    PyObject *chunk, *agent;
    if (!PyArg_ParseTuple(args, "SU:scan", &chunk, &agent)) {
        return NULL;
    }
    Py_ssize_t agent_length, length = PyBytes_Size(chunk);
    Bytes name = (Bytes)PyUnicode_AsUTF8AndSize(agent, &agent_length);
    if (name == NULL) {
        return NULL;
    }
    Bytes base = (Bytes)PyBytes_AsString(chunk);
    if (length == 0 || (uint64_t)length >= UINT32_MAX || base[length - 1] != '\n'
        || !needs_no_escape((const char *)name, agent_length)) {
        Py_RETURN_NONE;
    }
    Line *lines = NULL;
    Other *others = NULL;
    size_t count = 0, room = 0, other_count = 0, other_room = 0, open_others = 0;
    int no_memory = 0, declined = 0;

    Py_BEGIN_ALLOW_THREADS
    Bytes at = base, end = base + length;
    while (at < end) {
        Bytes newline = memchr(at, '\n', (size_t)(end - at)); /* there is one: the last byte is one */
        if (count == room) {
            room = room ? room * 2 : (size_t)length / 256 + 16;
            Line *more = realloc(lines, room * sizeof(Line));
            if (more == NULL) {
                no_memory = 1;
                break;
            }
            lines = more;
        }
        if (read_line(base, at, newline, name, (size_t)agent_length, &lines[count])) {
            if (count && lines[count].clock <= lines[count - 1].clock) {
                declined = 1;
                break;
            }
            for (; open_others; open_others--) {
                others[other_count - open_others].after = lines[count].clock;
            }
            count++;
        } else {
            if (other_count == other_room) {
                other_room = other_room ? other_room * 2 : 16;
                Other *more = realloc(others, other_room * sizeof(Other));
                if (more == NULL) {
                    no_memory = 1;
                    break;
                }
                others = more;
            }
            others[other_count].start = (size_t)(at - base);
            others[other_count].stop = (size_t)(newline + 1 - base);
            others[other_count].before = count ? lines[count - 1].clock : 0;
            others[other_count].after = 0;
            other_count++;
            open_others++;
            if (other_count > 32 && other_count > count) {
                declined = 1;
                break;
            }
        }
        at = newline + 1;
    }
    Py_END_ALLOW_THREADS

    PyObject *result = NULL, *list = NULL;
    if (no_memory) {
        PyErr_NoMemory();
        goto done;
    }
    if (declined || count == 0 || other_count > count) {
        result = Py_NewRef(Py_None);
        goto done;
    }
    list = PyList_New((Py_ssize_t)other_count);
    if (list == NULL) {
        goto done;
    }
    for (size_t index = 0; index < other_count; index++) {
        PyObject *other = Py_BuildValue("(nnKK)", (Py_ssize_t)others[index].start, (Py_ssize_t)others[index].stop,
                                        (unsigned long long)others[index].before,
                                        (unsigned long long)others[index].after);
        if (other == NULL || PyList_SetItem(list, (Py_ssize_t)index, other) < 0) {
            goto done;
        }
    }
    PyTypeObject *type = ((ModuleState *)PyModule_GetState(module))->sets_type;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Sets *sets = (Sets *)allocate(type, 0);
    if (sets == NULL) {
        goto done;
    }
    Line *exact = realloc(lines, count * sizeof(Line));
    sets->lines = exact == NULL ? lines : exact;
    lines = NULL;
    sets->count = (Py_ssize_t)count;
    sets->chunk = Py_NewRef(chunk);
    sets->agent = Py_NewRef(agent);
    result = Py_BuildValue("(NO)", sets, list);
done:
    Py_XDECREF(list);
    free(lines);
    free(others);
    return result;
}

/* -- the newest set of each id ------------------------------------------------------------------------------------- */

/* Records lie in blocks of memory, one after the other. A reference to one is 32 bits: the number of its block, and where it
 * begins there, in units of 4 bytes. 0 is none. That is enough for 16 GiB. */
#define BLOCK_BITS 22
#define BLOCK_BYTES ((size_t)1 << BLOCK_BITS)
#define UNIT_BITS 2
#define UNIT ((size_t)1 << UNIT_BITS)
#define BLOCKS_MAX ((size_t)1 << (32 + UNIT_BITS - BLOCK_BITS))
#define AGENTS_MAX 65536

/* What a record begins with; its id and its data follow. The sizes of the fields are those of DATA_MAX, ID_MAX, V_MAX and
 * AGENTS_MAX. */
typedef struct {
    uint64_t clock, ts;
    uint64_t data_length : 20, id_length : 16, agent : 16, v : 12;
} Record;

#define RECORD_BYTES sizeof(Record)

typedef struct {
    PyObject_HEAD
    char **blocks;
    size_t block_count, block_room;
    size_t used; /* bytes of the last block */
    size_t size; /* and how many it has */
    uint64_t *slots; /* 32 bits of a hash, and a reference */
    size_t slot_count; /* a power of two, or 0 */
    size_t count;
    uint64_t seed;
    PyObject *agents; /* list of str */
    uint32_t *order; /* references, by id; NULL until that is asked for */
    int is_complete; /* whether it does not change any more */
} Table;

static uint64_t
hash_of(uint64_t seed, const char *bytes, size_t length)
{
    uint64_t hash = seed ^ (length * 0x9E3779B97F4A7C15ULL);
    while (length >= 8) {
        uint64_t some;
        memcpy(&some, bytes, 8);
        hash = (hash ^ some) * 0xFF51AFD7ED558CCDULL;
        hash ^= hash >> 32;
        bytes += 8;
        length -= 8;
    }
    uint64_t rest = 0;
    memcpy(&rest, bytes, length);
    hash = (hash ^ rest) * 0xC4CEB9FE1A85EC53ULL;
    hash ^= hash >> 29;
    hash *= 0x9E3779B97F4A7C15ULL;
    return hash ^ (hash >> 32);
}

static const char *
record_at(const Table *table, uint32_t reference)
{
    size_t unit = reference;
    return table->blocks[unit >> (BLOCK_BITS - UNIT_BITS)] + (unit & ((BLOCK_BYTES / UNIT) - 1)) * UNIT;
}

static Record
head_of(const char *at)
{
    Record record;
    memcpy(&record, at, RECORD_BYTES);
    return record;
}

/* The slot of an id, or the empty one where it would be. There is an empty one. */
static size_t
find_slot(const Table *table, uint64_t hash, const char *id, size_t length)
{
    size_t mask = table->slot_count - 1, slot = (size_t)(hash >> 32) & mask;
    for (;; slot = (slot + 1) & mask) {
        uint64_t entry = table->slots[slot];
        if (!(uint32_t)entry) {
            return slot;
        }
        if (entry >> 32 == hash >> 32) {
            const char *at = record_at(table, (uint32_t)entry);
            Record record = head_of(at);
            if (record.id_length == length && memcmp(at + RECORD_BYTES, id, length) == 0) {
                return slot;
            }
        }
    }
}

static int
grow_slots(Table *table)
{
    size_t count = table->slot_count ? table->slot_count * 2 : 64;
    uint64_t *slots = count > ((size_t)1 << 32) ? NULL : calloc(count, sizeof(uint64_t));
    if (slots == NULL) {
        return -1;
    }
    for (size_t old = 0; old < table->slot_count; old++) {
        uint64_t entry = table->slots[old];
        if ((uint32_t)entry) {
            size_t slot = (size_t)(entry >> 32) & (count - 1);
            while ((uint32_t)slots[slot]) {
                slot = (slot + 1) & (count - 1);
            }
            slots[slot] = entry;
        }
    }
    free(table->slots);
    table->slots = slots;
    table->slot_count = count;
    return 0;
}

/* Room for a record: its reference; 0 where there is no memory. */
static uint32_t
room_for(Table *table, size_t bytes)
{
    bytes = (bytes + UNIT - 1) / UNIT * UNIT;
    if (table->block_count == 0 || table->size - table->used < bytes) {
        if (table->block_count == table->block_room) {
            size_t room = table->block_room ? table->block_room * 2 : 16;
            char **blocks = room > BLOCKS_MAX ? NULL : realloc(table->blocks, room * sizeof(char *));
            if (blocks == NULL) {
                return 0;
            }
            table->blocks = blocks;
            table->block_room = room;
        }
        /* A small first one: most stores are small. */
        size_t size = table->block_count == 0 && bytes < (BLOCK_BYTES >> 6) - UNIT ? BLOCK_BYTES >> 6 : BLOCK_BYTES;
        char *block = malloc(size);
        if (block == NULL) {
            return 0;
        }
        table->blocks[table->block_count++] = block;
        table->size = size;
        table->used = table->block_count == 1 ? UNIT : 0; /* no record has the reference 0 */
    }
    uint32_t reference = (uint32_t)(((table->block_count - 1) << (BLOCK_BITS - UNIT_BITS)) | (table->used / UNIT));
    table->used += bytes;
    return reference;
}

static int
table_clear(PyObject *self)
{
    Table *table = (Table *)self;
    for (size_t index = 0; index < table->block_count; index++) {
        free(table->blocks[index]);
    }
    free(table->blocks);
    free(table->slots);
    free(table->order);
    Py_CLEAR(table->agents);
    return 0;
}

static void
table_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    table_clear(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyObject *
table_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    if (PyTuple_Size(args) != 0 || (keywords != NULL && PyDict_Size(keywords) != 0)) {
        PyErr_SetString(PyExc_TypeError, "Table() takes no arguments");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Table *table = (Table *)allocate(type, 0); /* all zeros */
    if (table == NULL) {
        return NULL;
    }
    /* Python's own secret, so that nobody can choose ids that collide. */
    PyObject *text = PyUnicode_FromString("opslog");
    Py_hash_t seed = text == NULL ? -1 : PyObject_Hash(text);
    Py_XDECREF(text);
    table->agents = PyList_New(0);
    if (seed == -1 || table->agents == NULL) {
        Py_DECREF(table);
        return NULL;
    }
    table->seed = (uint64_t)seed;
    return (PyObject *)table;
}

static Py_ssize_t
table_length(PyObject *self)
{
    return (Py_ssize_t)((Table *)self)->count;
}

/* The number of an agent; -1 with an exception, or without one where there are too many. */
static int
agent_number(Table *table, PyObject *agent)
{
    Py_ssize_t count = PyList_Size(table->agents);
    for (Py_ssize_t index = count; index-- > 0;) {
        PyObject *known = PyList_GetItem(table->agents, index);
        if (known == agent || PyUnicode_Compare(known, agent) == 0) {
            return (int)index;
        }
        if (PyErr_Occurred()) {
            return -1;
        }
    }
    if (count == AGENTS_MAX || PyList_Append(table->agents, agent) < 0) {
        return -1;
    }
    return (int)count;
}

/* A large table is in no cache: so many lines before a record is compared it is asked for, and its slot as many earlier. */
#define AHEAD 8

PyDoc_STRVAR(table_add_doc,
"add(sets)\n--\n\n"
"Take in the sets of a chunk: of each id the one with the greatest stamp stays. False, and nothing is taken in, where there\n"
"are too many agents. After a MemoryError some of them are in.");

static PyObject *
table_add(PyObject *self, PyObject *argument)
{
    Table *table = (Table *)self;
    PyTypeObject *type = ((ModuleState *)PyType_GetModuleState(Py_TYPE(self)))->sets_type;
    if (Py_TYPE(argument) != type) {
        PyErr_SetString(PyExc_TypeError, "a table takes in what scan() has found");
        return NULL;
    }
    if (table->is_complete) {
        PyErr_SetString(PyExc_ValueError, "a table that was read in order takes in nothing more");
        return NULL;
    }
    Sets *sets = (Sets *)argument;
    int agent = agent_number(table, sets->agent);
    if (agent < 0) {
        if (PyErr_Occurred()) {
            return NULL;
        }
        Py_RETURN_FALSE;
    }
    const char *base = PyBytes_AsString(sets->chunk);
    uint64_t hashes[4 * AHEAD]; /* of the lines from `hashed` to `index`, by the last bits of their number */
    Py_ssize_t hashed = sets->count;
    for (Py_ssize_t index = sets->count; index-- > 0;) {
        const Line *line = &sets->lines[index];
        while (hashed > 0 && hashed > index - 2 * AHEAD) {
            const Line *next = &sets->lines[--hashed];
            uint64_t hash = hash_of(table->seed, base + next->id, next->id_length);
            hashes[hashed % (4 * AHEAD)] = hash;
            if (table->slot_count) {
                __builtin_prefetch(&table->slots[(size_t)(hash >> 32) & (table->slot_count - 1)]);
            }
        }
        if (index >= AHEAD && table->slot_count) {
            uint64_t hash = hashes[(index - AHEAD) % (4 * AHEAD)];
            uint32_t near = (uint32_t)table->slots[(size_t)(hash >> 32) & (table->slot_count - 1)];
            if (near) {
                __builtin_prefetch(record_at(table, near));
            }
        }
        if ((table->count + 1) * 3 > table->slot_count * 2 && grow_slots(table) < 0) {
            return PyErr_NoMemory();
        }
        const char *id = base + line->id;
        uint64_t hash = hashes[index % (4 * AHEAD)];
        size_t slot = find_slot(table, hash, id, line->id_length);
        uint32_t before = (uint32_t)table->slots[slot];
        if (before) {
            Record known = head_of(record_at(table, before));
            if (line->clock < known.clock) {
                continue;
            }
            if (line->clock == known.clock) {
                /* Two of one log have different clocks, so these are two agents: by code points. */
                int order = PyUnicode_Compare(sets->agent, PyList_GetItem(table->agents, known.agent));
                if (order == -1 && PyErr_Occurred()) {
                    return NULL;
                }
                if (order <= 0) {
                    continue;
                }
            }
        }
        uint32_t reference = room_for(table, RECORD_BYTES + line->id_length + line->data_length);
        if (!reference) {
            return PyErr_NoMemory();
        }
        Record record;
        memset(&record, 0, sizeof(record));
        record.clock = line->clock;
        record.ts = line->ts;
        record.data_length = line->data_length & (DATA_MAX - 1);
        record.v = line->v & (V_MAX - 1);
        record.id_length = line->id_length & (ID_MAX - 1);
        record.agent = (unsigned int)agent & (AGENTS_MAX - 1);
        char *to = (char *)record_at(table, reference);
        memcpy(to, &record, RECORD_BYTES);
        memcpy(to + RECORD_BYTES, id, line->id_length);
        memcpy(to + RECORD_BYTES + line->id_length, base + line->data, line->data_length);
        table->slots[slot] = (hash >> 32 << 32) | reference;
        table->count += !before;
    }
    Py_RETURN_TRUE;
}

/* The record of an id, NULL where there is none, or with an exception. */
static const char *
find_record(Table *table, PyObject *id)
{
    if (!PyUnicode_Check(id)) {
        PyErr_SetString(PyExc_TypeError, "an id is a string");
        return NULL;
    }
    if (table->count == 0) {
        return NULL;
    }
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(id, &length);
    if (text == NULL) {
        if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
            PyErr_Clear(); /* no document has it */
        }
        return NULL;
    }
    if (length >= ID_MAX) {
        return NULL;
    }
    size_t slot = find_slot(table, hash_of(table->seed, text, (size_t)length), text, (size_t)length);
    uint32_t reference = (uint32_t)table->slots[slot];
    return reference ? record_at(table, reference) : NULL;
}

static int
table_contains(PyObject *self, PyObject *id)
{
    const char *at = find_record((Table *)self, id);
    return at == NULL ? (PyErr_Occurred() ? -1 : 0) : 1;
}

PyDoc_STRVAR(table_get_doc,
"get(id)\n--\n\n"
"(ts, clock, agent, data, v) of a document's set; None where there is none.");

static PyObject *
table_get(PyObject *self, PyObject *id)
{
    Table *table = (Table *)self;
    const char *at = find_record(table, id);
    if (at == NULL) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    Record record = head_of(at);
    PyObject *ts = ts_text(record.ts);
    if (ts == NULL) {
        return NULL;
    }
    return Py_BuildValue("(NKOy#k)", ts, (unsigned long long)record.clock,
                         PyList_GetItem(table->agents, record.agent), at + RECORD_BYTES + record.id_length,
                         (Py_ssize_t)record.data_length, (unsigned long)record.v);
}

/* What is sorted: an id, its first eight bytes as a number, and the reference. */
typedef struct {
    uint64_t prefix;
    const char *id;
    uint32_t length, reference;
} Key;

static int
compare_keys(const void *one, const void *other)
{
    const Key *left = one, *right = other;
    if (left->prefix != right->prefix) {
        return left->prefix < right->prefix ? -1 : 1;
    }
    size_t shorter = left->length < right->length ? left->length : right->length;
    int order = memcmp(left->id, right->id, shorter);
    return order ? order : (left->length > right->length) - (left->length < right->length);
}

/* The references in order of id. Lets other threads run meanwhile; nothing is taken in from now on. */
static int
put_in_order(Table *table)
{
    if (table->order != NULL) {
        return 0;
    }
    table->is_complete = 1;
    size_t count = table->count;
    Key *keys = malloc((count + 1) * sizeof(Key));
    uint32_t *order = malloc((count + 1) * sizeof(uint32_t));
    if (keys == NULL || order == NULL) {
        free(keys);
        free(order);
        PyErr_NoMemory();
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    size_t found = 0;
    for (size_t slot = 0; slot < table->slot_count; slot++) {
        uint32_t reference = (uint32_t)table->slots[slot];
        if (reference) {
            const char *at = record_at(table, reference);
            Key *key = &keys[found++];
            key->id = at + RECORD_BYTES;
            key->length = head_of(at).id_length;
            key->reference = reference;
            key->prefix = 0;
            for (size_t index = 0; index < 8; index++) {
                key->prefix = key->prefix << 8 | (index < key->length ? (unsigned char)key->id[index] : 0);
            }
        }
    }
    qsort(keys, found, sizeof(Key), compare_keys);
    for (size_t index = 0; index < found; index++) {
        order[index] = keys[index].reference;
    }
    Py_END_ALLOW_THREADS
    free(keys);
    if (table->order == NULL) {
        table->order = order;
    } else { /* another thread was first */
        free(order);
    }
    return 0;
}

/* "start, stop", as those of a slice of what is in order. */
static int
parse_range(Table *table, PyObject *args, size_t *start, size_t *stop)
{
    Py_ssize_t first, last;
    if (!PyArg_ParseTuple(args, "nn", &first, &last)) {
        return -1;
    }
    if (first < 0 || last < first) {
        PyErr_SetString(PyExc_ValueError, "no range");
        return -1;
    }
    *stop = (size_t)last < table->count ? (size_t)last : table->count;
    *start = (size_t)first < *stop ? (size_t)first : *stop;
    return put_in_order(table);
}

PyDoc_STRVAR(table_ids_doc,
"ids(start, stop)\n--\n\n"
"The ids, in order, from one place to another.");

static PyObject *
table_ids(PyObject *self, PyObject *args)
{
    Table *table = (Table *)self;
    size_t start, stop;
    if (parse_range(table, args, &start, &stop) < 0) {
        return NULL;
    }
    PyObject *ids = PyList_New((Py_ssize_t)(stop - start));
    if (ids == NULL) {
        return NULL;
    }
    for (size_t index = start; index < stop; index++) {
        const char *at = record_at(table, table->order[index]);
        PyObject *id = PyUnicode_FromStringAndSize(at + RECORD_BYTES, head_of(at).id_length);
        if (id == NULL || PyList_SetItem(ids, (Py_ssize_t)(index - start), id) < 0) {
            Py_DECREF(ids);
            return NULL;
        }
    }
    return ids;
}

/* How long the line of a record is. */
static size_t
line_length(const Table *table, const Record *record, const size_t *agent_lengths)
{
    char digits[20];
    size_t length = sizeof("{\"ts\":\"\",\"clock\":,\"agent\":\"\",\"op\":\"set\",\"id\":\"\",\"data\":}\n") - 1 + TS_LENGTH;
    length += (size_t)(put_number(digits, record->clock) - digits) + agent_lengths[record->agent] + record->id_length;
    length += record->data_length;
    if (record->v != 1) {
        length += sizeof(",\"v\":") - 1 + (size_t)(put_number(digits, record->v) - digits);
    }
    return length;
}

static char *
put_line(char *to, const char *at, const Record *record, const char *agent, size_t agent_length)
{
    to = PUT(to, "{\"ts\":\"");
    write_ts(to, record->ts);
    to = PUT(to + TS_LENGTH, "\",\"clock\":");
    to = put_number(to, record->clock);
    to = PUT(to, ",\"agent\":\"");
    to = put(to, agent, agent_length);
    to = PUT(to, "\",\"op\":\"set\",\"id\":\"");
    to = put(to, at + RECORD_BYTES, record->id_length);
    to = PUT(to, "\",\"data\":");
    to = put(to, at + RECORD_BYTES + record->id_length, record->data_length);
    if (record->v != 1) {
        to = PUT(to, ",\"v\":");
        to = put_number(to, record->v);
    }
    return PUT(to, "}\n");
}

PyDoc_STRVAR(table_rank_doc,
"rank(id)\n--\n\n"
"How many ids are before this one, in order.");

static PyObject *
table_rank(PyObject *self, PyObject *id)
{
    Table *table = (Table *)self;
    if (!PyUnicode_Check(id)) {
        PyErr_SetString(PyExc_TypeError, "an id is a string");
        return NULL;
    }
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(id, &length);
    if (text == NULL || put_in_order(table) < 0) {
        return NULL;
    }
    size_t low = 0, high = table->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const char *at = record_at(table, table->order[middle]);
        size_t other = head_of(at).id_length;
        int order = memcmp(at + RECORD_BYTES, text, other < (size_t)length ? other : (size_t)length);
        if (order < 0 || (order == 0 && other < (size_t)length)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return PyLong_FromSize_t(low);
}

/* The agents' names, for as long as the table is held. */
typedef struct {
    const char **texts;
    size_t *lengths;
} Names;

static void
free_names(Names *names)
{
    free(names->texts);
    free(names->lengths);
}

static int
get_names(Table *table, Names *names)
{
    size_t count = (size_t)PyList_Size(table->agents);
    names->texts = malloc((count + 1) * sizeof(char *));
    names->lengths = malloc((count + 1) * sizeof(size_t));
    if (names->texts == NULL || names->lengths == NULL) {
        free_names(names);
        PyErr_NoMemory();
        return -1;
    }
    for (size_t index = 0; index < count; index++) {
        Py_ssize_t length;
        names->texts[index] = PyUnicode_AsUTF8AndSize(PyList_GetItem(table->agents, (Py_ssize_t)index), &length);
        if (names->texts[index] == NULL) {
            free_names(names);
            return -1;
        }
        names->lengths[index] = (size_t)length;
    }
    return 0;
}

/* The bytes of lines from one place on, up to the line with which they have `room` bytes; moves `stop` there. */
static size_t
measure(const Table *table, const Names *names, size_t start, size_t *stop, size_t room)
{
    size_t total = 0, index = start;
    while (index < *stop && total < room) {
        Record record = head_of(record_at(table, table->order[index++]));
        total += line_length(table, &record, names->lengths);
    }
    *stop = index;
    return total;
}

static PyObject *
copy_lines(Table *table, size_t start, size_t *stop, size_t room)
{
    Names names;
    if (get_names(table, &names) < 0) {
        return NULL;
    }
    size_t total;
    Py_BEGIN_ALLOW_THREADS
    total = measure(table, &names, start, stop, room);
    Py_END_ALLOW_THREADS
    PyObject *lines = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
    if (lines != NULL) {
        char *to = PyBytes_AsString(lines);
        Py_BEGIN_ALLOW_THREADS
        for (size_t index = start; index < *stop; index++) {
            const char *at = record_at(table, table->order[index]);
            Record record = head_of(at);
            to = put_line(to, at, &record, names.texts[record.agent], names.lengths[record.agent]);
        }
        Py_END_ALLOW_THREADS
    }
    free_names(&names);
    return lines;
}

PyDoc_STRVAR(table_lines_doc,
"lines(start, stop)\n--\n\n"
"Their lines, in order of id, from one place to another, as Python writes them.");

static PyObject *
table_lines(PyObject *self, PyObject *args)
{
    Table *table = (Table *)self;
    size_t start, stop;
    if (parse_range(table, args, &start, &stop) < 0) {
        return NULL;
    }
    return copy_lines(table, start, &stop, SIZE_MAX);
}

PyDoc_STRVAR(table_block_doc,
"block(start, stop, room)\n--\n\n"
"Likewise from one place on, up to the line with which they have so many bytes, or the last one; and the place after it.");

static PyObject *
table_block(PyObject *self, PyObject *args)
{
    Table *table = (Table *)self;
    Py_ssize_t start, last, room;
    if (!PyArg_ParseTuple(args, "nnn", &start, &last, &room)) {
        return NULL;
    }
    if (start < 0 || last < start || (size_t)last > table->count || room < 0) {
        PyErr_SetString(PyExc_ValueError, "no range");
        return NULL;
    }
    if (put_in_order(table) < 0) {
        return NULL;
    }
    size_t stop = (size_t)last;
    PyObject *lines = copy_lines(table, (size_t)start, &stop, (size_t)room);
    return lines == NULL ? NULL : Py_BuildValue("(Nn)", lines, (Py_ssize_t)stop);
}

PyDoc_STRVAR(table_size_doc,
"size(start, stop)\n--\n\n"
"How many bytes `lines` would give.");

static PyObject *
table_size(PyObject *self, PyObject *args)
{
    Table *table = (Table *)self;
    size_t start, stop, total;
    Names names;
    if (parse_range(table, args, &start, &stop) < 0 || get_names(table, &names) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    total = measure(table, &names, start, &stop, SIZE_MAX);
    Py_END_ALLOW_THREADS
    free_names(&names);
    return PyLong_FromSize_t(total);
}

static PyMethodDef table_methods[] = {
    {"add", table_add, METH_O, table_add_doc},
    {"get", table_get, METH_O, table_get_doc},
    {"ids", table_ids, METH_VARARGS, table_ids_doc},
    {"lines", table_lines, METH_VARARGS, table_lines_doc},
    {"block", table_block, METH_VARARGS, table_block_doc},
    {"size", table_size, METH_VARARGS, table_size_doc},
    {"rank", table_rank, METH_O, table_rank_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot table_slots[] = {
    {Py_tp_new, table_new},
    {Py_tp_dealloc, table_dealloc},
    {Py_tp_methods, table_methods},
    {Py_sq_length, table_length},
    {Py_sq_contains, table_contains},
    {Py_tp_doc, "The newest set of each id."},
    {0, NULL},
};

static PyType_Spec table_spec = {
    .name = "opslog.kernel._kernel.Table",
    .basicsize = sizeof(Table),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = table_slots,
};

/* -- the module --------------------------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"encode", encode, METH_VARARGS, encode_doc},
    {"copy", copy, METH_O, copy_doc},
    {"set_line", set_line, METH_VARARGS, set_line_doc},
    {"scan", scan, METH_VARARGS, scan_doc},
    {NULL, NULL, 0, NULL},
};

static int
set_up(PyObject *module)
{
    ModuleState *state = PyModule_GetState(module);
    state->sets_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &sets_spec, NULL);
    if (state->sets_type == NULL) {
        return -1;
    }
    PyObject *table_type = PyType_FromModuleAndSpec(module, &table_spec, NULL);
    if (table_type == NULL) {
        return -1;
    }
    int added = PyModule_AddType(module, (PyTypeObject *)table_type);
    Py_DECREF(table_type);
    return added < 0 ? -1 : PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

static int
traverse(PyObject *module, visitproc visit, void *arg)
{
    Py_VISIT(((ModuleState *)PyModule_GetState(module))->sets_type);
    return 0;
}

static int
clear(PyObject *module)
{
    Py_CLEAR(((ModuleState *)PyModule_GetState(module))->sets_type);
    return 0;
}

static void
release_state(void *module)
{
    clear(module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, set_up},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "opslog.kernel._kernel",
    .m_doc = "What moves bytes; see opslog/kernel/__init__.py.",
    .m_size = sizeof(ModuleState),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = release_state,
};

PyMODINIT_FUNC
PyInit__kernel(void)
{
    return PyModuleDef_Init(&definition);
}
