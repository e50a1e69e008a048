// The newest commits of a store, and the commits that lost.

import { read, storeUrl } from "./ask.js"
import { clockOf } from "./asof.js"
import { count, counted, element, redraw, row, shortened, table, text, time, wide } from "./dom.js"
import { plain } from "./json.js"
import { Loading } from "./live.js"
import { storePlace } from "./places.js"

const COMMITS = 200
const PAUSE_MS = 1000

export const documentLink = (name, id) =>
    element("a", { href: storePlace(name, "document", id) }, id === "" ? "(empty)" : shortened(id, 60))

export const authorCell = (author) => element("td", { class: "author" }, author)

// A view of `/activity` that is drawn again after each change.
export function showActivity(body, place, store, draw) {
    body.replaceChildren(text("p", "Reading the commits that are kept…", "hint"))
    const loading = new Loading(
        async () => {
            const found = await read(storeUrl(place.name, "/activity", { limit: COMMITS }))
            if (loading.isClosed) return
            store.succeed()
            await draw(found)
        },
        store.fail,
        PAUSE_MS,
    )
    loading.again()
    return { changed: () => loading.again(), close: () => loading.close() }
}

export function showCommits(body, place, store) {
    return showActivity(body, place, store, (found) => {
        const rows = found.commits.map(plain).map((commit) => {
            const ids = commit.ids.flatMap((id, number) =>
                number ? [", ", documentLink(place.name, id)] : [documentLink(place.name, id)],
            )
            if (commit.more_ids) ids.push(` and ${count(commit.more_ids)} more`)
            const past = element(
                "a",
                { href: storePlace(place.name, "documents", null, { as_of: String(clockOf(commit)) }) },
                "as of then",
            )
            return row(
                element("td", {}, time(commit.ts)),
                authorCell(commit.author),
                commit.op,
                element("td", { class: "ids" }, ids),
                element("td", { class: "stamp" }, commit.stamp),
                element("td", {}, past),
            )
        })
        const many =
            found.commits.length < found.retained
                ? `The newest ${count(found.commits.length)} of ${counted(found.retained, "commit")} that are kept.`
                : `All ${counted(found.retained, "commit")} that are kept.`
        redraw(
            body,
            text("p", many, "summary"),
            wide(
                table("Commits, the newest first", ["At", "Written by", "What", "Documents", "Stamp", ""], rows, {
                    id: "commits",
                }),
            ),
        )
    })
}

export function showConflicts(body, place, store) {
    return showActivity(body, place, store, (found) => {
        const lost = found.lost.map(plain)
        const rows = lost.map((each) => {
            const by = plain(each.to)
            return row(
                element("th", { scope: "row" }, documentLink(place.name, each.id)),
                authorCell(each.author),
                element("td", {}, time(each.ts, { isPrecise: true })),
                element("td", { class: "stamp" }, each.stamp),
                authorCell(by.author),
                element("td", {}, time(by.ts, { isPrecise: true })),
                element("td", { class: "stamp" }, by.stamp),
            )
        })
        const what =
            "Here are writes that lost to another agent's write of the same document, although that was made no later: neither agent had read the other's write. A transaction never loses: it is decided again."
        redraw(
            body,
            text("p", what, "hint"),
            rows.length
                ? wide(
                      table(
                          "Writes that lost, the newest first",
                          ["Document", "Lost", "At", "Stamp", "To", "At", "Stamp"],
                          rows,
                          { id: "lost" },
                      ),
                  )
                : text("p", "None among the commits that are kept.", "summary"),
        )
    })
}
