/* The kernel: loops over bytes and documents, for which Python is too slow. One file, limited API, no dependencies.
 *
 * Python decides and is the reference. Each function here does exactly what its Python path does, or it declines: it
 * returns None, and the caller takes the Python path. If there is any doubt, it declines.
 *
 * Memory: every allocation is checked; no byte outside of a buffer is read. Nothing here calls Python code while it
 * traverses a Python object, so no object changes meanwhile as long as the interpreter's lock is held.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#if defined(__x86_64__) && defined(__GNUC__)
#include <wmmintrin.h>
#define HAS_CRC 1
#endif
#endif

/* Raise it when a function takes or returns something else: opslog/kernel/__init__.py refuses other numbers. */
#define INTERFACE 10

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
        /* The Python path raises the error that says what is wrong. */
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
            return at + __builtin_ctz(mask);
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

/* The end of a string, behind its closing quote; `at` is behind its opening quote. NULL: it is no string in UTF-8,
 * or it has an escaped surrogate, or it has escapes and must not. */
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

/* Whether these TS_LENGTH bytes have the form of a time. */
static int
is_ts(Bytes at)
{
#if defined(__SSE2__)
    /* Less the first one that may be there, each byte is at most 9, or 0. */
    const __m128i first = _mm_loadu_si128((const __m128i *)TS_FORM), last = _mm_loadu_si128((const __m128i *)(TS_FORM + 11)),
                  zero = _mm_set1_epi8('0'), nine = _mm_set1_epi8(9);
    __m128i one = _mm_sub_epi8(_mm_loadu_si128((const __m128i *)at), first);
    __m128i other = _mm_sub_epi8(_mm_loadu_si128((const __m128i *)(at + 11)), last);
    one = _mm_subs_epu8(one, _mm_and_si128(_mm_cmpeq_epi8(first, zero), nine));
    other = _mm_subs_epu8(other, _mm_and_si128(_mm_cmpeq_epi8(last, zero), nine));
    return _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_or_si128(one, other), _mm_setzero_si128())) == 0xFFFF;
#else
    for (int index = 0; index < TS_LENGTH; index++) {
        if (TS_FORM[index] == '0' ? !is_digit(at[index]) : at[index] != (unsigned char)TS_FORM[index]) {
            return 0;
        }
    }
    return 1;
#endif
}

