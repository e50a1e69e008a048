// A board whose cards move while agents work. The feed of a store keeps its documents up to date.
//
//   index.html?server=http://127.0.0.1:4437&store=tasks

const given = new URLSearchParams(location.search)
const server = given.get("server") ?? "http://127.0.0.1:4437"
const store = given.get("store") ?? "tasks"
const feed = `${server}/v1/stream/stores/${encodeURIComponent(store)}`
const WAIT_MS = 1000

const documents = new Map() // by id
const cards = new Map() // by id, as they are shown
const state = document.getElementById("state")

// The feed is a stream of the State Protocol. A reader that applies all of its messages from the beginning (offset -1)
// has exactly the documents of the store.
function apply(message) {
    if (message.type !== store) return // a control message, or one that only names a commit
    if (message.headers.operation === "delete") documents.delete(message.key)
    else documents.set(message.key, message.value)
}

// The column of a document. Its lease says who has claimed it (docs/leases.md).
function columnOf(id, task) {
    if (task.status === "done") return "done"
    return documents.has(`lease/${id}`) ? "claimed" : "open"
}

function draw() {
    const isTask = (task) => typeof task?.title === "string"
    for (const [id, task] of documents) if (isTask(task)) drawCard(id, task)
    for (const [id, card] of cards)
        if (!isTask(documents.get(id))) {
            card.remove()
            cards.delete(id)
        }
}

function drawCard(id, task) {
    const column = columnOf(id, task)
    const who = column === "claimed" ? documents.get(`lease/${id}`).holder : column === "done" ? task.by : ""
    const text = [task.title, [id, who].filter(Boolean).join(" · ")]
    const shown = cards.get(id)
    if (shown?.dataset.text === JSON.stringify([column, ...text])) return
    const card = document.createElement("li")
    const note = document.createElement("small")
    card.dataset.id = id
    card.dataset.text = JSON.stringify([column, ...text])
    card.append(text[0], note) // as text, so that nothing in a document is markup
    note.textContent = text[1]
    shown?.remove()
    cards.set(id, card)
    document.querySelector(`[data-column=${column}]`).append(card)
}

// The server ends an answer after a minute. The next request continues at the last offset.
function follow(offset) {
    const source = new EventSource(`${feed}?live=sse&offset=${offset}`)
    source.addEventListener("data", (event) => JSON.parse(event.data).forEach(apply))
    source.addEventListener("control", (event) => {
        offset = JSON.parse(event.data).streamNextOffset
        state.textContent = "Live"
        draw()
    })
    source.addEventListener("error", () => {
        const wasRefused = source.readyState === EventSource.CLOSED
        source.close()
        if (!wasRefused) return setTimeout(follow, WAIT_MS, offset)
        // The server has trimmed the messages before its newest snapshots, or has lost streams that it kept in memory.
        state.textContent = `No feed at ${feed}. Start: opslog serve --store ${store}=./${store}`
        documents.clear()
        setTimeout(follow, WAIT_MS, "-1")
    })
}

follow("-1")
