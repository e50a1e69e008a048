// JSON that keeps numbers as they are written. A document may hold 64-bit integers, which JSON.parse would change.
// Objects become Maps, so that names such as "__proto__" and "1" are safe and stay in order. A number becomes an Exact,
// which holds its source text.

export class Exact {
    constructor(source) {
        this.source = source
    }
}

const SPACE = /[ \t\n\r]*/y
const NUMBER = /-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/y
const WORD = /true|false|null/y
const WORDS = { true: true, false: false, null: null }

// Throws a SyntaxError, or a RangeError if the text is nested deeper than the browser's stack.
export function parse(source) {
    let place = 0

    function take(pattern) {
        pattern.lastIndex = place
        const found = pattern.exec(source)
        if (found === null) throw new SyntaxError(`no JSON at ${place}`)
        place = pattern.lastIndex
        return found[0]
    }
    // A regular expression would overflow the browser's stack on a string with millions of escapes.
    function string() {
        const start = place
        if (source[place] !== '"') throw new SyntaxError(`no string at ${start}`)
        do place += source[place] === "\\" ? 2 : 1
        while (place < source.length && source[place] !== '"')
        place++
        return JSON.parse(source.slice(start, place))
    }
    function next(sign) {
        take(SPACE)
        if (source[place] !== sign) return false
        place++
        return true
    }
    function expect(sign) {
        if (!next(sign)) throw new SyntaxError(`no ${sign} at ${place}`)
    }
    function many(end, one) {
        if (next(end)) return
        do one()
        while (next(","))
        expect(end)
    }
    function value() {
        take(SPACE)
        const sign = source[place]
        if (sign === "{") {
            const found = new Map()
            place++
            many("}", () => {
                take(SPACE)
                const name = string()
                expect(":")
                found.set(name, value())
            })
            return found
        }
        if (sign === "[") {
            const found = []
            place++
            many("]", () => found.push(value()))
            return found
        }
        if (sign === '"') return string()
        if (sign === "-" || (sign >= "0" && sign <= "9")) return new Exact(take(NUMBER))
        return WORDS[take(WORD)]
    }

    const found = value()
    take(SPACE)
    if (place !== source.length) throw new SyntaxError(`more than JSON at ${place}`)
    return found
}

// A Map from the server's own answers as an object. Its numbers become Numbers; its other values stay as they are.
export function plain(map) {
    const found = Object.create(null)
    for (const [name, value] of map) found[name] = value instanceof Exact ? Number(value.source) : value
    return found
}

// A value as tokens on one line; each token is [kind, text].
export function tokens(value) {
    const found = []
    inline(value, found)
    return found
}

function inline(value, found) {
    if (value instanceof Map) {
        found.push(["sign", "{"])
        let first = true
        for (const [name, each] of value) {
            if (!first) found.push(["sign", ", "])
            first = false
            found.push(["name", JSON.stringify(name)], ["sign", ": "])
            inline(each, found)
        }
        found.push(["sign", "}"])
    } else if (Array.isArray(value)) {
        found.push(["sign", "["])
        value.forEach((each, number) => {
            if (number) found.push(["sign", ", "])
            inline(each, found)
        })
        found.push(["sign", "]"])
    } else found.push(scalar(value))
}

function scalar(value) {
    if (value instanceof Exact) return ["number", value.source]
    if (typeof value === "string") return ["string", JSON.stringify(value)]
    return ["word", String(value)]
}

const length = (line) => line.reduce((sum, [, text]) => sum + text.length, 0)

// Lines are indented by at most so many spaces. Otherwise the output would grow with the square of the depth.
const INDENT_MAX = 48

// A value as indented lines of tokens. A value that fits into the width stays on one line, unless it is the outermost.
export function lines(value, width = 72) {
    const found = []
    indented(value, [], "", "", found, width, true)
    return found
}

function indented(value, before, indent, after, found, width, opens = false) {
    const nested = value instanceof Map ? value.size : Array.isArray(value) ? value.length : 0
    const close = after ? [["sign", after]] : []
    if (!nested || !opens) {
        const whole = [...before, ...tokens(value), ...close]
        if (!nested || indent.length >= INDENT_MAX || indent.length + length(whole) <= width) {
            found.push([["space", indent], ...whole])
            return
        }
    }
    const isMap = value instanceof Map
    found.push([["space", indent], ...before, ["sign", isMap ? "{" : "["]])
    let left = nested
    for (const [name, each] of isMap ? value : value.entries()) {
        const named = isMap
            ? [
                  ["name", JSON.stringify(name)],
                  ["sign", ": "],
              ]
            : []
        indented(each, named, `${indent}  `, --left ? "," : "", found, width)
    }
    found.push([["space", indent], ["sign", isMap ? "}" : "]"], ...close])
}

// JSON text as tokens, exactly as it is written.
const TOKEN = /("[^"\\]*(?:\\.[^"\\]*)*")(\s*:)?|(-?\d[\d.eE+-]*)|(true|false|null)|([\s\S])/g
export function coloured(source) {
    const found = []
    for (const [all, string, colon, number, word] of source.matchAll(TOKEN)) {
        if (string !== undefined) {
            found.push([colon === undefined ? "string" : "name", string])
            if (colon !== undefined) found.push(["sign", colon])
        } else if (number !== undefined || word !== undefined)
            found.push([number === undefined ? "word" : "number", all])
        else if (found.at(-1)?.[0] === "sign") found.at(-1)[1] += all
        else found.push(["sign", all])
    }
    return found
}

// The elements of a JSON array, exactly as they are written.
export function elements(array) {
    const found = []
    let depth = 0
    let start = 1
    let quoted = false
    for (let place = 0; place < array.length; place++) {
        const sign = array[place]
        if (quoted) {
            if (sign === "\\") place++
            else if (sign === '"') quoted = false
        } else if (sign === '"') quoted = true
        else if (sign === "[" || sign === "{") depth++
        else if (sign === "]" || sign === "}") depth--
        if (!quoted && ((sign === "," && depth === 1) || (depth === 0 && sign === "]"))) {
            found.push(array.slice(start, place).trim())
            start = place + 1
        }
    }
    return found.filter((element) => element !== "")
}

// Tokens as elements.
export function spans(line) {
    return line.map(([kind, text]) => {
        if (kind === "space" || kind === "sign") return text
        const span = document.createElement("span")
        span.className = `json-${kind}`
        span.textContent = text
        return span
    })
}
