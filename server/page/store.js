// One store: its name, the links to its views, and the current view.

import { element, text } from "./dom.js"
import { showAgents } from "./agents.js"
import { showArchives } from "./archives.js"
import { showCommits, showConflicts } from "./commits.js"
import { showDocument } from "./document.js"
import { showDocuments } from "./documents.js"
import { showFigures } from "./figures.js"
import { storePlace } from "./places.js"

const VIEWS = {
    documents: ["Documents", showDocuments],
    commits: ["Commits", showCommits],
    agents: ["Agents", showAgents],
    conflicts: ["Conflicts", showConflicts],
    archives: ["Archives", showArchives],
    figures: ["Figures", showFigures],
}

// Returns `changed(news)`, to be called with each change, or with null if changes may have been missed; and `close()`.
// Each view returns the same.
export function showStore(view, place, access, report) {
    const current = place.view === "document" ? "documents" : place.view
    const links = Object.entries(VIEWS).map(([name, [label]]) =>
        element("a", { href: storePlace(place.name, name), "aria-current": name === current ? "page" : null }, label),
    )
    const body = element("div", { id: "body" })
    const problem = element("p", { id: "problem", role: "alert", hidden: true })
    const heading = text("h1", place.name)
    heading.id = "name"
    view.replaceChildren(
        heading,
        element("nav", { class: "views", "aria-label": `Views of ${place.name}` }, links),
        problem,
        body,
    )

    const store = {
        name: place.name,
        rights: () => access.rights.get(place.name) ?? [],
        agent: () => access.agent,
        // Shows an error until the next success.
        fail: (error) => {
            problem.hidden = false
            problem.textContent = error.message
        },
        succeed: () => (problem.hidden = true),
    }
    const show = place.view === "document" && place.id !== null ? showDocument : VIEWS[current][1]
    const shown = show(body, place, store, report)
    return {
        changed: (news) => {
            if (news === null || news.again || `stores/${place.name}` in news.streams) shown.changed(news)
        },
        close: shown.close,
    }
}
