// The page: the list of stores and streams, the view beside it, and the connection that reports changes.

import { read, setToken, storeUrl, whenRefused } from "./ask.js"
import { $, count, element, text } from "./dom.js"
import { Loading, watch } from "./live.js"
import { placeOf, storePlace } from "./places.js"
import { showStore } from "./store.js"
import { showStream } from "./stream.js"
import { loadStreams, markStream, startTree, streamsChanged } from "./tree.js"

const COUNT_PAUSE_MS = 1000
const access = { agent: null, rights: new Map() }
const welcome = $("view").firstElementChild
let shown = null // the current view, if any

const report = (error) => ($("state").textContent = error?.message ?? "Connecting again")

// The list of stores

async function loadStores() {
    const found = await read("/v1/stores")
    access.agent = found.agent
    access.rights = found.rights
    $("who").hidden = found.agent === null
    $("who").textContent = found.agent === null ? "" : `as ${found.agent}`
    $("no-store").hidden = found.stores.length > 0
    const kept = new Map([...$("stores").children].map((item) => [item.dataset.name, item]))
    $("stores").replaceChildren(...found.stores.map((name) => kept.get(name) ?? storeItem(name)))
    markPlace()
}

function storeItem(name) {
    const documents = text("span", "", "tail")
    const link = element("a", { href: storePlace(name) }, text("span", name, "path"), documents)
    const item = element("li", { data: { name } }, link)
    item.counting = new Loading(
        async () => {
            documents.textContent = count((await read(storeUrl(name, "/count"))).documents)
        },
        () => (documents.textContent = ""),
        COUNT_PAUSE_MS,
    )
    item.counting.again()
    return item
}

const recount = (is) => {
    for (const item of $("stores").children) if (is(item.dataset.name)) item.counting.again()
}

// The view

function markPlace() {
    const place = placeOf(location.hash)
    for (const link of $("stores").querySelectorAll("a")) {
        const isHere = place?.kind === "store" && place.name === link.parentElement.dataset.name
        if (isHere) link.setAttribute("aria-current", "true")
        else link.removeAttribute("aria-current")
    }
    markStream(place?.kind === "stream" ? place.path : null)
}

function show() {
    const place = placeOf(location.hash)
    shown?.close()
    document.body.classList.toggle("chosen", place !== null)
    openMenu(false)
    if (place === null) {
        shown = null
        document.title = "opslog"
        $("view").replaceChildren(welcome)
        return markPlace()
    }
    document.title = `${place.kind === "store" ? place.name : place.path} · opslog`
    shown = place.kind === "store" ? showStore($("view"), place, access, report) : showStream($("view"), place, report)
    markPlace()
}

function openMenu(isOpen) {
    document.body.classList.toggle("menu", isOpen)
    $("menu").ariaExpanded = String(isOpen)
}

// The connection

function start() {
    watch({
        connected: async () => {
            await Promise.all([loadStores(), loadStreams()])
            recount(() => true)
            $("state").textContent = "Live"
            if (shown === null) show()
            else shown.changed(null)
        },
        changed: (news) => {
            if (news.again) loadStreams().catch(report)
            else streamsChanged(news.streams)
            recount((name) => news.again || `stores/${name}` in news.streams)
            shown?.changed(news)
        },
        lost: report,
    })
}

whenRefused(() => {
    $("access").hidden = false
    $("token").focus()
})
$("access").addEventListener("submit", (event) => {
    event.preventDefault()
    setToken($("token").value)
    $("token").value = ""
    $("access").hidden = true
    start()
})
$("menu").addEventListener("click", () => openMenu($("menu").ariaExpanded !== "true"))
document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault()
    $("view").focus()
})
document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return
    if (event.key === "/" && !["INPUT", "TEXTAREA", "SELECT"].includes(event.target.tagName)) {
        event.preventDefault()
        const finds = $("where") ?? $("filter")
        if (finds === $("filter")) openMenu(true)
        finds.focus()
    }
    if (event.key === "Escape" && $("menu").ariaExpanded === "true") {
        openMenu(false)
        $("menu").focus()
    }
})
window.addEventListener("hashchange", show)
startTree(report)
start()
