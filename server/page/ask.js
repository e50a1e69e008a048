// Requests: they carry the token, and their errors say what happened.

import { parse, plain } from "./json.js"

let token = sessionStorage.getItem("token") ?? ""
// Called when the server asks for a token, or for another one.
let onRefused = () => {}

export function setToken(given) {
    token = given.trim()
    if (token) sessionStorage.setItem("token", token)
    else sessionStorage.removeItem("token")
}
export const whenRefused = (called) => (onRefused = called)

// An answer that refuses, or says that the server failed. `problem` is its problem document, if it has one.
export class Refusal extends Error {
    constructor(status, problem, message) {
        super(message)
        this.status = status
        this.problem = problem
    }
}

// The characters that a header may hold. With any others `fetch` cannot make a request.
const SENDABLE = /^[\t\x20-\x7e\x80-\xff]*$/

export async function ask(url, { headers = {}, ...options } = {}) {
    if (!SENDABLE.test(token)) {
        onRefused()
        throw new Refusal(401, null, "A token cannot have these characters")
    }
    const all = token ? { Authorization: `Bearer ${token}`, ...headers } : headers
    const answer = await fetch(url, { ...options, headers: all, cache: "no-store" })
    if (answer.status === 401) {
        onRefused()
        throw new Refusal(401, null, token ? "This server does not know this token" : "This server requires a token")
    }
    return answer
}

// The server's answer as an object. Documents in it keep their numbers as written (see json.js).
export async function read(url, options = {}) {
    const answer = await ask(url, options)
    const text = await answer.text()
    if (answer.ok) return plain(parse(text))
    let problem = null
    if (answer.headers.get("content-type")?.includes("problem+json")) problem = JSON.parse(text)
    throw new Refusal(answer.status, problem, problem?.detail ?? (text.trim() || `the server answers ${answer.status}`))
}

export const storeUrl = (name, path = "", given = {}) => {
    const query = new URLSearchParams()
    for (const [key, value] of Object.entries(given))
        for (const each of Array.isArray(value) ? value : [value])
            if (each !== null && each !== undefined && each !== "") query.append(key, each)
    const asked = query.toString()
    return `/v1/store/${encodeURIComponent(name)}${path}${asked && `?${asked}`}`
}

// Server-sent events through fetch, because fetch can send a token and EventSource cannot.
export async function* events(answer) {
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

export const wait = (ms, signal) =>
    new Promise((resolve) => {
        const timer = setTimeout(resolve, ms)
        signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()))
    })

// How long to wait before the next attempt: the first wait, and the longest.
export const WAIT_FIRST_MS = 500
export const WAIT_LONGEST_MS = 5000
