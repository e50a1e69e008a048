// Works on a store of npm @backloghq/opslog for benchmarks.peers: a JSON command per line on stdin, what it measured per
// line on stdout (seconds, unless said otherwise). Usage: node npm_peer.mjs <folder of node_modules>
import { open, readdir } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { performance } from "node:perf_hooks";
import { pathToFileURL } from "node:url";

const { Store } = await import(pathToFileURL(`${process.argv[2]}/@backloghq/opslog/dist/index.js`));

// It would compact every 100 sets and when it is closed; here that is a workload of its own.
const never = { checkpointThreshold: 1e9, checkpointOnClose: false };
let store; // the one that commands work on
let opened = []; // per agent one
const folderOf = new Map();

const document = (number, revision = 0) => ({
  title: `Task ${number}`,
  revision: String(revision).padStart(6, "0"),
  status: "active",
  assignee: `agent-${number % 7}`,
  priority: number % 5,
  tags: ["build", "api", "storage"],
  notes: "what a person would write into one line of a task",
});

async function seconds(work) {
  const start = performance.now();
  await work();
  return (performance.now() - start) / 1000;
}

const commands = {
  open: (folder, options) => {
    store = new Store();
    opened.push(store);
    folderOf.set(store, folder);
    return seconds(() => store.open(folder, { ...never, ...options }));
  },
  set: (documents) =>
    seconds(async () => {
      for (const [id, document] of documents) await store.set(id, document);
      await store.flush();
    }),
  setCopies: (documents) =>
    seconds(async () => {
      for (const [id, document] of documents) await store.set(id, structuredClone(document));
      await store.flush();
    }),
  setAtOnce: (documents) => seconds(() => Promise.all(documents.map(([id, document]) => store.set(id, document)))),
  batches: (batches) =>
    seconds(async () => {
      for (const documents of batches) await store.batch(() => documents.forEach((one) => store.set(...one)));
    }),
  get: (ids) =>
    seconds(() => {
      for (const id of ids) if (store.get(id) === undefined) throw new Error(id);
    }),
  // A field of what was found is read, so that nothing of the work can be left out.
  getTouched: (ids) =>
    seconds(() => {
      let length = 0;
      for (const id of ids) length += store.get(id).title.length;
      if (length < ids.length) throw new Error("empty titles");
    }),
  getCopies: (ids) =>
    seconds(() => {
      let length = 0;
      for (const id of ids) length += structuredClone(store.get(id)).title.length;
      if (length < ids.length) throw new Error("empty titles");
    }),
  scan: () => seconds(() => store.filter((one) => one.priority === 0)),
  fill: (count, ids) =>
    seconds(async () => {
      for (let first = 0; first < count; first += 1000)
        await store.batch(() => {
          for (let number = first; number < Math.min(first + 1000, count); number++)
            store.set(`task-${(number * 7919) % ids}`, document(number));
        });
    }),
  undo: () => seconds(() => store.undo()),
  refresh: () => seconds(() => store.refresh()),
  compact: () => seconds(() => store.compact()),
  // On disk when it returns: every file of the store.
  compactAndSync: () =>
    seconds(async () => {
      await store.compact();
      for (const entry of await readdir(folderOf.get(store), { recursive: true, withFileTypes: true })) {
        if (!entry.isFile()) continue;
        const file = await open(join(entry.parentPath ?? entry.path, entry.name));
        await file.sync();
        await file.close();
      }
    }),
  // Sets that are due every few milliseconds, and how long each took from then on.
  setsBesideCompact: async (interval) => {
    let running = true;
    const took = [];
    const compacting = store.compact().then(() => (running = false));
    for (let number = 0, due = performance.now(); running; number++, due += interval) {
      const early = due - performance.now();
      if (early > 0) await new Promise((resolve) => setTimeout(resolve, early));
      await store.set("beside", document(number));
      took.push((performance.now() - due) / 1000);
    }
    await compacting;
    return took;
  },
  // Another agent's store becomes the one that commands work on; 0 is the first that was opened.
  use: (number) => {
    store = opened[number];
    return 0;
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [command, ...options] = JSON.parse(line);
  console.log(JSON.stringify(await commands[command](...options)));
}
process.exit(0);
