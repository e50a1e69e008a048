// The reference server of the protocol, from npm: node node_streams.mjs <its package> <options as JSON>.
// Prints its address, and runs until standard input ends.
const [place, options] = process.argv.slice(2)
const { DurableStreamTestServer } = await import(place + "/dist/index.js")
const server = new DurableStreamTestServer({ port: 0, ...JSON.parse(options) })
console.log(await server.start())
process.stdin.resume()
process.stdin.on("end", () => process.exit(0))
