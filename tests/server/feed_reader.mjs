// Follows the feed of a store with the official client of the State Protocol: node feed_reader.mjs <stream> <type>
// For each line of standard input, the txid of a commit, it waits until StreamDB has that commit, and prints as one line of
// JSON what StreamDB and MaterializedState have then. MaterializedState reads on from the offset where it stopped.
import { createInterface } from "node:readline"
import { MaterializedState, createStateSchema, isChangeEvent } from "@durable-streams/state"
import { createStreamDB } from "@durable-streams/state/db"

const [url, type] = process.argv.slice(2)
const KEY = "$id"
console.log = () => {} // StreamDB talks

const anything = { "~standard": { version: 1, vendor: "any", validate: (value) => ({ value }) } }
const state = createStateSchema({ documents: { schema: anything, type, primaryKey: KEY } })

function open() {
  return createStreamDB({ streamOptions: { url, contentType: "application/json" }, state })
}

function documents(db) {
  return Object.fromEntries([...db.collections.documents.state].map(([id, document]) => [id, own(document)]))
}

// Without what StreamDB (_seq) and TanStack DB ($synced and others) add.
function own(document) {
  return Object.fromEntries(Object.entries(document).filter(([name]) => name !== "_seq" && !name.startsWith("$")))
}

let materialized = new MaterializedState()
let offset = "-1"
let restarts = 0

async function materialize() {
  for (;;) {
    const answer = await fetch(`${url}?offset=${offset}`, { cache: "no-store" })
    if (answer.status === 410) {
      materialized = new MaterializedState()
      offset = "-1"
      restarts += 1
      continue
    }
    if (!answer.ok) throw new Error(`${answer.status}: ${await answer.text()}`)
    for (const event of await answer.json()) if (isChangeEvent(event)) materialized.apply(event)
    offset = answer.headers.get("stream-next-offset")
    if (answer.headers.get("stream-up-to-date") === "true") return Object.fromEntries(materialized.getType(type))
  }
}

const follower = open()
await follower.preload()
for await (const txid of createInterface({ input: process.stdin })) {
  await follower.utils.awaitTxId(txid, 60000)
  const late = open()
  await late.preload()
  const found = { follower: documents(follower), late: documents(late), materialized: await materialize(), restarts }
  late.close()
  process.stdout.write(JSON.stringify(found) + "\n")
}
process.exit(0)
