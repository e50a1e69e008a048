// Documents that were archived, by period.

import { read, storeUrl } from "./ask.js"
import { element, row, shortened, table, text, time, wide } from "./dom.js"
import { plain, tokens } from "./json.js"
import { storePlace } from "./places.js"

const PAGE = 50

export function showArchives(body, place, store) {
    let isClosed = false
    let cursors = [null] // of the pages up to the one that is shown
    const period = place.id

    async function load() {
        const wanted = cursors
        const found = await read(storeUrl(place.name, "/archives"))
        const links = found.periods.map((name) =>
            element(
                "li",
                {},
                element(
                    "a",
                    { href: storePlace(place.name, "archives", name), "aria-current": name === period ? "page" : null },
                    name,
                ),
            ),
        )
        const page =
            period === null
                ? null
                : await read(
                      storeUrl(place.name, `/archives/${encodeURIComponent(period)}`, {
                          limit: PAGE,
                          cursor: wanted.at(-1),
                      }),
                  )
        if (isClosed || wanted !== cursors) return
        store.succeed()
        body.replaceChildren(
            found.periods.length
                ? element("ul", { class: "periods", "aria-label": "Periods" }, links)
                : text("p", "Nothing was archived.", "summary"),
        )
        if (page === null) return
        const rows = page.items.map(plain).map((entry) => {
            const shown = tokens(entry.data)
                .map(([, part]) => part)
                .join("")
            return row(
                element("th", { scope: "row" }, shortened(entry.id)),
                element("td", { class: "json" }, shortened(shown)),
                element("td", { class: "author" }, entry.author),
                element("td", {}, time(entry.ts)),
            )
        })
        const turn = (to) => ((cursors = to), again())
        const previous = element(
            "button",
            { type: "button", disabled: wanted.length < 2, onclick: () => turn(wanted.slice(0, -1)) },
            "Previous",
        )
        const next = element(
            "button",
            { type: "button", disabled: page.cursor === null, onclick: () => turn([...wanted, page.cursor]) },
            "Next",
        )
        body.append(
            wide(table(`Archive ${period}`, ["Id", "Document", "Written by", "At"], rows, { id: "archived" })),
            element("nav", { class: "pages", "aria-label": "Pages" }, previous, next),
        )
    }

    const again = () => load().catch(store.fail)
    again()
    return {
        // Writes do not change archives. But while the server was away, they could not be read.
        changed: (news) => news === null && again(),
        close: () => (isClosed = true),
    }
}
