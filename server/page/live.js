// What happens on the server, pushed: one connection for the page, which comes back after a restart.

import { ask, events, wait, Refusal, WAIT_FIRST_MS, WAIT_LONGEST_MS } from "./ask.js"

// Until it was refused. `connected` is called before the first event and after each time that some may have been missed:
// whatever is shown has to be asked for again.
export async function watch({ connected, changed, lost }) {
    let pause = WAIT_FIRST_MS
    for (;;) {
        try {
            const answer = await ask("/page/events")
            if (!answer.ok) throw new Refusal(answer.status, null, `the server answers ${answer.status}`)
            await connected()
            pause = WAIT_FIRST_MS
            for await (const event of events(answer)) changed(JSON.parse(event.data))
            lost(null)
        } catch (error) {
            lost(error)
            if (error.status === 401) return
        }
        await wait(pause)
        pause = Math.min(pause * 2, WAIT_LONGEST_MS)
    }
}

// Calls what loads something: at once, and again after each `again` that came meanwhile; never twice at a time, and
// with a pause in between, so that a busy store makes no busy page.
export class Loading {
    constructor(load, report, pauseMs = 100) {
        this.load = load
        this.report = report
        this.pauseMs = pauseMs
        this.isWanted = false
        this.isRunning = false
        this.isClosed = false
    }

    again() {
        this.isWanted = true
        if (!this.isRunning) this.run()
    }

    async run() {
        this.isRunning = true
        while (this.isWanted && !this.isClosed) {
            this.isWanted = false
            const began = performance.now()
            try {
                await this.load()
            } catch (error) {
                if (!this.isClosed) this.report(error)
            }
            // What is expensive to ask is asked for less often.
            await wait(Math.max(this.pauseMs, performance.now() - began))
        }
        this.isRunning = false
    }

    close() {
        this.isClosed = true
    }
}
