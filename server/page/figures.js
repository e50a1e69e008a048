// Figures of a store: now, and over the time that it has been served.

import { read, storeUrl } from "./ask.js"
import { count, counted, element, size, text } from "./dom.js"
import { plain } from "./json.js"
import { Loading } from "./live.js"

const PAUSE_MS = 1000
// Figures change even when nobody writes: time passes, and compactions run.
const TICK_MS = 2000
const WIDTH = 600
const HEIGHT = 120

export function showFigures(body, place, store) {
    body.replaceChildren(text("p", "Reading figures…", "hint"))
    const loading = new Loading(
        async () => {
            const [figures, stats] = await Promise.all([
                read(storeUrl(place.name, "/figures")),
                read(storeUrl(place.name, "/stats")),
            ])
            if (loading.isClosed) return
            store.succeed()
            draw(body, figures.samples.map(plain), stats)
        },
        store.fail,
        PAUSE_MS,
    )
    loading.again()
    const ticking = setInterval(() => loading.again(), TICK_MS)
    return { changed: () => loading.again(), close: () => (clearInterval(ticking), loading.close()) }
}

function draw(body, samples, stats) {
    const times = samples.map(({ at }) => new Date(at).getTime())
    const compactions = times.filter((_, number) => number && samples[number].manifest !== samples[number - 1].manifest)
    const rates = samples.slice(1).map((each, number) => {
        const seconds = Math.max(0.001, (times[number + 1] - times[number]) / 1000)
        return Math.max(0, each.commits - samples[number].commits) / seconds
    })
    const last = samples.at(-1)
    const chart = (title, at, values, now) => figure(title, at, values, compactions, now)
    body.replaceChildren(
        chart("Commits per second", times.slice(1), rates, rates.length ? rates.at(-1).toPrecision(2) : "0"),
        chart(
            "Commits in the tails, not compacted yet",
            times,
            samples.map(({ tail }) => tail),
            count(last?.tail ?? 0),
        ),
        chart(
            "Documents",
            times,
            samples.map(({ documents }) => documents),
            count(last?.documents ?? 0),
        ),
        text(
            "p",
            `Since this server was started${compactions.length ? `; dotted lines: ${counted(last.manifest - samples[0].manifest, "compaction")}` : ""}.`,
            "hint",
        ),
        element(
            "dl",
            { id: "stats" },
            Object.entries(LABELS).flatMap(([name, [label, shown]]) => [
                text("dt", label),
                text("dd", stats[name] === null ? "none" : shown(stats[name])),
            ]),
        ),
    )
}

const LABELS = {
    documents: ["documents", count],
    commits: ["commits ever", count],
    tail_commits: ["not compacted", count],
    agents: ["logs", count],
    log_segments: ["segments of logs", count],
    log_bytes: ["size of logs", size],
    snapshot_runs: ["runs of the snapshot", count],
    snapshot_records: ["records in it", count],
    snapshot_bytes: ["size of it", size],
    archive_bytes: ["size of archives", size],
    manifest: ["manifest", count],
    clock: ["clock", count],
    compaction_error: ["last failure of a compaction", String],
}

function figure(title, times, values, marks, now) {
    const drawn = svg("svg", {
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": `${title}, now ${now}`,
    })
    const [first, last] = [times[0] ?? 0, times.at(-1) ?? 1]
    const most = Math.max(...values, 1)
    const x = (at) => (((at - first) / Math.max(1, last - first)) * WIDTH).toFixed(1)
    const y = (value) => (HEIGHT - 2 - (value / most) * (HEIGHT - 6)).toFixed(1)
    for (const at of marks) drawn.append(svg("line", { x1: x(at), x2: x(at), y1: 0, y2: HEIGHT, class: "mark-line" }))
    const points = values.map((value, number) => `${x(times[number])},${y(value)}`)
    if (points.length > 1) {
        drawn.append(svg("polygon", { points: `0,${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`, class: "area" }))
        drawn.append(svg("polyline", { points: points.join(" "), class: "line" }))
    }
    const scale = text("span", `most ${most >= 10 ? count(Math.round(most)) : most.toPrecision(2)}`, "hint")
    return element("figure", {}, element("figcaption", {}, title, text("strong", now), scale), drawn)
}

function svg(tag, attributes) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag)
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value)
    return made
}
