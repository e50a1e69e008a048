// A slider over the newest commits of a store. It shows the store as it was after any of them.

import { read, storeUrl } from "./ask.js"
import { element, shortened, text, time } from "./dom.js"
import { plain } from "./json.js"

const COMMITS = 1000

// The slider that was moved last. Each move changes the address, so a new slider replaces the old one. It starts with
// the same commits at once, so that it can take the next key.
let moved = { name: "", commits: [] }

// The address holds the clock of a commit, or a time. The server accepts both.
export const pointOf = (as_of) => as_of || null

// Calls `go` with the clock of a commit, or with "" for now. `again()` reads the commits if that has failed.
export function slider(name, as_of, go) {
    const range = element("input", {
        type: "range",
        min: "0",
        max: "0",
        value: "0",
        "aria-label": "As of commit",
        "aria-describedby": "point",
    })
    const point = element("p", { id: "point", class: "point" })
    const now = element("button", { type: "button", onclick: () => go("") }, "Now")
    const holder = element("div", { class: "slider", hidden: true }, range, now, point)
    const open = element(
        "button",
        { type: "button", class: "past", "aria-expanded": "false", onclick: () => begin() },
        "As of…",
    )
    const all = element("div", { class: "asof" }, open, holder)
    let commits = []
    let isClosed = false
    let hasFailed = false

    const begin = () => start().then(() => range.focus())

    async function start() {
        open.hidden = true
        holder.hidden = false
        point.textContent = "Reading the commits that are kept…"
        hasFailed = false
        try {
            commits = knows() ? await moved.commits : await ask()
        } catch (error) {
            point.textContent = error.message
            hasFailed = true
            return
        }
        if (isClosed) return
        range.max = String(commits.length)
        const at = commits.findLastIndex((commit) => wasBy(commit, as_of))
        range.value = String(as_of === "" ? commits.length : Math.max(0, at))
        describe()
        if (as_of && at < 0)
            point.textContent = `As of ${as_of}, before the commits that this slider reaches.`
    }

    const knows = () => moved.name === name && moved.commits.some((commit) => String(clockOf(commit)) === as_of)

    const ask = async () => (await read(storeUrl(name, "/activity", { limit: COMMITS }))).commits.map(plain).reverse()

    function describe() {
        const commit = commits[Number(range.value)]
        range.setAttribute("aria-valuetext", commit ? `${commit.author} ${commit.op} ${commit.ts}` : "now")
        if (!commit)
            return point.replaceChildren(
                as_of ? "Now, when you let go" : `Now. You can go back ${commits.length} commits from here.`,
            )
        const ids = commit.ids
            .slice(0, 3)
            .map((id) => shortened(id, 40))
            .join(", ")
        point.replaceChildren(
            `After clock ${clockOf(commit)}: `,
            text("strong", commit.author),
            ` ${commit.op} ${ids} `,
            time(commit.ts),
        )
    }

    range.addEventListener("input", describe)
    range.addEventListener("change", () => {
        const commit = commits[Number(range.value)]
        moved = { name, commits }
        go(commit ? String(clockOf(commit)) : "")
    })
    if (as_of) begin()
    return { element: all, again: () => hasFailed && start(), close: () => (isClosed = true) }
}

// Whether a commit is at or before a clock, or a time.
export const wasBy = (commit, as_of) =>
    /^\d+$/.test(as_of) ? clockOf(commit) <= Number(as_of) : microseconds(commit.ts) <= microseconds(as_of)

// Microseconds since 1970. A Date keeps only milliseconds, and several commits can fall into one millisecond.
const microseconds = (ts) =>
    new Date(ts).getTime() * 1000 + Number((/\.\d{3}(\d{1,3})/.exec(ts)?.[1] ?? "").padEnd(3, "0"))

export const clockOf = (commit) => Number(commit.stamp.split("@")[0])
