// The page of a stream server. Nothing that a stream holds or is called ever becomes markup: all of it is textContent.

const SHOWN_MAX = 1000
const WAIT_FIRST_MS = 500
const WAIT_LONGEST_MS = 10000

const $ = (id) => document.getElementById(id)
const streams = new Map() // by path
let root = "/v1/stream/"
let after = null
let chosen = null
let following = null
let token = sessionStorage.getItem("token") ?? ""

// Asking

async function ask(url, options = {}) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {}
  const answer = await fetch(url, { ...options, headers, cache: "no-store" })
  if (answer.status === 401 || answer.status === 403) {
    $("access").hidden = false
    throw new Error(answer.status === 401 ? "This server wants a token" : "This token may not read everything")
  }
  $("access").hidden = true
  return answer
}

const urlOf = (path) => root + path.split("/").map(encodeURIComponent).join("/")
const wait = (ms, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms)
    signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()))
  })

// Server-sent events by fetch, which can carry a token where EventSource cannot.
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader()
  let text = ""
  for (;;) {
    const { done, value } = await reader.read()
    if (done) return
    const parts = (text + value).split("\n\n")
    text = parts.pop()
    for (const part of parts) {
      const event = { kind: "message", data: [] }
      for (const line of part.split("\n")) {
        if (line.startsWith("event:")) event.kind = line.slice(6).trim()
        if (line.startsWith("data:")) event.data.push(line.slice(5).replace(/^ /, ""))
      }
      if (event.data.length) yield { kind: event.kind, data: event.data.join("\n") }
    }
  }
}

// The list

async function load(from = "") {
  const answer = await ask(`/page/streams?after=${encodeURIComponent(from)}`)
  const found = await answer.json()
  root = found.root
  if (!from) streams.clear()
  for (const stream of found.streams) streams.set(stream.path, stream)
  after = found.after
  $("root").textContent = root
  draw()
}

function text(tag, content, className = "") {
  const element = document.createElement(tag)
  element.textContent = content
  if (className) element.className = className
  return element
}

function size(bytes) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (bytes < 1000 || unit === "GB") return `${unit === "B" ? bytes : bytes.toPrecision(3)} ${unit}`
    bytes /= 1000
  }
}

function draw() {
  const wanted = $("filter").value.toLowerCase()
  const shown = new Set()
  for (const stream of streams.values()) {
    if (!stream.path.toLowerCase().includes(wanted)) continue
    // With the sources that it comes from, so that it has its place in the tree.
    for (let one = stream; one && !shown.has(one.path); one = streams.get(one.source)) shown.add(one.path)
  }
  const children = new Map()
  for (const path of shown) {
    const source = streams.get(path).source
    const parent = source !== null && shown.has(source) ? source : ""
    children.set(parent, [...(children.get(parent) ?? []), path])
  }
  const focused = document.activeElement?.dataset?.path
  $("streams").replaceChildren(...branch(children, "", 1))
  $("more").hidden = after === null
  $("none").hidden = streams.size > 0
  const items = visible()
  const stop = items.find((item) => item.dataset.path === (focused ?? chosen)) ?? items[0]
  if (stop) stop.tabIndex = 0
  if (focused !== undefined) stop?.focus()
}

function branch(children, parent, level) {
  return (children.get(parent) ?? []).sort().map((path) => {
    const stream = streams.get(path)
    const item = document.createElement("li")
    item.role = "treeitem"
    item.dataset.path = path
    item.tabIndex = -1
    item.ariaLevel = level
    item.ariaSelected = String(path === chosen)
    const row = document.createElement("div")
    row.className = "row"
    row.append(text("span", path, "path"))
    if (stream.closed) row.append(text("span", "closed", "mark"))
    if (stream.deleted) row.append(text("span", "deleted", "mark"))
    row.append(text("span", size(stream.bytes), "tail"))
    item.classList.toggle("moved", stream.moved === true)
    item.classList.toggle("deleted", stream.deleted)
    item.append(row)
    if (children.has(path)) {
      const group = document.createElement("ul")
      group.role = "group"
      group.append(...branch(children, path, level + 1))
      item.ariaExpanded = "true"
      item.append(group)
    }
    return item
  })
}

const visible = () => [...$("streams").querySelectorAll("[role=treeitem]")]

function move(item, by) {
  const items = visible()
  const next = items[Math.max(0, Math.min(items.length - 1, by === Infinity ? items.length - 1 : items.indexOf(item) + by))]
  for (const one of items) one.tabIndex = one === next ? 0 : -1
  next?.focus()
}

$("streams").addEventListener("keydown", (event) => {
  const item = event.target.closest("[role=treeitem]")
  if (!item) return
  const steps = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity }
  if (event.key in steps) move(item, steps[event.key])
  else if (event.key === "ArrowLeft") item.parentElement.closest("[role=treeitem]")?.focus()
  else if (event.key === "ArrowRight") item.querySelector("[role=treeitem]")?.focus()
  else if (event.key === "Enter" || event.key === " ") choose(item.dataset.path)
  else return
  event.preventDefault()
})
$("streams").addEventListener("click", (event) => {
  const item = event.target.closest("[role=treeitem]")
  if (item) choose(item.dataset.path)
})
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && event.target.tagName !== "INPUT") {
    event.preventDefault()
    $("filter").focus()
  }
})
$("filter").addEventListener("input", draw)
$("filter").addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown" || event.key === "Enter") visible()[0]?.focus()
})
$("more").addEventListener("click", () => load(after).catch(report))

