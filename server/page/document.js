// One document: its content, each of its revisions, and who made them.

import { read, storeUrl } from "./ask.js"
import { wasBy } from "./asof.js"
import { counted, element, text, time } from "./dom.js"
import { differences, folded } from "./diff.js"
import { lines, plain, spans } from "./json.js"
import { Loading } from "./live.js"

const REVISIONS = 50
const REVISIONS_MAX = 1000
// To get a history, the server reads all logs that it retains.
const PAUSE_MS = 1000
// How many lines are shown at once.
const LINES_MAX = 5000

export function showDocument(body, place, store) {
    const { id } = place
    let limit = REVISIONS
    let revisions = []
    let earlier = 0
    let at = -1 // the index of the revision that is shown
    let isAtEnd = true
    let drawn = null // the history that is shown
    const firstPoint = place.given.get("as_of") ?? ""

    const heading = element("h2", { id: "id" }, id === "" ? "(empty id)" : id)
    const what = element("p", { class: "summary", id: "what" })
    const range = element("input", {
        type: "range",
        min: "0",
        max: "0",
        value: "0",
        "aria-label": "Revision",
        "aria-describedby": "what",
    })
    const back = element(
        "button",
        { type: "button", "aria-label": "Earlier revision", onclick: () => choose(at - 1) },
        "←",
    )
    const forth = element(
        "button",
        { type: "button", "aria-label": "Later revision", onclick: () => choose(at + 1) },
        "→",
    )
    const whole = element("input", { type: "checkbox", onchange: () => drawDocument() })
    const strip = element(
        "div",
        { class: "slider" },
        back,
        range,
        forth,
        element("label", {}, whole, " all of it, without differences"),
    )
    const said = element("p", { id: "said", role: "status" })
    const shown = element("pre", { id: "document", tabindex: "0", "aria-label": "The document, with differences" })
    const list = element("ol", { id: "revisions", reversed: true })
    const older = element(
        "button",
        { type: "button", hidden: true, onclick: () => ((limit = REVISIONS_MAX), loading.again()) },
        "Show older ones",
    )
    const aside = element(
        "section",
        { "aria-labelledby": "history" },
        element("h3", { id: "history" }, "History"),
        list,
        older,
    )
    body.replaceChildren(heading, strip, what, said, element("div", { class: "beside" }, shown, aside))
    what.textContent = "Reading its history…"
    range.addEventListener("input", () => choose(Number(range.value)))

    async function load() {
        // The page asks after each change of the store: a write that lost, or that was undone at once, is a revision
        // too, although the document is the same as before.
        const found = await history()
        store.succeed()
        const present = found.revisions.map(plain)
        const state = JSON.stringify([found.earlier, present.map(({ stamp, undone }) => [stamp, undone])])
        if (drawn === state) return // somebody may be reading it
        drawn = state
        const stampShown = revisions[at]?.stamp
        revisions = present
        earlier = found.earlier
        if (at < 0 && firstPoint) {
            at = revisions.findLastIndex((each) => wasBy(each, firstPoint))
            isAtEnd = at === revisions.length - 1
        } else {
            const same = revisions.findIndex((each) => each.stamp === stampShown)
            at = isAtEnd || same < 0 ? revisions.length - 1 : same
        }
        draw()
    }

    async function history() {
        if (id !== "." && id !== "..")
            return read(storeUrl(place.name, `/history/${encodeURIComponent(id)}`, { limit }))
        // Browsers take such an id for a step in the path, in whatever way it is encoded. So the page shows only the
        // newest revision of such a document.
        const page = await read(storeUrl(place.name, "/documents", { where: JSON.stringify({ "@id": id }) }))
        return { revisions: page.items.map((item) => new Map([...item, ["op", "set"], ["undone", false]])), earlier: 0 }
    }

    function choose(number) {
        at = Math.max(0, Math.min(revisions.length - 1, number))
        isAtEnd = at === revisions.length - 1
        draw()
    }

    // The revision that counted before another one, so one that was not undone.
    const before = (number) => revisions.slice(0, number).findLast((each) => !each.undone)

    function draw() {
        range.max = String(Math.max(0, revisions.length - 1))
        range.value = String(at)
        back.disabled = at <= 0
        forth.disabled = at >= revisions.length - 1
        drawHistory()
        drawDocument()
    }

    function drawDocument() {
        const revision = revisions[at]
        if (!revision) {
            what.textContent = "There is no such document, and the retained history has none."
            return shown.replaceChildren()
        }
        const isNow = at === revisions.findLastIndex((each) => !each.undone)
        const verb = revision.op === "delete" ? "deleted" : "written"
        what.replaceChildren(
            `Revision ${earlier + at + 1} of ${earlier + revisions.length}, ${verb} by `,
            text("strong", revision.author),
            " at ",
            time(revision.ts),
            `, stamp ${revision.stamp}`,
            revision.undone ? ", undone" : isNow ? ", as it is now" : "",
        )
        range.setAttribute("aria-valuetext", what.textContent)
        const now = revision.data ? lines(revision.data) : []
        const old = before(at)?.data
        const changes = whole.checked
            ? now.map((line) => ({ kind: "same", line }))
            : folded(differences(old ? lines(old) : [], now))
        shown.replaceChildren(...changes.slice(0, LINES_MAX).map(lineOf))
        if (changes.length > LINES_MAX)
            shown.append(text("div", `… ${counted(changes.length - LINES_MAX, "line")} more`, "folded"))
    }

    function lineOf(change) {
        if (change.kind !== "folded")
            return element(
                "div",
                { class: change.kind },
                element(
                    "span",
                    { class: "gutter", "aria-hidden": "true" },
                    { added: "+", removed: "−", same: " " }[change.kind],
                ),
                spoken(change.kind),
                spans(change.line),
            )
        const open = () =>
            button.replaceWith(...change.lines.slice(0, LINES_MAX).map((line) => lineOf({ kind: "same", line })))
        const button = element(
            "button",
            { type: "button", class: "folded", onclick: open },
            `${counted(change.lines.length, "line")} the same`,
        )
        return button
    }

    function drawHistory() {
        const focused = document.activeElement?.dataset?.stamp
        const items = revisions.map((revision, number) => {
            const label = element(
                "button",
                {
                    type: "button",
                    class: "revision",
                    data: { stamp: revision.stamp },
                    "aria-current": number === at ? "true" : null,
                    onclick: () => choose(number),
                },
                text("strong", revision.author),
                ` ${revision.op}`,
                revision.undone ? text("span", "undone", "mark") : null,
                element("br"),
                time(revision.ts),
                text("span", ` ${revision.stamp}`, "stamp"),
            )
            return element(
                "li",
                { class: revision.undone ? "undone" : null },
                label,
                mayUndo(revision) ? undoButton(revision) : null,
            )
        })
        list.setAttribute("start", String(earlier + revisions.length))
        list.replaceChildren(...items.reverse())
        older.hidden = !earlier || limit === REVISIONS_MAX
        if (focused !== undefined)
            [...list.querySelectorAll("[data-stamp]")].find((each) => each.dataset.stamp === focused)?.focus()
    }

    // With tokens, a client undoes what the agent of its token wrote. Without tokens, everybody is who they say they
    // are. Only an agent itself can undo what is in its own log, and nobody can undo what others have overwritten.
    function mayUndo(revision) {
        const agent = store.agent()
        return (
            revision === revisions.findLast((each) => !each.undone) &&
            revision.stamp.endsWith("@transactions") &&
            store.rights().includes("write") &&
            (agent === null || agent === revision.author)
        )
    }

    function undoButton(revision) {
        let isSure = false
        const button = element(
            "button",
            {
                type: "button",
                class: "undo",
                "aria-label": `Undo what ${revision.author} wrote, ${revision.stamp}`,
                onclick: async () => {
                    if (!isSure) {
                        isSure = true
                        button.textContent = "Really undo?"
                        return
                    }
                    button.disabled = true
                    try {
                        const headers = { "Content-Type": "application/json", "Opslog-Agent": revision.author }
                        const done = await read(storeUrl(place.name, "/undo"), {
                            method: "POST",
                            headers,
                            body: JSON.stringify({ stamp: revision.stamp }),
                        })
                        said.textContent = done.undone
                            ? `Undone: ${counted(done.ids.length, "document")} restored to before ${revision.author} wrote.`
                            : "There was nothing left to undo."
                    } catch (error) {
                        said.textContent = error.message
                    }
                    drawn = null
                    loading.again()
                },
            },
            "Undo",
        )
        return button
    }

    const loading = new Loading(load, store.fail, PAUSE_MS)
    loading.again()
    return { changed: () => loading.again(), close: () => loading.close() }
}

const spoken = (kind) =>
    kind === "same" ? null : text("span", kind === "added" ? "added: " : "removed: ", "visually-hidden")
