// The documents of a store as a table. The page asks the server for one page of it, and asks again after each change.

import { read, storeUrl } from "./ask.js"
import { pointOf, slider } from "./asof.js"
import { count, counted, element, shortened, text, time, wide } from "./dom.js"
import { Exact, plain, tokens } from "./json.js"
import { Loading } from "./live.js"
import { storePlace } from "./places.js"

const PAGE = 50
// If documents are long, a page holds fewer of them.
const PAGE_BYTES = 1_000_000
// The default columns: at most so many, of fields that at least this share of the documents have.
const COLUMNS = 8
const SHARE_MIN = 0.1
// In a narrower window the table is not fitted. It scrolls instead.
const NARROW_PX = 720

export function showDocuments(body, place, store) {
    const { given } = place
    const asked = { where: given.get("where") ?? "", order: given.get("order") ?? "", as_of: given.get("as_of") ?? "" }
    const chosen = given.has("columns") ? given.get("columns").split("\n").filter(Boolean) : null
    const pagesUpTo = [{ cursor: null, first: 0 }] // the last one is shown
    const known = new Map() // rows by id, as shown
    const seen = new Map() // for each field on this page or in a column: the share of documents that had it
    let shown = [] // the columns
    let next = null // the page after the one shown
    let isFirst = true
    let fitting = COLUMNS // how many columns fit

    const go = (changes) => {
        const all = { ...asked, columns: chosen?.join("\n") ?? "", ...changes }
        location.hash = storePlace(place.name, "documents", null, all)
    }

    // What is asked

    const where = element("input", {
        id: "where",
        type: "search",
        value: asked.where,
        autocomplete: "off",
        spellcheck: "false",
        placeholder: "All. For example: status = active and hours > 3",
        "aria-describedby": "problem",
    })
    const form = element(
        "form",
        {
            class: "question",
            role: "search",
            onsubmit: (event) => (event.preventDefault(), go({ where: where.value.trim() })),
        },
        element("label", { for: "where" }, "Where"),
        where,
        element("button", {}, "Find"),
    )
    const choice = element("fieldset", {}, element("legend", {}, "Columns"))
    const columnsMenu = element("details", { class: "columns" }, element("summary", {}, "Columns"), choice)
    form.append(columnsMenu)

    // What is found

    const summary = element("p", { class: "summary", id: "summary" })
    const heads = element("tr")
    const rows = element("tbody")
    const found = element(
        "table",
        { id: "documents", "aria-describedby": "summary" },
        element("caption", { class: "visually-hidden" }, `Documents of ${place.name}`),
        element("thead", {}, heads),
        rows,
    )
    const previous = element("button", { type: "button", onclick: () => turn(-1) }, "Previous")
    const following = element("button", { type: "button", onclick: () => turn(1) }, "Next")
    const pages = element("nav", { class: "pages", "aria-label": "Pages" }, previous, summary, following)
    const past = slider(place.name, asked.as_of, (as_of) => go({ as_of }))
    body.replaceChildren(form, past.element, wide(found), pages)

    rows.addEventListener("keydown", (event) => {
        const steps = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }
        if (!(event.key in steps)) return
        event.target.closest("tr")?.[steps[event.key]]?.querySelector("a")?.focus()
        event.preventDefault()
    })

    function turn(by) {
        if (by > 0) {
            if (next === null) return // the page that the user turned to is not there yet
            pagesUpTo.push(next)
        } else pagesUpTo.pop()
        next = null
        previous.disabled = pagesUpTo.length < 2
        known.clear()
        rows.replaceChildren()
        isFirst = true
        loading.again()
    }

    async function load() {
        const question = { where: asked.where, as_of: pointOf(asked.as_of) }
        const order = asked.order ? [asked.order] : []
        const wanted = pagesUpTo.at(-1)
        const [page, total] = await Promise.all([
            read(
                storeUrl(place.name, "/documents", {
                    ...question,
                    order_by: order,
                    limit: PAGE,
                    max_bytes: PAGE_BYTES,
                    cursor: wanted.cursor,
                }),
            ),
            read(storeUrl(place.name, "/count", question)),
        ])
        if (wanted !== pagesUpTo.at(-1)) return // the user has turned to another page meanwhile, which is asked for next
        store.succeed()
        next = page.cursor === null ? null : { cursor: page.cursor, first: wanted.first + page.items.length }
        draw(page.items.map(plain), total.documents)
    }

    function draw(items, total) {
        const wasFirst = isFirst
        note(items)
        let columns = chosen ?? inferred()
        drawRows(items, columns)
        // The author and the time are in the last columns, and must stay visible.
        while (
            chosen === null &&
            columns.length > 1 &&
            innerWidth > NARROW_PX &&
            found.scrollWidth > found.parentElement.clientWidth
        ) {
            fitting = columns.length - 1
            columns = inferred()
            isFirst = wasFirst
            drawRows(items, columns)
        }
        shown = columns
        const { first } = pagesUpTo.at(-1)
        if (!items.length) summary.textContent = asked.where ? "No document matches." : "There are no documents."
        else summary.textContent = `${count(first + 1)}–${count(first + items.length)} of ${counted(total, "document")}`
        previous.disabled = pagesUpTo.length < 2
        following.disabled = next === null
    }

    function drawRows(items, columns) {
        drawHeads(columns)
        drawChoice(columns)
        const focused = document.activeElement?.closest?.("#documents tr[data-id]")?.dataset.id
        const before = new Map(known)
        known.clear()
        const shape = columns.join("\n")
        const drawn = items.map((item) => {
            const old = before.get(item.id)
            const isSame = old !== undefined && old.stamp === item.stamp && old.shape === shape
            const made = isSame ? old.row : rowOf(item, columns)
            if (!isFirst && old?.stamp !== item.stamp) made.classList.add("fresh")
            known.set(item.id, { row: made, stamp: item.stamp, shape })
            return made
        })
        isFirst = false
        patch(rows, drawn)
        if (focused !== undefined) known.get(focused)?.row.querySelector("a").focus()
    }

    // Notes which fields the documents have. It forgets fields that are gone, or the list would grow without end.
    function note(items) {
        const counts = new Map()
        for (const { data } of items) for (const name of data.keys()) counts.set(name, (counts.get(name) ?? 0) + 1)
        for (const name of [...seen.keys()]) if (!counts.has(name) && !shown.includes(name)) seen.delete(name)
        for (const [name, number] of counts) seen.set(name, Math.max(seen.get(name) ?? 0, number / items.length))
    }

    // The fields that most documents have, in the order in which documents have them. A field that is a column stays
    // one.
    function inferred() {
        const frequent = [...seen].filter(([, share]) => share >= SHARE_MIN).sort((one, other) => other[1] - one[1])
        const names = new Set(frequent.slice(0, fitting).map(([name]) => name))
        return [...seen.keys()].filter((name) => names.has(name))
    }

    function drawHeads(columns) {
        const head = (label, path) => {
            const direction = asked.order === path ? "ascending" : asked.order === `-${path}` ? "descending" : null
            const turned = direction === "ascending" ? `-${path}` : direction === "descending" ? "" : path
            const sign = direction === null ? "" : direction === "ascending" ? " ↑" : " ↓"
            const button = element(
                "button",
                {
                    type: "button",
                    data: { order: path },
                    title: `Sort by ${label}`,
                    onclick: () => go({ order: turned }),
                },
                shortened(label, 40),
                text("span", sign, "sign"),
            )
            return element("th", { scope: "col", "aria-sort": direction }, button)
        }
        const wanted = [
            head("Id", "@id"),
            ...columns.map((name) => head(name, pathOf(name))),
            head("Written by", "@author"),
            head("At", "@ts"),
        ]
        if (heads.textContent === wanted.map((one) => one.textContent).join("")) return
        const focused = document.activeElement?.dataset?.order
        heads.replaceChildren(...wanted)
        if (focused !== undefined) wanted.find((one) => one.firstChild.dataset.order === focused)?.firstChild.focus()
    }

    function drawChoice(columns) {
        if (columnsMenu.open) return // somebody is using it
        const boxes = [...new Set([...columns, ...seen.keys()])].map((name) => {
            const box = element("input", { type: "checkbox", data: { name }, checked: columns.includes(name) })
            return element("label", {}, box, ` ${shortened(name, 60)}`)
        })
        const use = () => {
            const names = [...choice.querySelectorAll("input")]
                .filter((box) => box.checked)
                .map((box) => box.dataset.name)
            go({ columns: names.join("\n") })
        }
        choice.replaceChildren(
            element("legend", {}, "Columns"),
            ...boxes,
            element("button", { type: "button", onclick: use }, "Show"),
        )
    }

    const rowOf = (item, columns) => {
        const id = element(
            "a",
            { href: storePlace(place.name, "document", item.id, { as_of: asked.as_of }) },
            item.id === "" ? "(empty)" : shortened(item.id),
        )
        return element(
            "tr",
            { data: { id: item.id } },
            element("th", { scope: "row" }, id),
            columns.map((name) => cell(item.data, name)),
            element("td", { class: "author" }, item.author),
            element("td", {}, time(item.ts)),
        )
    }

    const loading = new Loading(load, store.fail)
    loading.again()
    return {
        changed: (news) => {
            if (news === null) past.again()
            // The past does not change. But while the server was away, it could not be read.
            if (news === null || !asked.as_of) loading.again()
        },
        close: () => (loading.close(), past.close()),
    }
}

function cell(data, name) {
    if (!data.has(name)) return element("td", { class: "missing" })
    const value = data.get(name)
    if (value instanceof Exact) return element("td", { class: "number" }, value.source)
    if (typeof value === "string")
        return element("td", { title: value.length > 40 ? shortened(value, 1000) : null }, shortened(value))
    const shown = tokens(value)
        .map(([, part]) => part)
        .join("")
    return element("td", { class: "json", title: shown.length > 40 ? shortened(shown, 1000) : null }, shortened(shown))
}

// Makes `wanted` the children of an element. Children that are already there stay in place.
export function patch(parent, wanted) {
    const keep = new Set(wanted)
    for (const child of [...parent.children]) if (!keep.has(child)) child.remove()
    wanted.forEach((child, number) => {
        if (parent.children[number] !== child) parent.insertBefore(child, parent.children[number] ?? null)
    })
}

// A field's name, written as a path of the filter language.
const pathOf = (name) =>
    /^[^\s\x00-\x1f\x7f\x85.[\](){}"'=<>!,@-][^\s\x00-\x1f\x7f\x85.[\](){}"'=<>!,@]*$/.test(name)
        ? name
        : JSON.stringify(name)
