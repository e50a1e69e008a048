// The list of streams as a tree. Forks stand below the streams that they were forked from.

import { ask } from "./ask.js"
import { $, element, size, text } from "./dom.js"
import { streamPlace } from "./places.js"

const streams = new Map() // by path
let after = null
let chosen = null
export let root = "/v1/stream/"

export async function loadStreams(from = "") {
    const answer = await ask(`/page/streams?after=${encodeURIComponent(from)}`)
    if (!answer.ok) throw new Error((await answer.text()).trim())
    const found = await answer.json()
    root = found.root
    if (!from) streams.clear()
    for (const stream of found.streams) streams.set(stream.path, stream)
    after = found.after
    $("root").textContent = root
    draw()
}

export function streamsChanged(news) {
    for (const [path, stream] of Object.entries(news)) {
        if (stream === null) streams.delete(path)
        // A stream after the last loaded one is not added. "Show more" loads it.
        else if (after === null || path <= after || streams.has(path)) streams.set(path, { ...stream, moved: true })
    }
    draw()
}

export function markStream(path) {
    chosen = path
    for (const item of visible()) item.ariaSelected = String(item.dataset.path === path)
}

function draw() {
    const wanted = $("filter").value.toLowerCase()
    const shown = new Set()
    for (const stream of streams.values()) {
        if (!stream.path.toLowerCase().includes(wanted)) continue
        // Show the sources of a stream, too, so that it has its place in the tree.
        for (let one = stream; one && !shown.has(one.path); one = streams.get(one.source)) shown.add(one.path)
    }
    const children = new Map()
    for (const path of shown) {
        const source = streams.get(path).source
        const parent = source !== null && shown.has(source) ? source : ""
        children.set(parent, [...(children.get(parent) ?? []), path])
    }
    const focused = document.activeElement?.dataset?.path
    $("streams").replaceChildren(...branch(children, "", 1))
    $("more").hidden = after === null
    $("none").hidden = streams.size > 0
    const items = visible()
    const stop = items.find((item) => item.dataset.path === (focused ?? chosen)) ?? items[0]
    if (stop) stop.tabIndex = 0
    if (focused !== undefined) stop?.focus()
}

function branch(children, parent, level) {
    return (children.get(parent) ?? []).sort().map((path) => {
        const stream = streams.get(path)
        const row = element("div", { class: "row" }, text("span", path, "path"))
        if (stream.closed) row.append(text("span", "closed", "mark"))
        if (stream.deleted) row.append(text("span", "deleted", "mark"))
        row.append(text("span", size(stream.bytes), "tail"))
        const attributes = {
            role: "treeitem",
            tabindex: "-1",
            "aria-level": level,
            "aria-selected": String(path === chosen),
        }
        const item = element("li", { ...attributes, data: { path } }, row)
        item.classList.toggle("moved", stream.moved === true)
        item.classList.toggle("deleted", stream.deleted)
        if (children.has(path)) {
            item.ariaExpanded = "true"
            item.append(element("ul", { role: "group" }, branch(children, path, level + 1)))
        }
        return item
    })
}

const visible = () => [...$("streams").querySelectorAll("[role=treeitem]")]

function move(item, by) {
    const items = visible()
    const next =
        items[Math.max(0, Math.min(items.length - 1, by === Infinity ? items.length - 1 : items.indexOf(item) + by))]
    for (const one of items) one.tabIndex = one === next ? 0 : -1
    next?.focus()
}

const open = (item) => (location.hash = streamPlace(item.dataset.path))

export function startTree(report) {
    $("streams").addEventListener("keydown", (event) => {
        const item = event.target.closest("[role=treeitem]")
        if (!item) return
        const steps = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity }
        if (event.key in steps) move(item, steps[event.key])
        else if (event.key === "ArrowLeft") item.parentElement.closest("[role=treeitem]")?.focus()
        else if (event.key === "ArrowRight") item.querySelector("[role=treeitem]")?.focus()
        else if (event.key === "Enter" || event.key === " ") open(item)
        else return
        event.preventDefault()
    })
    $("streams").addEventListener("click", (event) => {
        const item = event.target.closest("[role=treeitem]")
        if (item) open(item)
    })
    $("filter").addEventListener("input", draw)
    $("filter").addEventListener("keydown", (event) => {
        if (event.key === "ArrowDown" || event.key === "Enter") visible()[0]?.focus()
    })
    $("more").addEventListener("click", () => loadStreams(after).catch(report))
}
