// Elements. The contents and names of stores and streams become text here, and never markup.

export const $ = (id) => document.getElementById(id)

// An element with attributes, listeners ("onclick") and children. Children are elements or text.
export function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag)
    for (const [name, value] of Object.entries(attributes)) {
        if (value === undefined || value === null || value === false) continue
        if (name.startsWith("on")) made.addEventListener(name.slice(2), value)
        else if (name === "data") Object.assign(made.dataset, value)
        else made.setAttribute(name, value === true ? "" : value)
    }
    made.append(...children.flat().filter((child) => child !== null && child !== undefined))
    return made
}

export const text = (tag, content, className) => element(tag, { class: className || null }, String(content))

// The length of a text in a cell. A document may hold megabytes.
const SHOWN_MAX = 160
export const shortened = (content, most = SHOWN_MAX) => (content.length > most ? `${content.slice(0, most)}…` : content)

export function table(caption, heads, rows, attributes = {}) {
    return element(
        "table",
        attributes,
        element("caption", {}, caption),
        element(
            "thead",
            {},
            element(
                "tr",
                {},
                heads.map((head) => element("th", { scope: "col" }, head)),
            ),
        ),
        element("tbody", {}, rows),
    )
}

export const row = (...cells) =>
    element(
        "tr",
        {},
        cells.map((cell) => (cell instanceof HTMLTableCellElement ? cell : element("td", {}, cell))),
    )

// A table that is wider than the window scrolls inside its own box, also by keyboard.
export const wide = (table) =>
    element(
        "div",
        { class: "wide", tabindex: "0", role: "group", "aria-label": table.caption?.textContent ?? "Table" },
        table,
    )

// Replaces the children of an element. Focus and the scroll positions of tables stay as they were.
export function redraw(parent, ...children) {
    const key = (each) =>
        `${each.tagName} ${each.getAttribute("href") ?? each.id ?? ""} ${each.tagName === "A" ? each.textContent : each.ariaLabel}`
    const focused = parent.contains(document.activeElement) ? key(document.activeElement) : null
    const scrolled = [...parent.querySelectorAll(".wide")].map((each) => each.scrollLeft)
    parent.replaceChildren(...children)
    parent.querySelectorAll(".wide").forEach((each, number) => (each.scrollLeft = scrolled[number] ?? 0))
    if (focused === null) return
    const again = [...parent.querySelectorAll("a, button, [tabindex]")].find((each) => key(each) === focused)
    again?.focus({ preventScroll: true })
}

// Times are shown in the zone of this machine. `title` has the time as it was written.
const DAY_MS = 86_400_000
const CLOCK = new Intl.DateTimeFormat(undefined, {
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
    hourCycle: "h23",
})
const DATE = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric" })

// `isPrecise` adds milliseconds, for lists in which the order of two times matters.
export function time(ts, { isPrecise = false } = {}) {
    const at = new Date(ts)
    if (!ts || Number.isNaN(at.getTime())) return text("span", ts || "–")
    const isToday = Math.abs(Date.now() - at) < DAY_MS && at.getDate() === new Date().getDate()
    const clock = CLOCK.format(at) + (isPrecise ? `.${String(at.getMilliseconds()).padStart(3, "0")}` : "")
    const shown = isToday ? clock : `${DATE.format(at)}, ${clock}`
    return element("time", { datetime: ts, title: ts }, shown)
}

export function since(ts) {
    const seconds = Math.max(0, (Date.now() - new Date(ts)) / 1000)
    for (const [unit, length] of [
        ["d", 86400],
        ["h", 3600],
        ["min", 60],
    ])
        if (seconds >= 2 * length) return `${Math.floor(seconds / length)} ${unit} ago`
    return seconds < 2 ? "now" : `${Math.floor(seconds)} s ago`
}

const NUMBER = new Intl.NumberFormat("en")
export const count = (number) => NUMBER.format(number)
export const counted = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`

export function size(bytes) {
    for (const unit of ["B", "kB", "MB", "GB"]) {
        if (bytes < 1000 || unit === "GB") return `${unit === "B" ? bytes : bytes.toPrecision(3)} ${unit}`
        bytes /= 1000
    }
}
