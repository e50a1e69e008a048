// The address names the view: `#/store/NAME/VIEW/ID?name=value`, `#/stream/PATH`.

const VIEWS = ["documents", "document", "commits", "agents", "conflicts", "archives", "figures"]

export function placeOf(hash) {
    const [path, query = ""] = hash.replace(/^#/, "").split("?", 2)
    const parts = path.split("/").map(decoded)
    if (parts[0] !== "" || parts.length < 3) return null
    if (parts[1] === "stream") return { kind: "stream", path: parts.slice(2).join("/") }
    if (parts[1] !== "store") return null
    const view = VIEWS.includes(parts[3]) ? parts[3] : "documents"
    return { kind: "store", name: parts[2], view, id: parts[4] ?? null, given: new URLSearchParams(query) }
}

export const streamPlace = (path) => `#/stream/${encodeURIComponent(path)}`

export function storePlace(name, view = "documents", id = null, given = null) {
    const query = new URLSearchParams()
    for (const [key, value] of Object.entries(given ?? {})) if (value) query.set(key, value)
    const asked = query.toString()
    const rest = id === null ? "" : `/${encodeURIComponent(id)}`
    return `#/store/${encodeURIComponent(name)}/${view}${rest}${asked && `?${asked}`}`
}

function decoded(part) {
    try {
        return decodeURIComponent(part)
    } catch {
        return part
    }
}