/* Whether these bytes are a time whose parts fit in their bits. */
static int
read_ts(Bytes at, uint64_t *ts)
{
    if (!is_ts(at)) {
        return 0;
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

/* A part of the bytes that were read. */
typedef struct {
    Bytes at;
    size_t length;
} Text;

/* As memcmp, a shorter one before the longer one that begins with it. */
static int
compare_texts(const void *one, size_t length, const void *other, size_t other_length)
{
    int order = memcmp(one, other, length < other_length ? length : other_length);
    return order ? order : (length > other_length) - (length < other_length);
}

/* Read a string without escapes; `at` is behind its opening quote. Returns the position behind the string. */
static Bytes
read_text(Bytes at, Bytes end, Text *text)
{
    text->at = at;
    if ((at = skip_string(at, end, 0)) != NULL) {
        text->length = (size_t)(at - text->at) - 1;
    }
    return at;
}

/* Read the beginning of a line: ts and clock. Returns where its agent begins, behind the quote; NULL: the line has
 * another form.
 * :param ts: NULL: it is not needed. */
static Bytes
read_times(Bytes at, Bytes end, uint64_t *ts, uint64_t *clock)
{
    if ((at = SKIP(at, end, "{\"ts\":\"")) == NULL || end - at < TS_LENGTH || !(ts == NULL ? is_ts(at) : read_ts(at, ts))
        || (at = SKIP(at + TS_LENGTH, end, "\",\"clock\":")) == NULL || (at = read_number(at, end, clock)) == NULL) {
        return NULL;
    }
    return SKIP(at, end, ",\"agent\":\"");
}

/* Read the beginning of a record of a snapshot, also of a transaction. Returns where its op begins, with the comma
 * before it; NULL: the record has another form. */
static Bytes
read_signature(Bytes at, Bytes end, uint64_t *clock, Text *agent)
{
    Text text;
    Bytes next;
    if ((at = read_times(at, end, NULL, clock)) == NULL || (at = read_text(at, end, agent)) == NULL
        || ((next = SKIP(at, end, ",\"by\":\"")) != NULL && (at = read_text(next, end, &text)) == NULL)
        || ((next = SKIP(at, end, ",\"tx\":\"")) != NULL && (at = read_text(next, end, &text)) == NULL)) {
        return NULL;
    }
    return at;
}

/* A set as a line has it; offsets are those in the chunk. */
typedef struct {
    uint64_t clock, ts, v;
    uint32_t id, id_length, data, data_length;
} Line;

/* Read the beginning of a line: ts, clock and agent. Returns where its op begins; NULL: the line has not the usual
 * form. */
static Bytes
read_head(Bytes at, Bytes end, Bytes agent, size_t agent_length, Line *line)
{
    if ((at = read_times(at, end, &line->ts, &line->clock)) == NULL
        || (at = skip_word(at, end, (const char *)agent, agent_length)) == NULL) {
        return NULL;
    }
    return SKIP(at, end, "\",\"op\":\"");
}

/* Read the fields of a set that follow its op: id, data and v. Returns where they end; NULL: they have another form. */
static Bytes
read_set(Bytes base, Bytes at, Bytes end, Line *line)
{
    if ((at = SKIP(at, end, "set\",\"id\":\"")) == NULL) {
        return NULL;
    }
    line->id = (uint32_t)(at - base);
    if ((at = skip_string(at, end, 0)) == NULL) {
        return NULL;
    }
    line->id_length = (uint32_t)(at - base) - line->id - 1;
    if ((at = SKIP(at, end, ",\"data\":")) == NULL || at == end || *at != '{') {
        return NULL;
    }
    line->data = (uint32_t)(at - base);
    if ((at = skip_value(at, end, 0)) == NULL) {
        return NULL;
    }
    line->data_length = (uint32_t)(at - base) - line->data;
    line->v = 1;
    Bytes next = SKIP(at, end, ",\"v\":");
    if (next != NULL && (at = read_number(next, end, &line->v)) == NULL) {
        return NULL;
    }
    return line->id_length < ID_MAX && line->data_length < DATA_MAX && line->v < V_MAX ? at : NULL;
}

/* Whether only the end of the line follows, with or without the field `joined`. */
static int
is_line_end(Bytes at, Bytes end)
{
    Bytes next = SKIP(at, end, ",\"joined\":true");
    if (next != NULL) {
        at = next;
    }
    return end - at == 1 && *at == '}';
}

/* The sets of the lines that were read. */
typedef struct {
    Line *lines;
    size_t count, room;
} LineList;

/* Room for one more; NULL where there is no memory. */
static Line *
next_line(LineList *list)
{
    if (list->count == list->room) {
        size_t room = list->room * 2 + 16;
        Line *more = realloc(list->lines, room * sizeof(Line));
        if (more == NULL) {
            return NULL;
        }
        list->lines = more;
        list->room = room;
    }
    return &list->lines[list->count];
}

/* Read a line, without its newline, that is a set or a batch of sets of the usual form: 1, with its sets in the list; 0
 * where it is none; -1 where there is no memory. */
static int
read_commit(Bytes base, Bytes at, Bytes end, Bytes agent, size_t agent_length, LineList *list)
{
    size_t first = list->count;
    Line *line = next_line(list);
    if (line == NULL) {
        return -1;
    }
    if ((at = read_head(at, end, agent, agent_length, line)) == NULL) {
        return 0;
    }
    Bytes next = SKIP(at, end, "batch\",\"ops\":[");
    if (next == NULL) {
        if ((at = read_set(base, at, end, line)) == NULL || !is_line_end(at, end)) {
            return 0;
        }
        list->count++;
        return 1;
    }
    Line head = *line;
    at = next;
    for (;;) {
        if ((line = next_line(list)) == NULL) {
            return -1;
        }
        line->clock = head.clock;
        line->ts = head.ts;
        if ((at = SKIP(at, end, "{\"op\":\"")) == NULL || (at = read_set(base, at, end, line)) == NULL
            || (at = SKIP(at, end, "}")) == NULL || at == end) {
            break;
        }
        list->count++;
        if (*at == ']') {
            if (!is_line_end(at + 1, end)) {
                break;
            }
            return 1;
        }
        if (*at++ != ',') {
            break;
        }
    }
    list->count = first;
    return 0;
}

/* The sets of the usual form in a chunk, in order; those of a batch one after the other. */
typedef struct {
    PyObject_HEAD
    PyObject *chunk; /* bytes */
    PyObject *agent; /* str */
    Line *lines;
    Py_ssize_t count;
    Py_ssize_t commits; /* lines of the log */
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

static PyObject *
sets_commits(PyObject *self, void *closure)
{
    return PyLong_FromSsize_t(((Sets *)self)->commits);
}

static PyGetSetDef sets_getters[] = {
    {"commits", sets_commits, NULL, "How many lines of the log they are.", NULL},
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
    PyTypeObject *sets_type, *table_type, *rows_type, *winners_type;
} ModuleState;

PyDoc_STRVAR(scan_doc,
"scan(chunk, agent)\n--\n\n"
"The sets of the usual form in whole lines of the log of an agent, alone or in batches of such sets, and the other lines\n"
"of it, for Python to read: each as\n"
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
    LineList list = {NULL, 0, 0};
    Other *others = NULL;
    size_t commits = 0, other_count = 0, other_room = 0, open_others = 0;
    int no_memory = 0, declined = 0;

    Py_BEGIN_ALLOW_THREADS
    list.lines = malloc(((size_t)length / 256 + 16) * sizeof(Line));
    list.room = list.lines == NULL ? 0 : (size_t)length / 256 + 16;
    Bytes at = base, end = base + length;
    while (at < end) {
        Bytes newline = memchr(at, '\n', (size_t)(end - at)); /* there is one: the last byte is one */
        size_t before = list.count;
        int read = read_commit(base, at, newline, name, (size_t)agent_length, &list);
        if (read < 0) {
            no_memory = 1;
            break;
        }
        if (read) {
            uint64_t clock = list.lines[before].clock;
            if (before && clock <= list.lines[before - 1].clock) {
                declined = 1;
                break;
            }
            for (; open_others; open_others--) {
                others[other_count - open_others].after = clock;
            }
            commits++;
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
            others[other_count].before = before ? list.lines[before - 1].clock : 0;
            others[other_count].after = 0;
            other_count++;
            open_others++;
            if (other_count > 32 && other_count > list.count) {
                declined = 1;
                break;
            }
        }
        at = newline + 1;
    }
    Py_END_ALLOW_THREADS

    PyObject *result = NULL, *places = NULL;
    if (no_memory) {
        PyErr_NoMemory();
        goto done;
    }
    if (declined || list.count == 0 || other_count > list.count) {
        result = Py_NewRef(Py_None);
        goto done;
    }
    places = PyList_New((Py_ssize_t)other_count);
    if (places == NULL) {
        goto done;
    }
    for (size_t index = 0; index < other_count; index++) {
        PyObject *other = Py_BuildValue("(nnKK)", (Py_ssize_t)others[index].start, (Py_ssize_t)others[index].stop,
                                        (unsigned long long)others[index].before,
                                        (unsigned long long)others[index].after);
        if (other == NULL || PyList_SetItem(places, (Py_ssize_t)index, other) < 0) {
            goto done;
        }
    }
    PyTypeObject *type = ((ModuleState *)PyModule_GetState(module))->sets_type;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Sets *sets = (Sets *)allocate(type, 0);
    if (sets == NULL) {
        goto done;
    }
    Line *exact = realloc(list.lines, list.count * sizeof(Line));
    sets->lines = exact == NULL ? list.lines : exact;
    list.lines = NULL;
    sets->count = (Py_ssize_t)list.count;
    sets->commits = (Py_ssize_t)commits;
    sets->chunk = Py_NewRef(chunk);
    sets->agent = Py_NewRef(agent);
    result = Py_BuildValue("(NO)", sets, places);
done:
    Py_XDECREF(places);
    free(list.lines);
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
    int is_busy; /* in a thread that lets others run */
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

/* The slot of an id, or the empty slot where it would be. The table always has an empty slot. */
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

/* Other threads run meanwhile, and find what is there in the slots as they were. */
static int
grow_slots(Table *table)
{
    size_t count = table->slot_count ? table->slot_count * 2 : 64;
    uint64_t *slots = count > ((size_t)1 << 32) ? NULL : calloc(count, sizeof(uint64_t)), *before = table->slots;
    if (slots == NULL) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    for (size_t old = 0; old < table->slot_count; old++) {
        uint64_t entry = before[old];
        if ((uint32_t)entry) {
            size_t slot = (size_t)(entry >> 32) & (count - 1);
            while ((uint32_t)slots[slot]) {
                slot = (slot + 1) & (count - 1);
            }
            slots[slot] = entry;
        }
    }
    Py_END_ALLOW_THREADS
    table->slots = slots;
    table->slot_count = count;
    free(before);
    return 0;
}

/* Nobody else is at it in a thread, or an exception. */
static int
begin_alone(int *is_busy)
{
    if (*is_busy) {
        PyErr_SetString(PyExc_RuntimeError, "another thread is at it");
        return -1;
    }
    *is_busy = 1;
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

static void
table_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Table *table = (Table *)self;
    /* The system takes tens of milliseconds to get the memory of a million documents back. */
    Py_BEGIN_ALLOW_THREADS
    for (size_t index = 0; index < table->block_count; index++) {
        free(table->blocks[index]);
    }
    free(table->blocks);
    free(table->slots);
    free(table->order);
    Py_END_ALLOW_THREADS
    Py_XDECREF(table->agents);
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

/* A large table does not fit in a cache. So a record is prefetched this many lines before it is compared, and its slot
 * this many lines before that. */
#define AHEAD 8

/* Take in the sets of a chunk. 0; -1 with an exception. */
static int
add_sets(Table *table, const Sets *sets, int agent)
{
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
            PyErr_NoMemory();
            return -1;
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
                /* Two agents, by code points; or two sets of one batch, of which the later one is in. */
                int order = PyUnicode_Compare(sets->agent, PyList_GetItem(table->agents, known.agent));
                if (order == -1 && PyErr_Occurred()) {
                    return -1;
                }
                if (order <= 0) {
                    continue;
                }
            }
        }
        uint32_t reference = room_for(table, RECORD_BYTES + line->id_length + line->data_length);
        if (!reference) {
            PyErr_NoMemory();
            return -1;
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
    return 0;
}

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
    if (begin_alone(&table->is_busy) < 0) {
        return NULL;
    }
    int failed = add_sets(table, sets, agent);
    table->is_busy = 0;
    if (failed) {
        return NULL;
    }
    Py_RETURN_TRUE;
}

/* A string in UTF-8. NULL where it has no such form, as nothing that is stored, or with an exception. */
static const char *
utf8_of(PyObject *string, Py_ssize_t *length)
{
    const char *text = PyUnicode_AsUTF8AndSize(string, length);
    if (text == NULL && PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
        PyErr_Clear();
    }
    return text;
}

/* The record of an id; NULL if there is none, or with an exception. An object that is no string is no id, so it has no
 * record. */
static const char *
find_record(Table *table, PyObject *id)
{
    if (!PyUnicode_Check(id) || table->count == 0) {
        return NULL;
    }
    Py_ssize_t length;
    const char *text = utf8_of(id, &length);
    if (text == NULL || length >= ID_MAX) {
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

/* A key to sort by: the first 16 bytes of an id as two numbers, padded with zeros, and the reference. No id here has a
 * zero byte, since JSON escapes it. */
typedef struct {
    uint64_t words[2];
    uint32_t reference, length;
} Key;

#define KEY_BYTES 16

static uint64_t
word_at(const char *id, size_t length, size_t from)
{
    unsigned char bytes[8] = {0};
    if (length > from) {
        memcpy(bytes, id + from, length - from < 8 ? length - from : 8);
    }
    uint64_t word = 0;
    for (size_t index = 0; index < 8; index++) {
        word = word << 8 | bytes[index];
    }
    return word;
}

/* Sort by `words`: byte by byte, beginning with the last one, and skipping bytes that are the same in all keys. Returns
 * the array that has the result, `keys` or `spare`. */
static Key *
sort_by_words(Key *keys, Key *spare, size_t count)
{
    for (int byte = 0; byte < KEY_BYTES; byte++) {
        int word = 1 - byte / 8, shift = byte % 8 * 8;
        size_t places[256] = {0}, place = 0;
        for (size_t index = 0; index < count; index++) {
            places[keys[index].words[word] >> shift & 0xFF]++;
        }
        if (places[keys[0].words[word] >> shift & 0xFF] == count) {
            continue;
        }
        for (size_t value = 0; value < 256; value++) {
            size_t found = places[value];
            places[value] = place;
            place += found;
        }
        for (size_t index = 0; index < count; index++) {
            spare[places[keys[index].words[word] >> shift & 0xFF]++] = keys[index];
        }
        Key *sorted = spare;
        spare = keys;
        keys = sorted;
    }
    return keys;
}

/* What few ids are sorted by, and very long ones. */
typedef struct {
    const char *id;
    uint32_t length, reference;
} LongKey;

#define FEW 64
#define LONG (16 * KEY_BYTES)

static int
compare_long_keys(const void *one, const void *other)
{
    const LongKey *left = one, *right = other;
    return compare_texts(left->id, left->length, right->id, right->length);
}

/* Sort references by id. The first `from` bytes of all ids are the same. `keys` and `spare` have room for `count`
 * keys. */
static void
sort_references(const Table *table, uint32_t *order, size_t count, size_t from, Key *keys, Key *spare)
{
    if (count < FEW || from >= LONG) {
        LongKey *whole = (LongKey *)(void *)keys;
        for (size_t index = 0; index < count; index++) {
            const char *at = record_at(table, order[index]);
            whole[index] = (LongKey){at + RECORD_BYTES, head_of(at).id_length, order[index]};
        }
        qsort(whole, count, sizeof(LongKey), compare_long_keys);
        for (size_t index = 0; index < count; index++) {
            order[index] = whole[index].reference;
        }
        return;
    }
    for (size_t index = 0; index < count; index++) {
        if (index + AHEAD < count) {
            __builtin_prefetch(record_at(table, order[index + AHEAD]));
        }
        const char *at = record_at(table, order[index]), *id = at + RECORD_BYTES;
        uint32_t length = head_of(at).id_length;
        keys[index] = (Key){{word_at(id, length, from), word_at(id, length, from + 8)}, order[index], length};
    }
    const Key *sorted = sort_by_words(keys, spare, count);
    for (size_t start = 0, stop; start < count; start = stop) {
        int is_longer = 0;
        for (stop = start; stop < count && sorted[stop].words[0] == sorted[start].words[0]
                           && sorted[stop].words[1] == sorted[start].words[1]; stop++) {
            order[stop] = sorted[stop].reference;
            is_longer |= sorted[stop].length > from + KEY_BYTES;
        }
        if (is_longer && stop - start > 1) {
            sort_references(table, order + start, stop - start, from + KEY_BYTES, keys + start, spare + start);
        }
    }
}

/* The references in order of id. Lets other threads run meanwhile; nothing is taken in from now on. */
static int
put_in_order(Table *table)
{
    if (table->order != NULL) {
        return 0;
    }
    if (table->is_busy) {
        PyErr_SetString(PyExc_RuntimeError, "another thread adds to this table");
        return -1;
    }
    table->is_complete = 1;
    size_t room = table->count + 1, count = 0;
    uint32_t *order = malloc(room * sizeof(uint32_t));
    Key *keys = malloc(room * sizeof(Key)), *spare = malloc(room * sizeof(Key));
    int has_room = order != NULL && keys != NULL && spare != NULL;
    Py_BEGIN_ALLOW_THREADS
    if (has_room) {
        for (size_t slot = 0; slot < table->slot_count; slot++) {
            uint32_t reference = (uint32_t)table->slots[slot];
            if (reference) {
                order[count++] = reference;
            }
        }
        sort_references(table, order, count, 0, keys, spare);
    }
    free(keys);
    free(spare);
    Py_END_ALLOW_THREADS
    if (!has_room) {
        free(order);
        PyErr_NoMemory();
        return -1;
    }
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

/* How many ids are before one, in order. */
static int
find_place(Table *table, PyObject *id, size_t *place)
{
    if (!PyUnicode_Check(id)) {
        PyErr_SetString(PyExc_TypeError, "an id is a string");
        return -1;
    }
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(id, &length);
    if (text == NULL || put_in_order(table) < 0) {
        return -1;
    }
    size_t low = 0, high = table->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const char *at = record_at(table, table->order[middle]);
        if (compare_texts(at + RECORD_BYTES, head_of(at).id_length, text, (size_t)length) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    *place = low;
    return 0;
}

PyDoc_STRVAR(table_rank_doc,
"rank(id)\n--\n\n"
"How many ids are before this one, in order.");

static PyObject *
table_rank(PyObject *self, PyObject *id)
{
    size_t place;
    return find_place((Table *)self, id, &place) < 0 ? NULL : PyLong_FromSize_t(place);
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

/* The bytes of the lines from `start` on, ending with the line that reaches `room` bytes; sets `stop` behind that
 * line. */
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

static PyMethodDef table_methods[] = {
    {"add", table_add, METH_O, table_add_doc},
    {"get", table_get, METH_O, table_get_doc},
    {"ids", table_ids, METH_VARARGS, table_ids_doc},
    {"lines", table_lines, METH_VARARGS, table_lines_doc},
    {"block", table_block, METH_VARARGS, table_block_doc},
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

/* -- fields of documents ------------------------------------------------------------------------------------------- */

/* Values and calls above these limits are left to Python: names in the objects around a value; digits of an integer
 * (this many fit in 64 bits); bytes of another number; digits of its exponent (this many give no infinity); fields
 * asked for. */
#define NAMES_MAX 256
#define DIGITS_MAX 18
#define FLOAT_BYTES_MAX 40
#define EXPONENT_MAX 2
#define FIELDS_MAX 16

static int
is_named(const Text *name, Bytes at, size_t length)
{
    return name->length == length && memcmp(name->at, at, length) == 0;
}

/* The names of the objects that a value lies in, those of the innermost one last. */
typedef struct {
    Text names[NAMES_MAX];
    size_t count;
} Known;

/* Read the name of a member. Returns the position behind its colon; NULL: there is no name without escapes, or the
 * object whose names begin at `first` has this name already. */
static Bytes
read_name(Bytes at, Bytes end, Known *known, size_t first, Text *name)
{
    if (at == end || *at != '"' || (at = read_text(at + 1, end, name)) == NULL || at == end || *at != ':'
        || known->count == NAMES_MAX) {
        return NULL;
    }
    for (size_t index = first; index < known->count; index++) {
        if (is_named(&known->names[index], name->at, name->length)) {
            return NULL;
        }
    }
    known->names[known->count++] = *name;
    return at + 1;
}

static PyObject *
string_of(Text text)
{
    return PyUnicode_FromStringAndSize((const char *)text.at, (Py_ssize_t)text.length);
}

/* The next five functions read a part of a document, and return where it ends. It must be JSON without spaces, and
 * all decoders must agree on its value. NULL: that is false or unsure, or an exception was raised. `value`, if given,
 * gets the value as a new reference. */

static Bytes
read_number_value(Bytes at, Bytes end, PyObject **value)
{
    Bytes start = at;
    if ((at = skip_number(at, end)) == NULL) {
        return NULL;
    }
    size_t length = (size_t)(at - start);
    Bytes part = start + (*start == '-');
    while (part < at && is_digit(*part)) {
        part++;
    }
    if (part == at) {
        if (length > DIGITS_MAX || (length == 2 && start[0] == '-' && start[1] == '0')) {
            return NULL;
        }
        if (value != NULL) {
            long long number = 0;
            for (part = start + (*start == '-'); part < at; part++) {
                number = number * 10 + (*part - '0');
            }
            *value = PyLong_FromLongLong(*start == '-' ? -number : number);
            return *value == NULL ? NULL : at;
        }
        return at;
    }
    Bytes exponent = at;
    while (is_digit(exponent[-1])) {
        exponent--;
    }
    int has_exponent = exponent[-1] != '.';
    if (length > FLOAT_BYTES_MAX || (has_exponent && at - exponent > EXPONENT_MAX)) {
        return NULL;
    }
    if (value != NULL) {
        char text[FLOAT_BYTES_MAX + 1];
        memcpy(text, start, length);
        text[length] = 0;
        double number = PyOS_string_to_double(text, NULL, NULL);
        if (number == -1.0 && PyErr_Occurred()) {
            return NULL;
        }
        *value = PyFloat_FromDouble(number);
        return *value == NULL ? NULL : at;
    }
    return at;
}

static Bytes
read_string_value(Bytes at, Bytes end, PyObject **value)
{
    if (value == NULL) {
        return skip_string(at + 1, end, 1);
    }
    Text text;
    if ((at = read_text(at + 1, end, &text)) == NULL || (*value = string_of(text)) == NULL) {
        return NULL;
    }
    return at;
}

static Bytes
read_word(Bytes at, Bytes end, PyObject **value)
{
    PyObject *word = *at == 't' ? Py_True : *at == 'f' ? Py_False : Py_None;
    at = *at == 't' ? SKIP(at, end, "true") : *at == 'f' ? SKIP(at, end, "false") : SKIP(at, end, "null");
    if (at != NULL && value != NULL) {
        *value = Py_NewRef(word);
    }
    return at;
}

static Bytes read_container(Bytes at, Bytes end, int depth, Known *known, PyObject **value);

/* :param depth: how many objects and arrays it lies in. */
static Bytes
read_value(Bytes at, Bytes end, int depth, Known *known, PyObject **value)
{
    if (at == end) {
        return NULL;
    }
    switch (*at) {
    case '"':
        return read_string_value(at, end, value);
    case 't':
    case 'f':
    case 'n':
        return read_word(at, end, value);
    case '{':
    case '[':
        return depth == DEPTH_MAX ? NULL : read_container(at, end, depth, known, value);
    default:
        return read_number_value(at, end, value);
    }
}

static Bytes
read_container(Bytes at, Bytes end, int depth, Known *known, PyObject **value)
{
    int is_object = *at == '{';
    unsigned char closing = is_object ? '}' : ']';
    PyObject *container = NULL;
    if (value != NULL && (container = is_object ? PyDict_New() : PyList_New(0)) == NULL) {
        return NULL;
    }
    size_t first = known->count;
    int is_empty = end - at > 1 && at[1] == closing;
    while (!is_empty) {
        Text name;
        PyObject *item = NULL;
        at++;
        if (is_object && (at = read_name(at, end, known, first, &name)) == NULL) {
            goto failed;
        }
        if ((at = read_value(at, end, depth + 1, known, value == NULL ? NULL : &item)) == NULL || at == end) {
            Py_XDECREF(item);
            goto failed;
        }
        if (value != NULL) {
            int added = -1;
            if (is_object) {
                PyObject *key = string_of(name);
                added = key == NULL ? -1 : PyDict_SetItem(container, key, item);
                Py_XDECREF(key);
            } else {
                added = PyList_Append(container, item);
            }
            Py_DECREF(item);
            if (added < 0) {
                goto failed;
            }
        }
        if (*at == closing) {
            break;
        }
        if (*at != ',') {
            goto failed;
        }
    }
    known->count = first;
    if (value != NULL) {
        *value = container;
    }
    return at + (is_empty ? 2 : 1);
failed:
    Py_XDECREF(container);
    return NULL;
}

/* The request: fields at the top level of documents of one schema version; 0: of any version. */
typedef struct {
    Text names[FIELDS_MAX];
    size_t count;
    uint64_t version;
} Asked;

/* Put the names in a tuple into `asked`; the tuple must outlive it. 0: there are too many, or one that no document
 * can have, or an exception was raised. */
static int
set_names(Asked *asked, PyObject *names)
{
    asked->count = (size_t)PyTuple_Size(names);
    if (asked->count > FIELDS_MAX) {
        return 0;
    }
    for (size_t index = 0; index < asked->count; index++) {
        Py_ssize_t length;
        asked->names[index].at = (Bytes)utf8_of(PyTuple_GetItem(names, (Py_ssize_t)index), &length);
        if (asked->names[index].at == NULL) {
            return 0;
        }
        asked->names[index].length = (size_t)length;
    }
    return 1;
}

/* The names at the top of the document that was read before, and the place of each among those asked for, their count where
 * it is not one. Most documents have the names of the one before in the same order. Such names are compared with those
 * alone: no two of them are the same. */
typedef struct {
    Text names[NAMES_MAX];
    size_t places[NAMES_MAX];
    size_t count;
} Before;

/* The position behind the colon of a member that has this name; NULL: it has another one. */
static Bytes
skip_name(Bytes at, Bytes end, const Text *name)
{
    size_t length = name->length;
    if ((size_t)(end - at) < length + 3 || at[0] != '"' || at[length + 1] != '"' || at[length + 2] != ':') {
        return NULL;
    }
    return memcmp(at + 1, name->at, length) == 0 ? at + length + 3 : NULL;
}

static size_t
place_of(const Asked *asked, const Text *name)
{
    size_t place = 0;
    while (place < asked->count && !is_named(&asked->names[place], name->at, name->length)) {
        place++;
    }
    return place;
}

/* A document's fields, in `values` as new references, or in `texts` as they are written, or in neither; NULL where it has none
 * of this name. */
static Bytes
read_document(Bytes at, Bytes end, const Asked *asked, Known *known, Before *before, PyObject **values, Text *texts)
{
    known->count = 0;
    if (at == end || *at != '{') {
        return NULL;
    }
    if (end - at > 1 && at[1] == '}') {
        return at + 2;
    }
    do {
        size_t number = known->count;
        Bytes next = number < before->count ? skip_name(at + 1, end, &before->names[number]) : NULL;
        if (next != NULL) {
            known->names[known->count++] = before->names[number];
        } else {
            Text name;
            if ((next = read_name(at + 1, end, known, 0, &name)) == NULL) {
                return NULL;
            }
            before->names[number] = name;
            before->places[number] = place_of(asked, &name);
            before->count = number + 1; /* any of the others may be this one, or come later in this document */
        }
        at = next;
        size_t index = before->places[number];
        int is_asked = index < asked->count;
        Bytes start = at;
        at = read_value(at, end, 1, known, is_asked && values != NULL ? &values[index] : NULL);
        if (at == NULL || at == end) {
            return NULL;
        }
        if (is_asked && texts != NULL) {
            texts[index] = (Text){start, (size_t)(at - start)};
        }
    } while (*at == ',');
    return *at == '}' ? at + 1 : NULL;
}

/* The id and the fields of a set of the usual form, of any agent or transaction: as of `read_document`. Returns where the line
 * ends, before its newline; NULL: it has another form, and some of the fields may be there. */
static Bytes
read_set_fields(Bytes at, Bytes end, const Asked *asked, Known *known, Before *before, Text *id, PyObject **values,
                Text *texts)
{
    uint64_t clock, version = 1;
    Text agent;
    if ((at = read_signature(at, end, &clock, &agent)) == NULL
        || (at = SKIP(at, end, ",\"op\":\"set\",\"id\":\"")) == NULL || (at = read_text(at, end, id)) == NULL
        || (at = SKIP(at, end, ",\"data\":")) == NULL
        || (at = read_document(at, end, asked, known, before, values, texts)) == NULL) {
        return NULL;
    }
    Bytes next = SKIP(at, end, ",\"v\":");
    if (next != NULL && (at = read_number(next, end, &version)) == NULL) {
        return NULL;
    }
    return at < end && *at == '}' && (!asked->version || asked->version == version) ? at + 1 : NULL;
}

/* Appends an item, and takes over the reference; whether that failed. NULL: there was no memory for it. */
static int
append(PyObject *list, PyObject *item)
{
    int failed = item == NULL || PyList_Append(list, item) < 0;
    Py_XDECREF(item);
    return failed;
}

PyDoc_STRVAR(fields_doc,
"fields(lines, names, version, missing)\n--\n\n"
"Some fields at the top of the documents that are set in whole lines of a snapshot: (the ids; per name the values, `missing`\n"
"where there is none; the numbers of the lines that are left to Python). The latter are no sets of the usual form, or of\n"
"another schema version (0: any will do), or Python has to find out what something in their documents is.\n\n"
":param names: a tuple, no name twice.\n"
":returns: None where these are no whole lines, or too many names, or one that no document can have.");

static PyObject *
fields(PyObject *module, PyObject *args)
{
    PyObject *lines, *names, *missing;
    unsigned long long version;
    if (!PyArg_ParseTuple(args, "SO!KO:fields", &lines, &PyTuple_Type, &names, &version, &missing)) {
        return NULL;
    }
    Asked asked = {.version = version};
    Bytes base = (Bytes)PyBytes_AsString(lines), end = base + PyBytes_Size(lines);
    if (base == end || end[-1] != '\n') {
        Py_RETURN_NONE;
    }
    if (!set_names(&asked, names)) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    PyObject *result = NULL, *ids = PyList_New(0), *others = PyList_New(0);
    PyObject *columns = PyList_New((Py_ssize_t)asked.count);
    if (ids == NULL || others == NULL || columns == NULL) {
        goto done;
    }
    for (size_t index = 0; index < asked.count; index++) {
        PyObject *column = PyList_New(0);
        if (column == NULL || PyList_SetItem(columns, (Py_ssize_t)index, column) < 0) {
            goto done;
        }
    }
    Known known;
    Before before = {.count = 0};
    Py_ssize_t line = 0;
    for (Bytes at = base, newline; at < end; at = newline + 1, line++) {
        newline = memchr(at, '\n', (size_t)(end - at)); /* there is one: the last byte is one */
        PyObject *values[FIELDS_MAX] = {NULL};
        Text id;
        int is_set = read_set_fields(at, newline, &asked, &known, &before, &id, values, NULL) == newline;
        int failed = PyErr_Occurred() != NULL;
        if (!failed) {
            failed = is_set ? append(ids, string_of(id)) : append(others, PyLong_FromSsize_t(line));
        }
        for (size_t index = 0; index < asked.count; index++) {
            if (is_set && !failed) {
                PyObject *value = values[index] == NULL ? missing : values[index];
                failed = PyList_Append(PyList_GetItem(columns, (Py_ssize_t)index), value) < 0;
            }
            Py_XDECREF(values[index]);
        }
        if (failed) {
            goto done;
        }
    }
    result = Py_BuildValue("(OOO)", ids, columns, others);
done:
    Py_XDECREF(ids);
    Py_XDECREF(columns);
    Py_XDECREF(others);
    return result;
}

/* -- records of a snapshot ----------------------------------------------------------------------------------------- */

/* The id of a record of a snapshot in the form that Python writes; the rest of the line is not read. Whether it is one. */
static int
read_id(Bytes at, Bytes end, Text *id)
{
    uint64_t clock;
    Text agent;
    Bytes next;
    if ((at = read_signature(at, end, &clock, &agent)) == NULL) {
        return 0;
    }
    return ((next = SKIP(at, end, ",\"op\":\"set\",\"id\":\"")) != NULL
            || (next = SKIP(at, end, ",\"op\":\"delete\",\"id\":\"")) != NULL)
        && read_text(next, end, id) != NULL;
}

/* -- columns of tables --------------------------------------------------------------------------------------------- */

/* The functions for tables read mapped files, and release the GIL. If somebody overwrites such a file meanwhile, their results
 * are wrong, but they still write only to their own memory: they never read again what its size depends on. */

/* Where a line stops, behind its newline; `end`: it has none. */
static Bytes
line_stop(Bytes at, Bytes end)
{
    Bytes newline = memchr(at, '\n', (size_t)(end - at));
    return newline == NULL ? end : newline + 1;
}

/* What the values of a column are, null apart: one bit each. A long integer may not equal any float. */
enum { IS_STRING = 1, IS_INTEGER = 2, IS_LONG_INTEGER = 4, IS_FLOAT = 8, IS_BOOLEAN = 16, IS_CONTAINER = 32 };
#define FLOAT_DIGITS_MAX 15

static int
kind_of(Text value)
{
    switch (*value.at) {
    case '"':
        return IS_STRING;
    case 't':
    case 'f':
        return IS_BOOLEAN;
    case '{':
    case '[':
        return IS_CONTAINER;
    }
    for (size_t index = 0; index < value.length; index++) {
        if (value.at[index] == '.' || (value.at[index] | 0x20) == 'e') {
            return IS_FLOAT;
        }
    }
    return value.length - (*value.at == '-') > FLOAT_DIGITS_MAX ? IS_LONG_INTEGER : IS_INTEGER;
}

static char *
put_character(char *to, unsigned int code)
{
    if (code < 0x80) {
        *to++ = (char)code;
    } else if (code < 0x800) {
        *to++ = (char)(0xC0 | code >> 6);
        *to++ = (char)(0x80 | (code & 0x3F));
    } else {
        *to++ = (char)(0xE0 | code >> 12);
        *to++ = (char)(0x80 | (code >> 6 & 0x3F));
        *to++ = (char)(0x80 | (code & 0x3F));
    }
    return to;
}

/* Write the characters of a string that `skip_string` has checked, without its quotes. They never take more bytes
 * than in the string. */
static char *
put_string(char *to, Text string)
{
    Bytes at = string.at + 1, end = string.at + string.length - 1;
    while (at < end) {
        Bytes escape = memchr(at, '\\', (size_t)(end - at));
        size_t plain = (size_t)((escape == NULL ? end : escape) - at);
        to = put(to, (const char *)at, plain);
        if (escape == NULL) {
            break;
        }
        if (escape[1] == 'u') {
            unsigned int code = 0;
            for (int index = 2; index < 6; index++) {
                code = code * 16 + (unsigned int)hex_value(escape[index]);
            }
            to = put_character(to, code);
            at = escape + 6;
        } else {
            static const char ESCAPES[] = "b\bf\fn\nr\rt\t";
            const char *known = strchr(ESCAPES, escape[1]);
            *to++ = known == NULL ? (char)escape[1] : known[1];
            at = escape + 2;
        }
    }
    return to;
}

static int64_t
integer_of(Text number)
{
    int64_t value = 0;
    int is_negative = *number.at == '-';
    for (size_t index = (size_t)is_negative; index < number.length; index++) {
        value = value * 10 + (number.at[index] - '0');
    }
    return is_negative ? -value : value;
}

/* A column that is being built: the texts of its values, `step` apart, and the result in the form of Arrow. After
 * `measure_column`, the texts of nulls are missing. */
typedef struct {
    Text *texts;
    size_t step;
    int kinds;
    size_t nulls, text_bytes;
    PyObject *offsets, *data, *valid;
} Column;

static void
measure_column(Column *column, size_t rows)
{
    for (size_t row = 0; row < rows; row++) {
        Text *value = &column->texts[row * column->step];
        if (value->at == NULL || *value->at == 'n') {
            value->at = NULL;
            column->nulls++;
        } else {
            column->kinds |= kind_of(*value);
            column->text_bytes += value->length;
        }
    }
}

/* The name of a column's type; NULL: it has no value, or values of several kinds. */
static const char *
column_type(const Column *column)
{
    switch (column->kinds) {
    case IS_STRING:
        return "string";
    case IS_INTEGER:
    case IS_LONG_INTEGER:
    case IS_INTEGER | IS_LONG_INTEGER:
        return "integer";
    case IS_FLOAT:
    case IS_FLOAT | IS_INTEGER:
        return "number";
    case IS_BOOLEAN:
        return "boolean";
    }
    return NULL;
}

static size_t
bitmap_bytes(size_t rows)
{
    return (rows + 7) / 8;
}

static PyObject *
zeros(size_t count)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count);
    if (bytes != NULL) {
        memset(PyBytes_AsString(bytes), 0, count);
    }
    return bytes;
}

/* Makes room for what `fill_column` writes. Whether there was some. */
static int
begin_column(Column *column, size_t rows)
{
    int has_text = column->kinds & (IS_STRING | IS_FLOAT);
    size_t data = has_text ? column->text_bytes : column->kinds == IS_BOOLEAN ? bitmap_bytes(rows) : rows * sizeof(int64_t);
    column->data = zeros(data);
    column->offsets = has_text ? zeros((rows + 1) * sizeof(int32_t)) : Py_NewRef(Py_None);
    column->valid = column->nulls ? zeros(bitmap_bytes(rows)) : Py_NewRef(Py_None);
    return column->data != NULL && column->offsets != NULL && column->valid != NULL;
}

static void
fill_column(Column *column, size_t rows, char *data, int32_t *offsets, char *valid)
{
    char *to = data;
    for (size_t row = 0; row < rows; row++) {
        Text value = column->texts[row * column->step];
        if (value.at != NULL) {
            char bit = (char)(1 << row % 8);
            if (column->nulls) {
                valid[row / 8] |= bit;
            }
            if (column->kinds == IS_STRING) {
                to = put_string(to, value);
            } else if (column->kinds & IS_FLOAT) {
                to = put(to, (const char *)value.at, value.length);
            } else if (column->kinds & (IS_INTEGER | IS_LONG_INTEGER)) {
                int64_t number = integer_of(value);
                memcpy(data + row * sizeof(number), &number, sizeof(number));
            } else if (*value.at == 't') {
                data[row / 8] |= bit;
            }
        }
        if (offsets != NULL) {
            offsets[row + 1] = (int32_t)(to - data);
        }
    }
}

static char *
bytes_or_null(PyObject *bytes)
{
    return bytes == Py_None ? NULL : PyBytes_AsString(bytes);
}

PyDoc_STRVAR(columns_doc,
"columns(lines, names, rows)\n--\n\n"
"Some fields at the top of the documents that are set in whole lines of a snapshot, each as a column of Arrow:\n"
"(type, offsets, data, valid), where type is\n\n"
"    string      offsets of 32 bits; data is UTF-8\n"
"    number      the same with the texts of the numbers: of floats, and of integers of at most 15 digits\n"
"    integer     data is integers of 64 bits, which have at most 18 digits; offsets is None\n"
"    boolean     data is one bit each; offsets is None\n"
"    None        no document has a value but null, and the others are None, too\n\n"
"and valid is one bit each, 0 for null and for a missing field; None: there is no null. The column is None where its values\n"
"are of several of these types, or objects or arrays.\n\n"
":param lines: a buffer of less than 2 GiB.\n"
":param rows: how many lines these are.\n"
":returns: None where `fields` would leave a line to Python, or what is given.");

static PyObject *
columns(PyObject *module, PyObject *args)
{
    Py_buffer buffer;
    PyObject *names, *result = NULL;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(args, "y*O!n:columns", &buffer, &PyTuple_Type, &names, &count)) {
        return NULL;
    }
    Asked asked = {0};
    Column found[FIELDS_MAX] = {{0}};
    Text *texts = NULL;
    size_t rows = (size_t)count;
    Bytes base = buffer.buf, end = base + buffer.len;
    if (base == end || buffer.len > INT32_MAX || end[-1] != '\n' || count < 1 || count > buffer.len || !set_names(&asked, names)
        || asked.count == 0) {
        result = PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
        goto done;
    }
    int is_usual = 1, has_memory = 1;
    Py_BEGIN_ALLOW_THREADS
    has_memory = (texts = calloc(rows * asked.count, sizeof(Text))) != NULL;
    Known known;
    Before before = {.count = 0};
    /* Neither a string nor what is between two tokens has a newline, so none of these ends behind its line. */
    Bytes at = base;
    for (size_t row = 0; has_memory && is_usual && row < rows; row++) {
        Text id;
        at = read_set_fields(at, end, &asked, &known, &before, &id, NULL, &texts[row * asked.count]);
        is_usual = at != NULL && at < end && *at++ == '\n';
    }
    is_usual = is_usual && at == end;
    for (size_t index = 0; has_memory && is_usual && index < asked.count; index++) {
        found[index].texts = texts + index;
        found[index].step = asked.count;
        measure_column(&found[index], rows);
    }
    Py_END_ALLOW_THREADS
    if (!has_memory) {
        PyErr_NoMemory();
        goto done;
    }
    if (!is_usual) {
        result = Py_NewRef(Py_None);
        goto done;
    }
    PyObject *list = PyList_New((Py_ssize_t)asked.count);
    for (size_t index = 0; list != NULL && index < asked.count; index++) {
        Column *column = &found[index];
        const char *type = column_type(column);
        PyObject *item;
        if (type == NULL) {
            item = column->kinds ? Py_NewRef(Py_None) : Py_BuildValue("(OOOO)", Py_None, Py_None, Py_None, Py_None);
        } else if (begin_column(column, rows)) {
            char *data = PyBytes_AsString(column->data), *valid = bytes_or_null(column->valid);
            int32_t *offsets = (int32_t *)bytes_or_null(column->offsets);
            Py_BEGIN_ALLOW_THREADS
            fill_column(column, rows, data, offsets, valid);
            Py_END_ALLOW_THREADS
            item = Py_BuildValue("(sOOO)", type, column->offsets, column->data, column->valid);
        } else {
            item = NULL;
        }
        if (item == NULL || PyList_SetItem(list, (Py_ssize_t)index, item) < 0) {
            Py_CLEAR(list);
        }
    }
    result = list;
done:
    for (size_t index = 0; index < asked.count && index < FIELDS_MAX; index++) {
        Py_XDECREF(found[index].data);
        Py_XDECREF(found[index].offsets);
        Py_XDECREF(found[index].valid);
    }
    free(texts);
    PyBuffer_Release(&buffer);
    return result;
}

/* A line with an id that `read_id` finds is longer. */
#define LINE_BYTES_MIN 64

/* The id of a line, and where the line stops, behind its newline. */
typedef struct {
    Text id;
    Bytes stop;
} Split;

PyDoc_STRVAR(split_doc,
"split(lines)\n--\n\n"
"Where whole lines of a snapshot begin, and the id of each, as columns of Arrow: (offsets of the lines, offsets of the ids, the\n"
"ids). Offsets have 32 bits, and there is one more than lines. Nothing behind an id is read.\n\n"
":returns: None where a line has not the usual form, or where this is no text of less than 2 GiB.");

static PyObject *
split(PyObject *module, PyObject *args)
{
    Py_buffer buffer;
    if (!PyArg_ParseTuple(args, "y*:split", &buffer)) {
        return NULL;
    }
    PyObject *result = NULL, *starts = NULL, *id_starts = NULL, *data = NULL;
    Split *found = NULL;
    Bytes base = buffer.buf, end = base + buffer.len;
    if (base == end || buffer.len > INT32_MAX || end[-1] != '\n') {
        result = Py_NewRef(Py_None);
        goto done;
    }
    size_t rows = 0, room = (size_t)buffer.len / LINE_BYTES_MIN + 1, id_bytes = 0;
    int is_usual = 1;
    Py_BEGIN_ALLOW_THREADS
    found = malloc(room * sizeof(Split));
    for (Bytes at = base; found != NULL && at < end; rows++) {
        Split *line = &found[rows];
        if (!read_id(at, end, &line->id)) { /* in this line, since no string has a newline */
            is_usual = 0;
            break;
        }
        id_bytes += line->id.length;
        at = line->stop = line_stop(line->id.at, end);
    }
    Py_END_ALLOW_THREADS
    if (found == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    if (!is_usual) {
        result = Py_NewRef(Py_None);
        goto done;
    }
    starts = zeros((rows + 1) * sizeof(int32_t));
    id_starts = zeros((rows + 1) * sizeof(int32_t));
    data = zeros(id_bytes);
    if (starts == NULL || id_starts == NULL || data == NULL) {
        goto done;
    }
    int32_t *line_offsets = (int32_t *)PyBytes_AsString(starts), *id_offsets = (int32_t *)PyBytes_AsString(id_starts);
    char *first = PyBytes_AsString(data), *to = first;
    Py_BEGIN_ALLOW_THREADS
    for (size_t row = 0; row < rows; row++) {
        to = put(to, (const char *)found[row].id.at, found[row].id.length);
        id_offsets[row + 1] = (int32_t)(to - first);
        line_offsets[row + 1] = (int32_t)(found[row].stop - base);
    }
    Py_END_ALLOW_THREADS
    result = Py_BuildValue("(OOO)", starts, id_starts, data);
done:
    Py_XDECREF(starts);
    Py_XDECREF(id_starts);
    Py_XDECREF(data);
    free(found);
    PyBuffer_Release(&buffer);
    return result;
}

/* -- checksums ---------------------------------------------------------------------------------------------------- */

#define CRC_P 0xEDB88320u /* the polynomial of CRC-32 without its highest power, its bits reversed */

static uint32_t crc_table[256]; /* the remainder of each byte; made with the module */

static void
make_crc_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++) {
            value = value >> 1 ^ (value & 1 ? CRC_P : 0);
        }
        crc_table[byte] = value;
    }
}

static uint32_t
crc_of_bytes(uint32_t crc, Bytes at, Bytes end)
{
    while (at < end) {
        crc = crc >> 8 ^ crc_table[(crc ^ *at++) & 0xFF];
    }
    return crc;
}

#ifdef HAS_CRC

/* CRC-32 as zlib computes it, by multiplication of polynomials without carries, in a processor that has it: three times as fast.
 *
 * The bytes are a polynomial over GF(2), the first bit the highest power, and the CRC is its remainder modulo P. 128 bits that
 * stand D bits before others are congruent to their two halves, multiplied with x^(D+64) and x^D modulo P; so they can be
 * added to those others, "folded". What is left at the end are 16 bytes with the same remainder as all that came before.
 *
 * A product of numbers whose lowest bit is the highest power is one bit too low, and the factors have 32 bits of 64. So a
 * factor is x^(D+32) or x^(D-32) modulo P, with its bits reversed, one bit higher. */
#define FOLD_512 0x1C6E41596, 0x154442BD4
#define FOLD_128 0x0CCAA009E, 0x1751997D0

__attribute__((target("pclmul"))) static __m128i
folded(__m128i some, __m128i factors, __m128i others)
{
    __m128i low = _mm_clmulepi64_si128(some, factors, 0x00), high = _mm_clmulepi64_si128(some, factors, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), others);
}

__attribute__((target("pclmul"))) static uint32_t
crc_of(uint32_t crc, Bytes at, Bytes end)
{
    if (end - at >= 128) {
        const __m128i *some = (const __m128i *)at;
        __m128i factors = _mm_set_epi64x(FOLD_512), a = _mm_xor_si128(_mm_loadu_si128(some), _mm_cvtsi32_si128((int)crc)),
                b = _mm_loadu_si128(some + 1), c = _mm_loadu_si128(some + 2), d = _mm_loadu_si128(some + 3);
        for (at += 64; end - at >= 64; at += 64) {
            some = (const __m128i *)at;
            a = folded(a, factors, _mm_loadu_si128(some));
            b = folded(b, factors, _mm_loadu_si128(some + 1));
            c = folded(c, factors, _mm_loadu_si128(some + 2));
            d = folded(d, factors, _mm_loadu_si128(some + 3));
        }
        factors = _mm_set_epi64x(FOLD_128);
        unsigned char left[16];
        _mm_storeu_si128((__m128i *)left, folded(folded(folded(a, factors, b), factors, c), factors, d));
        crc = crc_of_bytes(0, left, left + sizeof(left));
    }
    return crc_of_bytes(crc, at, end);
}

#endif

PyDoc_STRVAR(crc32_doc,
"crc32(data)\n--\n\n"
"What `zlib.crc32` returns. It keeps the GIL, which takes a few microseconds for a block.\n\n"
":returns: None where the processor, or the compiler of the kernel, does not multiply without carries.");

static PyObject *
crc32(PyObject *module, PyObject *argument)
{
    Py_buffer buffer;
    if (PyObject_GetBuffer(argument, &buffer, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    PyObject *result;
#ifdef HAS_CRC
    if (__builtin_cpu_supports("pclmul")) {
        Bytes base = buffer.buf;
        result = PyLong_FromUnsignedLong(~crc_of(0xFFFFFFFFu, base, base + buffer.len));
    } else
#endif
    {
        result = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&buffer);
    return result;
}

/* Ids by their hashes, in a table of a power of two of slots, at most half of them in use. A free slot has 0, so a flag says
 * whether 0 is one of the hashes. */
typedef struct {
    PyObject_HEAD
    uint32_t *slots;
    size_t count, used;
    int has_zero;
} HashedIds;

static void
hashed_ids_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    free(((HashedIds *)self)->slots);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* The slot that has a hash, which is not 0, or the free one where it belongs. */
static uint32_t *
slot_of(uint32_t *slots, size_t count, uint32_t hash)
{
    /* The upper bits of a product depend on all bits of the hash. */
    size_t at = (size_t)((uint64_t)hash * 0x9E3779B97F4A7C15 >> 32) & (count - 1);
    while (slots[at] != 0 && slots[at] != hash) {
        at = (at + 1) & (count - 1);
    }
    return slots + at;
}

/* Make room for more hashes; without memory for them nothing changes. */
static int
reserve(HashedIds *ids, size_t more)
{
    size_t count = ids->count ? ids->count : 16;
    while (count / 2 < ids->used + more) {
        count *= 2;
    }
    if (count == ids->count) {
        return 0;
    }
    uint32_t *slots = calloc(count, sizeof(*slots));
    if (slots == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t at = 0; at < ids->count; at++) {
        if (ids->slots[at] != 0) {
            *slot_of(slots, count, ids->slots[at]) = ids->slots[at];
        }
    }
    free(ids->slots);
    ids->slots = slots;
    ids->count = count;
    return 0;
}

static void
add_hash(HashedIds *ids, uint32_t hash)
{
    if (hash == 0) {
        ids->has_zero = 1;
        return;
    }
    uint32_t *slot = slot_of(ids->slots, ids->count, hash);
    ids->used += *slot == 0;
    *slot = hash;
}

/* The CRC-32 of an id in UTF-8. */
static int
hash_of_id(PyObject *id, uint32_t *hash)
{
    Py_ssize_t length;
    Bytes at = (Bytes)PyUnicode_AsUTF8AndSize(id, &length);
    if (at == NULL) {
        return -1;
    }
    *hash = ~crc_of_bytes(0xFFFFFFFFu, at, at + length);
    return 0;
}

static int
hashed_ids_contains(PyObject *self, PyObject *id)
{
    HashedIds *ids = (HashedIds *)self;
    uint32_t hash;
    if (hash_of_id(id, &hash) < 0) {
        return -1;
    }
    if (hash == 0) {
        return ids->has_zero;
    }
    return ids->count != 0 && *slot_of(ids->slots, ids->count, hash) != 0;
}

PyDoc_STRVAR(hashed_ids_add_doc, "add(id)\n--\n\nAdd an id.");

static PyObject *
hashed_ids_add(PyObject *self, PyObject *id)
{
    uint32_t hash;
    if (hash_of_id(id, &hash) < 0 || reserve((HashedIds *)self, 1) < 0) {
        return NULL;
    }
    add_hash((HashedIds *)self, hash);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(hashed_ids_update_doc,
"update(hashes)\n--\n\n"
"Add the ids with these hashes: 4 bytes each, the most significant one first.");

static PyObject *
hashed_ids_update(PyObject *self, PyObject *hashes)
{
    Py_buffer buffer;
    if (PyObject_GetBuffer(hashes, &buffer, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    int failed = -1;
    if (buffer.len % 4) {
        PyErr_SetString(PyExc_ValueError, "a hash is cut short");
    } else if ((failed = reserve((HashedIds *)self, (size_t)buffer.len / 4)) == 0) {
        for (Bytes at = buffer.buf, end = at + buffer.len; at < end; at += 4) {
            add_hash((HashedIds *)self, (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3]);
        }
    }
    PyBuffer_Release(&buffer);
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef hashed_ids_methods[] = {
    {"add", hashed_ids_add, METH_O, hashed_ids_add_doc},
    {"update", hashed_ids_update, METH_O, hashed_ids_update_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot hashed_ids_slots[] = {
    {Py_tp_dealloc, hashed_ids_dealloc},
    {Py_tp_methods, hashed_ids_methods},
    {Py_sq_contains, hashed_ids_contains},
    {Py_tp_doc, "HashedIds()\n--\n\nIds by their hashes. `in` also finds an id that has the hash of one that was added."},
    {0, NULL},
};

static PyType_Spec hashed_ids_spec = {
    .name = "opslog.kernel._kernel.HashedIds",
    .basicsize = sizeof(HashedIds),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = hashed_ids_slots,
};

/* -- lookups in a snapshot ----------------------------------------------------------------------------------------- */

PyDoc_STRVAR(find_line_doc,
"find_line(buffer, start, stop, id)\n--\n\n"
"The line of an id, without its newline, among the lines of a snapshot from byte `start` to byte `stop` of a buffer, which are\n"
"in order of id. Empty where none has this id; None where a line on the way to it has not the usual form.");

static PyObject *
find_line(PyObject *module, PyObject *args)
{
    Py_buffer buffer;
    Py_ssize_t start, stop, length;
    PyObject *id, *found = NULL;
    if (!PyArg_ParseTuple(args, "y*nnU:find_line", &buffer, &start, &stop, &id)) {
        return NULL;
    }
    const char *wanted = utf8_of(id, &length);
    if (wanted == NULL || start < 0 || start > stop || stop > buffer.len) {
        found = PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
        goto done;
    }
    /* The line, if there is one, begins from `low` on and before `high`; a line does begin at `low`. */
    Bytes base = buffer.buf, low = base + start, high = base + stop, end = high;
    while (low < high) {
        Bytes at = low + (high - low) / 2, newline;
        if (at > low) {
            newline = memchr(at - 1, '\n', (size_t)(high - at + 1));
            if (newline == NULL || newline + 1 == high) { /* a long line reaches into the second half, and is its only one */
                high = at;
                continue;
            }
            at = newline + 1; /* the first line of the second half */
        }
        newline = memchr(at, '\n', (size_t)(end - at));
        Text other;
        if (newline == NULL || !read_id(at, newline, &other)) {
            found = Py_NewRef(Py_None);
            goto done;
        }
        int order = compare_texts(wanted, (size_t)length, other.at, other.length);
        if (order == 0) {
            found = PyBytes_FromStringAndSize((const char *)at, newline - at);
            goto done;
        }
        if (order < 0) {
            high = at;
        } else {
            low = newline + 1;
        }
    }
    found = PyBytes_FromStringAndSize(NULL, 0);
done:
    PyBuffer_Release(&buffer);
    return found;
}

/* -- compaction --------------------------------------------------------------------------------------------------- */

/* A record of a snapshot, with the fields that comparing and copying need. */
typedef struct {
    const char *line, *id, *agent; /* in what a `Rows` holds */
    size_t length; /* of the line, with its newline */
    uint64_t clock;
    uint32_t id_length;
    uint32_t agent_length : 30, is_live : 1, is_plain : 1; /* a set; and that not of the shared log */
} Row;

/* Far more than a line can have. */
#define AGENT_MAX (1u << 30)

/* The log whose sets are listed in parts one by one. */
#define SHARED "transactions"

/* Whether these bytes, without the newline, are a record of a snapshot in the form that Python writes. */
static int
read_row(Bytes at, Bytes end, Row *row)
{
    uint64_t v;
    Text agent, id, text;
    Bytes next;
    if ((at = read_signature(at, end, &row->clock, &agent)) == NULL) {
        return 0;
    }
    row->is_live = (next = SKIP(at, end, ",\"op\":\"set\",\"id\":\"")) != NULL;
    if (next == NULL && (next = SKIP(at, end, ",\"op\":\"delete\",\"id\":\"")) == NULL) {
        return 0;
    }
    if ((at = read_text(next, end, &id)) == NULL) {
        return 0;
    }
    if (row->is_live) {
        if ((at = SKIP(at, end, ",\"data\":")) == NULL || (at = skip_value(at, end, 0)) == NULL
            || ((next = SKIP(at, end, ",\"v\":")) != NULL && (at = read_number(next, end, &v)) == NULL)) {
            return 0;
        }
    } else if (((next = SKIP(at, end, ",\"archived\":\"")) != NULL && (at = read_text(next, end, &text)) == NULL)
               || ((next = SKIP(at, end, ",\"folded\":\"")) != NULL && (at = read_text(next, end, &text)) == NULL)) {
        return 0;
    }
    row->id = (const char *)id.at;
    row->id_length = (uint32_t)id.length;
    row->agent = (const char *)agent.at;
    row->agent_length = agent.length & (AGENT_MAX - 1);
    return end - at == 1 && *at == '}' && id.length <= UINT32_MAX && agent.length < AGENT_MAX;
}

static int
is_plain_row(const Row *row)
{
    return row->is_live && compare_texts(row->agent, row->agent_length, SHARED, sizeof(SHARED) - 1) != 0;
}

/* Records of a snapshot as lines, in order of id. */
typedef struct {
    PyObject_HEAD
    PyObject *text; /* bytes */
    PyObject *decoded; /* a tuple that holds the ids and agents which Python has decoded; or NULL */
    Row *rows;
    size_t count;
} Rows;

static void
rows_dealloc(PyObject *self)
{
    Rows *rows = (Rows *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(rows->text);
    Py_XDECREF(rows->decoded);
    free(rows->rows);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyType_Slot rows_slots[] = {
    {Py_tp_dealloc, rows_dealloc},
    {Py_tp_doc, "Records of a snapshot as lines, in order of id."},
    {0, NULL},
};

static PyType_Spec rows_spec = {
    .name = "opslog.kernel._kernel.Rows",
    .basicsize = sizeof(Rows),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = rows_slots,
};

/* Take a row from (id, clock, agent, whether it is a set). */
static int
row_from(PyObject *record, Row *row)
{
    PyObject *id, *agent;
    unsigned long long clock;
    int is_live;
    if (!PyTuple_Check(record)) {
        PyErr_SetString(PyExc_TypeError, "what was decoded is a tuple of each line");
        return -1;
    }
    if (!PyArg_ParseTuple(record, "UKUp", &id, &clock, &agent, &is_live)) {
        return -1;
    }
    Py_ssize_t id_length, agent_length;
    row->id = PyUnicode_AsUTF8AndSize(id, &id_length);
    row->agent = row->id == NULL ? NULL : PyUnicode_AsUTF8AndSize(agent, &agent_length);
    if (row->agent == NULL) {
        return -1;
    }
    if ((uint64_t)id_length > UINT32_MAX || (uint64_t)agent_length >= AGENT_MAX) {
        PyErr_SetString(PyExc_OverflowError, "an id or the name of an agent is too long");
        return -1;
    }
    row->clock = clock;
    row->id_length = (uint32_t)id_length;
    row->agent_length = (uint32_t)agent_length & (AGENT_MAX - 1);
    row->is_live = is_live != 0;
    return 0;
}

PyDoc_STRVAR(rows_doc,
"rows(text, decoded)\n--\n\n"
"The records of whole lines of a snapshot, in order of id. None where one has another form than Python writes: then give\n"
"them as they were `decoded`, which is None otherwise: a tuple with an (id, clock, agent, whether it is a set) of each line.");

static PyObject *
rows(PyObject *module, PyObject *args)
{
    PyObject *text, *decoded;
    if (!PyArg_ParseTuple(args, "SO:rows", &text, &decoded)) {
        return NULL;
    }
    int is_decoded = decoded != Py_None;
    if (is_decoded && !PyTuple_CheckExact(decoded)) {
        PyErr_SetString(PyExc_TypeError, "decoded is a tuple or None");
        return NULL;
    }
    size_t length = (size_t)PyBytes_Size(text), count = 0, room = 0;
    Bytes base = (Bytes)PyBytes_AsString(text), at = base, end = base + length;
    if (length && base[length - 1] != '\n') {
        PyErr_SetString(PyExc_ValueError, "no whole lines");
        return NULL;
    }
    Row *found = NULL;
    int no_memory = 0, declined = 0;

    Py_BEGIN_ALLOW_THREADS
    while (at < end) {
        Bytes newline = memchr(at, '\n', (size_t)(end - at)); /* there is one: the last byte is one */
        if (count == room) {
            room = room ? room * 2 : length / 256 + 16;
            Row *more = realloc(found, room * sizeof(Row));
            if (more == NULL) {
                no_memory = 1;
                break;
            }
            found = more;
        }
        Row *row = &found[count++];
        row->line = (const char *)at;
        row->length = (size_t)(newline - at) + 1;
        if (!is_decoded) {
            if (!read_row(at, newline, row)) {
                declined = 1;
                break;
            }
            row->is_plain = is_plain_row(row);
        }
        at = newline + 1;
    }
    Py_END_ALLOW_THREADS

    Rows *result = NULL;
    if (no_memory) {
        PyErr_NoMemory();
        goto done;
    }
    if (declined) {
        free(found);
        Py_RETURN_NONE;
    }
    if (is_decoded && (size_t)PyTuple_Size(decoded) != count) {
        PyErr_SetString(PyExc_ValueError, "there are more or fewer lines than decoded");
        goto done;
    }
    for (size_t index = 0; is_decoded && index < count; index++) {
        if (row_from(PyTuple_GetItem(decoded, (Py_ssize_t)index), &found[index]) < 0) {
            goto done;
        }
        found[index].is_plain = is_plain_row(&found[index]);
    }
    PyTypeObject *type = ((ModuleState *)PyModule_GetState(module))->rows_type;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    result = (Rows *)allocate(type, 0);
    if (result != NULL) {
        result->text = Py_NewRef(text);
        result->decoded = is_decoded ? Py_NewRef(decoded) : NULL;
        result->rows = found;
        result->count = count;
        found = NULL;
    }
done:
    free(found);
    return (PyObject *)result;
}

/* What is known of a set that may come into a snapshot. */
enum {
    FOUND = 1, /* the snapshot has a record of its id */
    FOUND_LIVE = 2, /* which is a set */
    LOST = 4, /* it does not come into it */
};

/* The sets of a table, in order of id, except those that do not come into a snapshot. */
typedef struct {
    PyObject_HEAD
    Table *table;
    Names names;
    uint8_t *known;
    size_t count; /* of all, lost ones too */
    size_t place; /* up to which `meet` has come */
    int is_busy; /* in a thread that lets others run */
} Winners;

static void
winners_dealloc(PyObject *self)
{
    Winners *winners = (Winners *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (winners->table != NULL) {
        free_names(&winners->names);
    }
    Py_XDECREF((PyObject *)winners->table);
    free(winners->known);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyObject *
winners_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *table;
    PyTypeObject *expected = ((ModuleState *)PyType_GetModuleState(type))->table_type;
    if ((keywords != NULL && PyDict_Size(keywords) != 0) || !PyArg_ParseTuple(args, "O!:Winners", expected, &table)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "Winners() takes no keyword arguments");
        }
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Winners *winners = put_in_order((Table *)table) < 0 ? NULL : (Winners *)allocate(type, 0);
    if (winners == NULL) {
        return NULL;
    }
    winners->count = ((Table *)table)->count;
    winners->known = calloc(winners->count + 1, 1);
    if (winners->known == NULL) {
        PyErr_NoMemory();
    } else if (get_names((Table *)table, &winners->names) == 0) {
        winners->table = (Table *)Py_NewRef(table);
        return (PyObject *)winners;
    }
    Py_DECREF(winners);
    return NULL;
}

/* The record at a place. Prefetches those of the next places. */
static const char *
winner_at(const Winners *winners, size_t place)
{
    const Table *table = winners->table;
    if (place + AHEAD < winners->count) {
        const char *next = record_at(table, table->order[place + AHEAD]);
        __builtin_prefetch(next);
        __builtin_prefetch(next + 64);
        __builtin_prefetch(next + 128);
        __builtin_prefetch(next + 192);
    }
    return record_at(table, table->order[place]);
}

/* Whether a set wins against a row. */
static int
outranks(const Winners *winners, const Record *record, const Row *row)
{
    if (record->clock != row->clock) {
        return record->clock > row->clock;
    }
    return compare_texts(winners->names.texts[record->agent], winners->names.lengths[record->agent], row->agent,
                         row->agent_length) > 0;
}

PyDoc_STRVAR(winners_begin_doc,
"begin()\n--\n\n"
"What is met next is an older run, from its beginning.");

static PyObject *
winners_begin(PyObject *self, PyObject *unused)
{
    ((Winners *)self)->place = 0;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(winners_next_doc,
"next()\n--\n\n"
"The next id that may be in this run, of those that were in none before; None where there is none.");

static PyObject *
winners_next(PyObject *self, PyObject *unused)
{
    Winners *winners = (Winners *)self;
    while (winners->place < winners->count && winners->known[winners->place]) {
        winners->place++;
    }
    if (winners->place == winners->count) {
        Py_RETURN_NONE;
    }
    const char *at = record_at(winners->table, winners->table->order[winners->place]);
    return PyUnicode_FromStringAndSize(at + RECORD_BYTES, head_of(at).id_length);
}

PyDoc_STRVAR(winners_skip_doc,
"skip()\n--\n\n"
"That id is not in this run.");

static PyObject *
winners_skip(PyObject *self, PyObject *unused)
{
    Winners *winners = (Winners *)self;
    winners->place += winners->place < winners->count;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(winners_meet_doc,
"meet(rows)\n--\n\n"
"Compare with the next rows of a run. What is in a newer run already is not compared again.");

static PyObject *
winners_meet(PyObject *self, PyObject *argument)
{
    Winners *winners = (Winners *)self;
    PyTypeObject *type = ((ModuleState *)PyType_GetModuleState(Py_TYPE(self)))->rows_type;
    if (Py_TYPE(argument) != type) {
        PyErr_SetString(PyExc_TypeError, "only rows are met");
        return NULL;
    }
    if (begin_alone(&winners->is_busy) < 0) {
        return NULL;
    }
    Rows *met = (Rows *)argument;
    size_t place = winners->place; /* which another thread may change */
    Py_BEGIN_ALLOW_THREADS
    size_t index = 0;
    while (index < met->count && place < winners->count) {
        const char *at = winner_at(winners, place);
        Record record = head_of(at);
        const Row *row = &met->rows[index];
        int order = compare_texts(at + RECORD_BYTES, record.id_length, row->id, row->id_length);
        if (order > 0) {
            index++;
            continue;
        }
        uint8_t *known = &winners->known[place++];
        if (order == 0 && !(*known & FOUND)) {
            *known |= FOUND | (row->is_live ? FOUND_LIVE : 0) | (outranks(winners, &record, row) ? 0 : LOST);
        }
    }
    Py_END_ALLOW_THREADS
    winners->place = place;
    winners->is_busy = 0;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(winners_drop_doc,
"drop(id)\n--\n\n"
"The set of this id, if there is one, does not come into the snapshot.");

static PyObject *
winners_drop(PyObject *self, PyObject *id)
{
    Winners *winners = (Winners *)self;
    size_t place;
    if (find_place(winners->table, id, &place) < 0) {
        return NULL;
    }
    if (place < winners->count && find_record(winners->table, id) != NULL) {
        winners->known[place] |= LOST;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(winners_figures_doc,
"figures()\n--\n\n"
"(how many come into the snapshot, how many bytes their lines have, how many of them the snapshot does not show yet).");

static PyObject *
winners_figures(PyObject *self, PyObject *unused)
{
    Winners *winners = (Winners *)self;
    if (begin_alone(&winners->is_busy) < 0) {
        return NULL;
    }
    size_t count = 0, bytes = 0, documents = 0;
    Py_BEGIN_ALLOW_THREADS
    for (size_t place = 0; place < winners->count; place++) {
        Record record = head_of(winner_at(winners, place));
        if (!(winners->known[place] & LOST)) {
            count++;
            bytes += line_length(winners->table, &record, winners->names.lengths);
            documents += !(winners->known[place] & FOUND_LIVE);
        }
    }
    Py_END_ALLOW_THREADS
    winners->is_busy = 0;
    return Py_BuildValue("(nnn)", (Py_ssize_t)count, (Py_ssize_t)bytes, (Py_ssize_t)documents);
}

static PyMethodDef winners_methods[] = {
    {"begin", winners_begin, METH_NOARGS, winners_begin_doc},
    {"next", winners_next, METH_NOARGS, winners_next_doc},
    {"skip", winners_skip, METH_NOARGS, winners_skip_doc},
    {"meet", winners_meet, METH_O, winners_meet_doc},
    {"drop", winners_drop, METH_O, winners_drop_doc},
    {"figures", winners_figures, METH_NOARGS, winners_figures_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot winners_slots[] = {
    {Py_tp_new, winners_new},
    {Py_tp_dealloc, winners_dealloc},
    {Py_tp_methods, winners_methods},
    {Py_tp_doc, "Winners(table)\n--\n\nThe sets of a table, in order of id, but for those that do not come into a snapshot."},
    {0, NULL},
};

static PyType_Spec winners_spec = {
    .name = "opslog.kernel._kernel.Winners",
    .basicsize = sizeof(Winners),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = winners_slots,
};

/* A source of a merge: winners, or rows, of which some are given at a time. `place` is the place of the next one. */
typedef struct {
    Winners *winners;
    Rows *rows;
    size_t place;
    int has_ended; /* no more rows are given */
} Source;

typedef struct {
    PyObject_HEAD
    Source *sources; /* newer ones first */
    size_t count;
    char *last; /* the id of the line that was returned last; NULL: there was none */
    size_t last_length;
    char *out;
    size_t room;
    int is_busy;
} Merger;

static void
merger_dealloc(PyObject *self)
{
    Merger *merger = (Merger *)self;
    PyTypeObject *type = Py_TYPE(self);
    for (size_t index = 0; index < merger->count; index++) {
        Py_XDECREF((PyObject *)merger->sources[index].winners);
        Py_XDECREF((PyObject *)merger->sources[index].rows);
    }
    free(merger->sources);
    free(merger->last);
    free(merger->out);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyObject *
merger_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *sources;
    PyTypeObject *expected = ((ModuleState *)PyType_GetModuleState(type))->winners_type;
    if (!PyArg_ParseTuple(args, "O!:Merger", &PyTuple_Type, &sources)) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_Size(sources);
    if (keywords != NULL && PyDict_Size(keywords) != 0) {
        PyErr_SetString(PyExc_TypeError, "Merger() takes no keyword arguments");
        return NULL;
    }
    for (Py_ssize_t index = 0; index < count; index++) {
        PyObject *source = PyTuple_GetItem(sources, index);
        if (source != Py_None && Py_TYPE(source) != expected) {
            PyErr_SetString(PyExc_TypeError, "a source is winners, or None for rows that are given");
            return NULL;
        }
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Merger *merger = (Merger *)allocate(type, 0);
    if (merger == NULL) {
        return NULL;
    }
    merger->sources = calloc((size_t)count + 1, sizeof(Source));
    if (merger->sources == NULL) {
        Py_DECREF(merger);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t index = 0; index < count; index++) {
        PyObject *source = PyTuple_GetItem(sources, index);
        if (source != Py_None) {
            merger->sources[index].winners = (Winners *)Py_NewRef(source);
        }
    }
    merger->count = (size_t)count;
    return (PyObject *)merger;
}

PyDoc_STRVAR(merger_give_doc,
"give(source, rows)\n--\n\n"
"The next rows of a source that has none left; None: there are no more.");

static PyObject *
merger_give(PyObject *self, PyObject *args)
{
    Merger *merger = (Merger *)self;
    PyTypeObject *type = ((ModuleState *)PyType_GetModuleState(Py_TYPE(self)))->rows_type;
    Py_ssize_t number;
    PyObject *given;
    if (!PyArg_ParseTuple(args, "nO:give", &number, &given)) {
        return NULL;
    }
    if (given != Py_None && Py_TYPE(given) != type) {
        PyErr_SetString(PyExc_TypeError, "rows are given, or None");
        return NULL;
    }
    Source *source = number < 0 || (size_t)number >= merger->count ? NULL : &merger->sources[number];
    if (source == NULL || merger->is_busy || source->winners != NULL
        || (source->rows != NULL && source->place < source->rows->count)) {
        PyErr_SetString(PyExc_ValueError, "no source that has no rows left");
        return NULL;
    }
    Rows *before = source->rows;
    source->rows = given == Py_None ? NULL : (Rows *)Py_NewRef(given);
    source->place = 0;
    source->has_ended = given == Py_None;
    Py_XDECREF((PyObject *)before);
    Py_RETURN_NONE;
}

/* The id of a source's next record. Returns 1; 0 at its end; -1 if rows must be given first. */
static int
head_of_source(Source *source, const char **id, size_t *length)
{
    if (source->winners != NULL) {
        const Winners *winners = source->winners;
        while (source->place < winners->count && winners->known[source->place] & LOST) {
            source->place++;
        }
        if (source->place == winners->count) {
            return 0;
        }
        const char *at = record_at(winners->table, winners->table->order[source->place]);
        *id = at + RECORD_BYTES;
        *length = head_of(at).id_length;
        return 1;
    }
    if (source->has_ended) {
        return 0;
    }
    if (source->rows == NULL || source->place == source->rows->count) {
        return -1;
    }
    const Row *row = &source->rows->rows[source->place];
    *id = row->id;
    *length = row->id_length;
    return 1;
}

/* What `find_next` has found. */
typedef struct {
    Source *source; /* the newest one of those that stand at the least id; NULL: all have ended */
    const char *id;
    size_t length;
    size_t wanting; /* the number of a source for which rows must be given first, or the number of sources */
} Next;

static void
find_least(Merger *merger, Next *least)
{
    least->source = NULL;
    least->wanting = merger->count;
    for (size_t number = 0; number < merger->count; number++) {
        const char *id;
        size_t length;
        int has = head_of_source(&merger->sources[number], &id, &length);
        if (has < 0) {
            least->wanting = number;
            return;
        }
        if (has && (least->source == NULL || compare_texts(id, length, least->id, least->length) < 0)) {
            least->source = &merger->sources[number];
            least->id = id;
            least->length = length;
        }
    }
}

/* The next line: the one with the least id that is not the id of the line before it. */
static void
find_next(Merger *merger, const char *last, size_t last_length, Next *next)
{
    for (;;) {
        find_least(merger, next);
        if (next->wanting < merger->count || next->source == NULL || last == NULL
            || compare_texts(next->id, next->length, last, last_length) != 0) {
            return;
        }
        next->source->place++;
    }
}

/* Keep the id of the line that was returned last. */
static int
keep_last(Merger *merger, const char *id, size_t length)
{
    char *last = realloc(merger->last, length + 1);
    if (last == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(last, id, length);
    merger->last = last;
    merger->last_length = length;
    return 0;
}

/* Room for so many more bytes of `out`. */
static int
grow_out(Merger *merger, size_t used, size_t more)
{
    if (merger->room - used >= more) {
        return 0;
    }
    size_t room = (used + more) * 2;
    char *out = realloc(merger->out, room);
    if (out == NULL) {
        return -1;
    }
    merger->out = out;
    merger->room = room;
    return 0;
}

PyDoc_STRVAR(merger_take_doc,
"take(room)\n--\n\n"
"The next lines, of each id that of the newest source, up to the one with which they have so many bytes: (text, how many,\n"
"first id, last id). Or the number of a source for which rows must be given first. Or None: the next row, if there is\n"
"one, is no set, or is from the shared log, and `row` gives it.");

static PyObject *
merger_take(PyObject *self, PyObject *argument)
{
    Merger *merger = (Merger *)self;
    Py_ssize_t wanted = PyLong_AsSsize_t(argument);
    if (wanted == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (begin_alone(&merger->is_busy) < 0) {
        return NULL;
    }
    size_t used = 0, count = 0;
    const char *first = NULL, *last = merger->last;
    size_t first_length = 0, last_length = merger->last_length;
    int no_memory = 0;
    Next next;

    Py_BEGIN_ALLOW_THREADS
    do {
        find_next(merger, last, last_length, &next);
        Source *source = next.source;
        if (source == NULL || next.wanting < merger->count) {
            break;
        }
        if (source->winners != NULL) {
            const Winners *winners = source->winners;
            const char *at = winner_at(winners, source->place);
            Record record = head_of(at);
            size_t length = line_length(winners->table, &record, winners->names.lengths);
            if (grow_out(merger, used, length) < 0) {
                no_memory = 1;
                break;
            }
            put_line(merger->out + used, at, &record, winners->names.texts[record.agent],
                     winners->names.lengths[record.agent]);
            used += length;
        } else {
            const Row *row = &source->rows->rows[source->place];
            if (!row->is_plain) {
                break;
            }
            if (grow_out(merger, used, row->length) < 0) {
                no_memory = 1;
                break;
            }
            memcpy(merger->out + used, row->line, row->length);
            used += row->length;
        }
        if (!count++) {
            first = next.id;
            first_length = next.length;
        }
        last = next.id;
        last_length = next.length;
        source->place++;
    } while (wanted > 0 && used < (size_t)wanted);
    Py_END_ALLOW_THREADS

    PyObject *taken = NULL;
    if (no_memory) {
        PyErr_NoMemory();
    } else if (count) {
        taken = Py_BuildValue("(y#ns#s#)", merger->out, (Py_ssize_t)used, (Py_ssize_t)count, first,
                              (Py_ssize_t)first_length, last, (Py_ssize_t)last_length);
        if (keep_last(merger, last, last_length) < 0) {
            Py_CLEAR(taken);
        }
    } else if (next.wanting < merger->count) {
        taken = PyLong_FromSize_t(next.wanting);
    } else {
        taken = Py_NewRef(Py_None);
    }
    merger->is_busy = 0;
    return taken;
}

PyDoc_STRVAR(merger_row_doc,
"row()\n--\n\n"
"The line of the row that `take` has left, for which nothing must be given first; None where all sources have ended.");

static PyObject *
merger_row(PyObject *self, PyObject *unused)
{
    Merger *merger = (Merger *)self;
    Next next;
    if (begin_alone(&merger->is_busy) < 0) {
        return NULL;
    }
    find_next(merger, merger->last, merger->last_length, &next);
    merger->is_busy = 0;
    if (next.wanting < merger->count || (next.source != NULL && next.source->rows == NULL)) {
        PyErr_SetString(PyExc_ValueError, "no row that was left");
        return NULL;
    }
    if (next.source == NULL) {
        Py_RETURN_NONE;
    }
    const Row *row = &next.source->rows->rows[next.source->place];
    PyObject *line = PyBytes_FromStringAndSize(row->line, (Py_ssize_t)row->length);
    if (line != NULL && keep_last(merger, next.id, next.length) < 0) {
        Py_CLEAR(line);
    }
    next.source->place += line != NULL;
    return line;
}

static PyMethodDef merger_methods[] = {
    {"give", merger_give, METH_VARARGS, merger_give_doc},
    {"take", merger_take, METH_O, merger_take_doc},
    {"row", merger_row, METH_NOARGS, merger_row_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot merger_slots[] = {
    {Py_tp_new, merger_new},
    {Py_tp_dealloc, merger_dealloc},
    {Py_tp_methods, merger_methods},
    {Py_tp_doc, "Merger(sources)\n--\n\n"
                "Several sources in order of id as one, newer ones first: winners, or None for rows that are given."},
    {0, NULL},
};

static PyType_Spec merger_spec = {
    .name = "opslog.kernel._kernel.Merger",
    .basicsize = sizeof(Merger),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = merger_slots,
};

/* -- what a set and a get do each time ------------------------------------------------------------------------------ */

/* The first second of the year 10000, from which on there is no such text. */
#define SECONDS_END 253402300800LL

static char *
put_padded(char *to, unsigned int number, int digits)
{
    for (int index = digits - 1; index >= 0; index--) {
        to[index] = (char)('0' + number % 10);
        number /= 10;
    }
    return to + digits;
}

PyDoc_STRVAR(time_text_doc,
"time_text(seconds)\n--\n\n"
"Seconds since 1970 as lines have them; None where those are not of the years 1970 to 9999.");

static PyObject *
time_text(PyObject *module, PyObject *argument)
{
    double seconds = PyFloat_AsDouble(argument);
    if (seconds == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    if (!(seconds >= 0.0 && seconds < (double)SECONDS_END)) {
        Py_RETURN_NONE;
    }
    int64_t whole = (int64_t)seconds;
    /* To the nearest one, of two the even one, as Python rounds. */
    double exact = (seconds - (double)whole) * 1e6;
    int64_t microseconds = (int64_t)exact;
    double rest = exact - (double)microseconds;
    microseconds += rest > 0.5 || (rest == 0.5 && microseconds % 2 == 1);
    if (microseconds == 1000000) {
        microseconds = 0;
        if (++whole == SECONDS_END) {
            Py_RETURN_NONE;
        }
    }
    /* The day, counted from the first of March of the year 0, in spans of 400 years. */
    int64_t days = whole / 86400 + 719468;
    unsigned int of_day = (unsigned int)(whole % 86400);
    unsigned int span = (unsigned int)(days / 146097), day = (unsigned int)(days % 146097);
    unsigned int year = (day - day / 1460 + day / 36524 - day / 146096) / 365;
    day -= 365 * year + year / 4 - year / 100;
    unsigned int month = (5 * day + 2) / 153; /* from March on */
    day -= (153 * month + 2) / 5;
    month = month < 10 ? month + 3 : month - 9;
    year += span * 400 + (month <= 2);
    char text[TS_LENGTH], *to = text;
    to = PUT(put_padded(to, year, 4), "-");
    to = PUT(put_padded(to, month, 2), "-");
    to = PUT(put_padded(to, day + 1, 2), "T");
    to = PUT(put_padded(to, of_day / 3600, 2), ":");
    to = PUT(put_padded(to, of_day / 60 % 60, 2), ":");
    to = PUT(put_padded(to, of_day % 60, 2), ".");
    PUT(put_padded(to, (unsigned int)microseconds, 6), "Z");
    return PyUnicode_FromStringAndSize(text, TS_LENGTH);
}

/* The document of a text, decoded by `loads`, if `dumps` makes the same text of it again; else None. */
static PyObject *
decode_exactly(const char *text, size_t length, PyObject *loads, PyObject *dumps)
{
    /* A copy, since the functions called here may free the object that holds the text. */
    PyObject *bytes = PyBytes_FromStringAndSize(text, (Py_ssize_t)length);
    if (bytes == NULL) {
        return NULL;
    }
    PyObject *document = PyObject_CallFunctionObjArgs(loads, bytes, NULL), *again = NULL;
    if (document != NULL && PyDict_CheckExact(document)) {
        again = PyObject_CallFunctionObjArgs(dumps, document, NULL);
    }
    int is_exact = 0;
    if (again != NULL) {
        char *written;
        Py_ssize_t count;
        if (PyBytes_AsStringAndSize(again, &written, &count) == 0) {
            is_exact = (size_t)count == length && memcmp(written, PyBytes_AsString(bytes), length) == 0;
        }
    } else if (PyErr_Occurred()
               && (PyErr_ExceptionMatches(PyExc_ValueError) || PyErr_ExceptionMatches(PyExc_TypeError))) {
        PyErr_Clear(); /* the Python path has the reasons */
    }
    Py_XDECREF(again);
    Py_DECREF(bytes);
    if (is_exact) {
        return document;
    }
    Py_XDECREF(document);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(find_document_doc,
"find_document(id, winners, kept, read, most, table, after, v, loads, dumps)\n--\n\n"
"The document of an id, the caller's own: a copy of the one in `kept`, if the winner that it is kept with is the one in\n"
"`winners`; or, where neither has the id, that of a set in `table` (None: there is none) with a clock greater than `after` and\n"
"of version `v` (0: any, None: do not look there), decoded. None where that needs more: another winner, no such set, or a text\n"
"that `dumps` does not make again of what `loads` makes of it.\n\n"
"`read`: ids that were read lately and are not kept. It gets that of a document from `table`, and has no more than `most`; one\n"
"that is there already is None, so that it is kept. None: all are to be kept.");

static PyObject *
find_document(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 10) {
        PyErr_SetString(PyExc_TypeError, "find_document() takes ten arguments");
        return NULL;
    }
    PyObject *id = args[0], *read = args[3];
    if (!PyUnicode_CheckExact(id)) {
        Py_RETURN_NONE;
    }
    /* The keys are plain strings, so that no lookup runs Python code. */
    PyObject *winner = PyDict_GetItemWithError(args[1], id);
    PyObject *known = winner == NULL && PyErr_Occurred() ? NULL : PyDict_GetItemWithError(args[2], id);
    if (known == NULL && PyErr_Occurred()) {
        return NULL;
    }
    if (known != NULL) {
        PyObject *rests_on = PyTuple_GetItem(known, 0), *document = PyTuple_GetItem(known, 1);
        if (rests_on == NULL || document == NULL) {
            return NULL;
        }
        if (rests_on != (winner == NULL ? Py_None : winner)) {
            Py_RETURN_NONE;
        }
        Py_INCREF(document);
        PyObject *copied = copy_of(document, 0);
        Py_DECREF(document);
        return copied;
    }
    ModuleState *state = PyModule_GetState(module);
    if (winner != NULL || read == Py_None || args[7] == Py_None || Py_TYPE(args[5]) != state->table_type) {
        Py_RETURN_NONE;
    }
    Py_ssize_t most = PyLong_AsSsize_t(args[4]);
    unsigned long long after = PyLong_AsUnsignedLongLong(args[6]), v = PyLong_AsUnsignedLongLong(args[7]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    int was_read = PySet_Contains(read, id);
    if (was_read) {
        return was_read < 0 ? NULL : Py_NewRef(Py_None);
    }
    const char *at = find_record((Table *)args[5], id);
    if (at == NULL) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    Record record = head_of(at);
    if (record.clock <= after || (v && record.v != v)) {
        Py_RETURN_NONE;
    }
    PyObject *document
        = decode_exactly(at + RECORD_BYTES + record.id_length, record.data_length, args[8], args[9]);
    /* Only what is found, since Python remembers what it has found itself. */
    if (document != NULL && document != Py_None && most > 0
        && ((PySet_Size(read) >= most && PySet_Clear(read) < 0) || PySet_Add(read, id) < 0)) {
        Py_CLEAR(document);
    }
    return document;
}

/* -- the module --------------------------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"time_text", time_text, METH_O, time_text_doc},
    {"find_document", (PyCFunction)(void (*)(void))find_document, METH_FASTCALL, find_document_doc},
    {"encode", encode, METH_VARARGS, encode_doc},
    {"copy", copy, METH_O, copy_doc},
    {"set_line", set_line, METH_VARARGS, set_line_doc},
    {"scan", scan, METH_VARARGS, scan_doc},
    {"rows", rows, METH_VARARGS, rows_doc},
    {"fields", fields, METH_VARARGS, fields_doc},
    {"split", split, METH_VARARGS, split_doc},
    {"columns", columns, METH_VARARGS, columns_doc},
    {"find_line", find_line, METH_VARARGS, find_line_doc},
    {"crc32", crc32, METH_O, crc32_doc},
    {NULL, NULL, 0, NULL},
};

static int
add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **kept)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    *kept = type;
    return type == NULL ? -1 : PyModule_AddType(module, type);
}

static int
set_up(PyObject *module)
{
    make_crc_table();
    ModuleState *state = PyModule_GetState(module);
    PyTypeObject *merger_type = NULL, *hashed_ids_type = NULL;
    int failed = add_type(module, &sets_spec, &state->sets_type) < 0
        || add_type(module, &table_spec, &state->table_type) < 0
        || add_type(module, &rows_spec, &state->rows_type) < 0
        || add_type(module, &winners_spec, &state->winners_type) < 0
        || add_type(module, &merger_spec, &merger_type) < 0
        || add_type(module, &hashed_ids_spec, &hashed_ids_type) < 0;
    Py_XDECREF((PyObject *)merger_type);
    Py_XDECREF((PyObject *)hashed_ids_type);
    return failed ? -1 : PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

static int
traverse(PyObject *module, visitproc visit, void *arg)
{
    ModuleState *state = PyModule_GetState(module);
    Py_VISIT(state->sets_type);
    Py_VISIT(state->table_type);
    Py_VISIT(state->rows_type);
    Py_VISIT(state->winners_type);
    return 0;
}

static int
clear(PyObject *module)
{
    ModuleState *state = PyModule_GetState(module);
    Py_CLEAR(state->sets_type);
    Py_CLEAR(state->table_type);
    Py_CLEAR(state->rows_type);
    Py_CLEAR(state->winners_type);
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
