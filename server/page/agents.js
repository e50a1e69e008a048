// The agents of a store: what each wrote, when it last wrote, and which leases it holds.

import { read, storeUrl } from "./ask.js"
import { count, element, redraw, row, since, table, text, time, wide } from "./dom.js"
import { authorCell, documentLink, showActivity } from "./commits.js"
import { Exact, plain } from "./json.js"

const LEASES = 200
const PREFIX = "lease/"
// An agent that wrote within this time is marked as alive.
const ALIVE_MS = 10_000

export function showAgents(body, place, store) {
    const shown = showActivity(body, place, store, async (found) => {
        const where = `@id >= "${PREFIX}" and @id < "lease0"`
        const leases = await read(storeUrl(place.name, "/documents", { where, limit: LEASES }))
        const agents = found.agents.map(plain).map((agent) =>
            row(
                element("th", { scope: "row", class: "author" }, agent.name),
                element("td", {}, agent.ts === null ? text("span", "before what is kept") : sign(agent.ts)),
                element("td", {}, agent.ts === null ? "" : time(agent.ts)),
                element("td", { class: "number" }, count(agent.commits)),
                element("td", { class: "number" }, count(agent.writes)),
                element("td", { class: "number" }, count(agent.undos)),
                element("td", { class: "number" }, count(agent.lost)),
                element(
                    "td",
                    { class: "ids" },
                    agent.ids.flatMap((id, number) =>
                        number ? [", ", documentLink(place.name, id)] : [documentLink(place.name, id)],
                    ),
                ),
            ),
        )
        const held = leases.items.map(plain).map((lease) => {
            const seconds = lease.data.get("seconds")
            const holder = lease.data.get("holder")
            const length = seconds instanceof Exact ? Number(seconds.source) : 0
            const state = element("td", { data: { until: new Date(lease.ts).getTime() + length * 1000 } })
            markLease(state)
            return row(
                element("th", { scope: "row" }, documentLink(place.name, lease.id.slice(PREFIX.length))),
                authorCell(typeof holder === "string" ? holder : "?"),
                `${length} s`,
                element("td", {}, sign(lease.ts)),
                state,
            )
        })
        const more = found.more_agents
            ? [text("p", `And ${count(found.more_agents)} who wrote earlier.`, "hint")]
            : []
        const agentHeads = [
            "Agent",
            "Last sign of life",
            "At",
            "Commits kept",
            "Documents written",
            "Undos",
            "Lost",
            "Wrote last",
        ]
        redraw(
            body,
            wide(table("Agents, last writer first", agentHeads, agents, { id: "agents" })),
            ...more,
            held.length
                ? wide(
                      table("Leases", ["Document", "Holder", "For", "Renewed", "State, by your clock"], held, {
                          id: "leases",
                      }),
                  )
                : text("p", "No lease is held.", "summary"),
        )
    })
    // "3 s ago" and "held" become wrong as time passes.
    const ticking = setInterval(() => {
        for (const each of body.querySelectorAll("[data-since]")) mark(each)
        for (const each of body.querySelectorAll("[data-until]")) markLease(each)
    }, 1000)
    return { changed: shown.changed, close: () => (clearInterval(ticking), shown.close()) }
}

function sign(ts) {
    const made = element("span", { class: "sign-of-life", data: { since: ts } })
    mark(made)
    return made
}

function markLease(cell) {
    cell.textContent = Date.now() > Number(cell.dataset.until) ? "may be taken over" : "held"
}

function mark(element) {
    const ts = element.dataset.since
    element.textContent = since(ts)
    element.classList.toggle("alive", Date.now() - new Date(ts) < ALIVE_MS)
}
