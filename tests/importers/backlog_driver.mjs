// Drives one store of npm @backloghq/opslog: a JSON command per line on stdin, {"result"} or {"error"} per line on stdout.
// Usage: node backlog_driver.mjs <the package's dist/index.js>
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const { Store } = await import(pathToFileURL(process.argv[2]));
const store = new Store();

const commands = {
  open: (directory, options) => store.open(directory, options),
  set: (id, document) => store.set(id, document),
  delete: (id) => store.delete(id),
  batch: (ops) =>
    store.batch(() => {
      for (const [id, document] of ops) {
        if (document === null) store.delete(id);
        else store.set(id, document);
      }
    }),
  undo: () => store.undo(),
  compact: () => store.compact(),
  refresh: () => store.refresh(),
  archive: (ids, period) => store.archive((_, id) => ids.includes(id), period),
  loadArchive: async (period) => Object.fromEntries(await store.loadArchive(period)),
  state: () => Object.fromEntries(store.entries()),
  close: () => store.close(),
  sorted: (names) => names.sort((a, b) => a.localeCompare(b)),
};

for await (const line of createInterface({ input: process.stdin })) {
  const [command, ...options] = JSON.parse(line);
  try {
    const result = await commands[command](...options);
    console.log(JSON.stringify({ result: result ?? null }));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error) }));
  }
}