async function watch() {
  for (let pause = WAIT_FIRST_MS; ; pause = Math.min(pause * 2, WAIT_LONGEST_MS)) {
    try {
      const answer = await ask("/page/events")
      await load()
      $("state").textContent = "Live"
      pause = WAIT_FIRST_MS
      for await (const event of events(answer)) changed(JSON.parse(event.data))
      $("state").textContent = "Connecting again"
    } catch (error) {
      report(error)
      if (!$("access").hidden) return // the form begins again
    }
    await wait(pause)
  }
}

function changed(news) {
  if (news.again) return load().catch(report)
  for (const [path, stream] of Object.entries(news.streams)) {
    if (stream === null) streams.delete(path)
    else streams.set(path, { ...stream, moved: true })
  }
  draw()
  if (chosen in news.streams) facts(chosen)
}

const report = (error) => ($("state").textContent = error.message)

$("access").addEventListener("submit", (event) => {
  event.preventDefault()
  token = $("token").value
  sessionStorage.setItem("token", token)
  $("access").hidden = true
  watch()
})

// One stream

function choose(path) {
  chosen = path
  for (const item of visible()) item.ariaSelected = String(item.dataset.path === path)
  history.replaceState(null, "", `#${encodeURIComponent(path)}`)
  $("name").textContent = path
  document.title = `${path} - Streams`
  $("hint").hidden = true
  $("heading").hidden = false
  $("messages").replaceChildren()
  facts(path)
  following?.abort()
  following = new AbortController()
  follow(path, following.signal)
}

async function facts(path) {
  try {
    const answer = await ask(`/page/stream?path=${encodeURIComponent(path)}`)
    if (path !== chosen) return
    if (!answer.ok) return $("facts").replaceChildren(text("dt", "gone"), text("dd", "deleted or expired"))
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
    $("facts").replaceChildren(...known.flatMap(([name, value]) => [text("dt", name), text("dd", value)]))
    $("producers").hidden = stream.producers.length === 0
    const rows = stream.producers.map(({ id, epoch, seq }) => {
      const row = document.createElement("tr")
      row.append(...[id, epoch, seq].map((value) => text("td", value)))
      return row
    })
    $("producers").tBodies[0].replaceChildren(...rows)
  } catch (error) {
    report(error)
  }
}

// Servers give out no offsets in between, so what is long is read from its beginning, and only its end is kept.
async function follow(path, signal) {
  let offset = "-1"
  let type = null
  for (let pause = WAIT_FIRST_MS; !signal.aborted; pause = Math.min(pause * 2, WAIT_LONGEST_MS)) {
    try {
      type ??= (await ask(urlOf(path), { method: "HEAD", signal })).headers.get("content-type") ?? ""
      const answer = await ask(`${urlOf(path)}?live=sse&offset=${encodeURIComponent(offset)}`, { signal })
      if (answer.status === 404 || answer.status === 410) return note("deleted")
      if (!answer.ok) throw new Error(`The server answers ${answer.status}`)
      const binary = answer.headers.get("stream-sse-data-encoding") === "base64"
      let data = []
      for await (const event of events(answer)) {
        if (signal.aborted) return
        if (event.kind === "data") data.push(event.data)
        if (event.kind !== "control") continue
        const control = JSON.parse(event.data)
        for (const part of data) show(part, binary, type)
        data = []
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

function show(data, binary, type) {
  const list = $("messages")
  const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40
  const lines = []
  if (binary) lines.push(atob(data.replaceAll("\n", "")).replace(/[^\x20-\x7e\n]/g, "·"))
  else if (type.split(";")[0].trim().toLowerCase() === "application/json") lines.push(...elements(data))
  else lines.push(...data.split("\n"))
  list.append(...lines.slice(-SHOWN_MAX).map((line) => text("li", line)))
  while (list.childElementCount > SHOWN_MAX) list.firstElementChild.remove()
  if (atEnd) list.scrollTop = list.scrollHeight
}

// The elements of a JSON array as they are written: parsing would change large numbers.
function elements(array) {
  const found = []
  let depth = 0
  let start = 1
  let quoted = false
  for (let place = 0; place < array.length; place++) {
    const sign = array[place]
    if (quoted) {
      if (sign === "\\") place++
      else if (sign === '"') quoted = false
    } else if (sign === '"') quoted = true
    else if (sign === "[" || sign === "{") depth++
    else if (sign === "]" || sign === "}") depth--
    if (!quoted && ((sign === "," && depth === 1) || (depth === 0 && sign === "]"))) {
      found.push(array.slice(start, place).trim())
      start = place + 1
    }
  }
  return found.filter((element) => element !== "")
}

function note(content) {
  $("messages").append(text("li", content, "note"))
}

watch()
if (location.hash.length > 1) choose(decodeURIComponent(location.hash.slice(1)))
