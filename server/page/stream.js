// One stream: its properties, its producers and followers, and its messages as they arrive.

import { ask, events, wait, WAIT_FIRST_MS, WAIT_LONGEST_MS } from "./ask.js"
import { counted, element, row, size, table, text } from "./dom.js"
import { coloured, elements, lines, parse, spans } from "./json.js"
import { Loading } from "./live.js"
import { root } from "./tree.js"

const SHOWN_MAX = 1000
const TICK_MS = 2000
// Longer messages are indented.
const LINE_MAX = 100
// Longer messages are shown without colours. Colouring them would take the browser too long.
const COLOURED_MAX = 200_000

const aboutUrl = (path) => `/page/stream?path=${encodeURIComponent(path)}`
const urlOf = (path) => root + path.split("/").map(encodeURIComponent).join("/")
const CLOCK = new Intl.DateTimeFormat(undefined, {
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
    fractionalSecondDigits: 1,
    hourCycle: "h23",
})

export function showStream(view, place, report) {
    const { path } = place
    const facts = element("dl", { id: "facts" })
    const about = element("div", { id: "about" })
    const list = element("ol", {
        id: "messages",
        tabindex: "0",
        role: "log",
        "aria-label": "Messages, the newest at the end",
    })
    view.replaceChildren(text("h1", path), facts, about, text("h2", "Messages"), list)
    view.firstChild.id = "name"
    const closing = new AbortController()
    const describing = new Loading(() => describeStream(path, facts, about), report)
    describing.again()
    // Followers come, go and fall behind even when nobody writes.
    const ticking = setInterval(() => describing.again(), TICK_MS)
    follow(path, list, closing.signal, report)
    return {
        changed: (news) => {
            if (!news || news.again || path in (news.streams ?? {})) describing.again()
        },
        close: () => {
            clearInterval(ticking)
            describing.close()
            closing.abort()
        },
    }
}

async function describeStream(path, facts, about) {
    const answer = await ask(aboutUrl(path))
    if (!facts.isConnected) return
    if (!answer.ok) return facts.replaceChildren(text("dt", "gone"), text("dd", "deleted or expired"))
    const stream = await answer.json()
    const fields = {
        type: stream.content_type,
        tail: `${stream.tail} (${size(stream.bytes)})`,
        created: stream.created,
        state: stream.deleted ? "deleted, kept for its forks" : stream.closed ? "closed" : "open",
        lives: stream.ttl !== null ? `${stream.ttl} s after its last use` : (stream.expires_at ?? null),
        "forked from": stream.source !== null ? `${stream.source} at ${stream.forked_at}` : null,
        forks: stream.forks || null,
    }
    const known = Object.entries(fields).filter(([, value]) => value !== null)
    facts.replaceChildren(...known.flatMap(([name, value]) => [text("dt", name), text("dd", value)]))
    const producers = stream.producers.map(({ id, epoch, seq }) => row(id, String(epoch), String(seq)))
    const followers = stream.followers.map(({ kind, id, readers, lag_bytes }) =>
        row(id ?? counted(readers, "reader"), kind, lag_bytes ? `${size(lag_bytes)} behind` : "at the end"),
    )
    about.replaceChildren(
        ...(producers.length
            ? [table("Producers", ["Id", "Epoch", "Last number"], producers, { id: "producers" })]
            : []),
        ...(followers.length ? [table("Followers", ["Who", "How", "Lag"], followers, { id: "followers" })] : []),
    )
}

// The server gives no offsets within the stream. So a long stream is read from its start, and only its end is shown.
async function follow(path, list, signal, report) {
    let offset = "-1"
    let isLive = false
    // When the stream at this path was created. A stream that was deleted and created again has other messages, but may
    // have the same offsets. After a restart that holds for all streams of a server without a directory.
    let created = null
    const note = (content) => list.append(text("li", content, "note"))
    for (let pause = WAIT_FIRST_MS; !signal.aborted; pause = Math.min(pause * 2, WAIT_LONGEST_MS)) {
        try {
            const about = await ask(aboutUrl(path), { signal })
            if (!about.ok && about.status !== 404) throw new Error(`The server answers ${about.status}`)
            const stream = about.ok ? await about.json() : null
            if (stream === null || stream.deleted) {
                if (created !== "none") note("deleted")
                created = "none"
                await wait(pause, signal)
                continue
            }
            if (created !== null && created !== stream.created) {
                list.replaceChildren()
                offset = "-1"
                isLive = false
            }
            created = stream.created
            const answer = await ask(`${urlOf(path)}?live=sse&offset=${encodeURIComponent(offset)}`, { signal })
            if (answer.status === 410) {
                note("what came next is no longer kept")
                offset = "-1"
                continue
            }
            if (!answer.ok) throw new Error(`The server answers ${answer.status}`)
            const isBinary = answer.headers.get("stream-sse-data-encoding") === "base64"
            let data = []
            for await (const event of events(answer)) {
                if (signal.aborted) return
                if (event.kind === "data") data.push(event.data)
                if (event.kind !== "control") continue
                const control = JSON.parse(event.data)
                // It is unknown when the messages arrived that were there before this page.
                for (const part of data) show(list, part, isBinary, stream.content_type, isLive ? new Date() : null)
                data = []
                isLive ||= control.upToDate === true
                offset = control.streamNextOffset
                pause = WAIT_FIRST_MS
                if (control.streamClosed) return note("closed: nothing will follow")
            }
        } catch (error) {
            if (signal.aborted) return
            report(error)
        }
        await wait(pause, signal)
    }
}

function show(list, data, isBinary, type, at) {
    const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40
    const isJson = type.split(";")[0].trim().toLowerCase() === "application/json"
    let shown
    if (isBinary) shown = [[atob(data.replaceAll("\n", "")).replace(/[^\x20-\x7e\n]/g, "·")]]
    else if (isJson) shown = elements(data).slice(-SHOWN_MAX).map(message)
    else shown = data.split("\n").map((line) => [line])
    const arrived = at && { class: "arrived", title: at.toISOString(), data: { at: CLOCK.format(at) } }
    list.append(...shown.slice(-SHOWN_MAX).map((parts) => element("li", arrived ?? {}, parts)))
    while (list.childElementCount > SHOWN_MAX) list.firstElementChild.remove()
    if (isAtEnd) list.scrollTop = list.scrollHeight
}

// A message on one line, as it is written. If it is long, it is indented.
function message(source) {
    if (source.length > COLOURED_MAX) return [source]
    if (source.length <= LINE_MAX) return spans(coloured(source))
    try {
        return lines(parse(source)).flatMap((line, number) => (number ? ["\n", ...spans(line)] : spans(line)))
    } catch {
        return [source] // nested too deeply
    }
}
