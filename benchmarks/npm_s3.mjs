// Works on one store of npm @backloghq/opslog-s3 for benchmarks.s3: a JSON command per line on stdin, {"result"} per line
// on stdout. Usage: node npm_s3.mjs <folder of node_modules> <bucket> <prefix> <agent>; the server is in AWS_ENDPOINT_URL.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [modules, bucket, prefix, agentId] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(`${modules}/${file}`));
const { Store } = await load("@backloghq/opslog/dist/index.js");
const { S3Backend } = await load("@backloghq/opslog-s3/dist/index.js");
const { S3Client } = createRequire(`${modules}/x.js`)("@aws-sdk/client-s3");

const client = new S3Client({ endpoint: process.env.AWS_ENDPOINT_URL, region: "us-east-1", forcePathStyle: true });
let store;

const commands = {
  open: async (options = {}) => {
    store = new Store();
    await store.open(prefix, { backend: new S3Backend({ bucket, prefix, client }), agentId, ...options });
    return store.count();
  },
  set: async (documents) => {
    for (const [id, document] of documents) await store.set(id, document);
  },
  setAtOnce: async (documents) => {
    await Promise.all(documents.map(([id, document]) => store.set(id, document)));
  },
  refresh: async () => {
    await store.refresh();
    return store.count();
  },
  compact: () => store.compact(),
  close: () => store.close(),
};

for await (const line of createInterface({ input: process.stdin })) {
  const [command, ...options] = JSON.parse(line);
  console.log(JSON.stringify({ result: (await commands[command](...options)) ?? null }));
}
