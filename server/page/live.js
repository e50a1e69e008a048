// Changes on the server, which the server pushes: the page has one connection for them, which is opened again after a
// restart.

import { ask, events, wait, Refusal, WAIT_FIRST_MS, WAIT_LONGEST_MS } from "./ask.js"

// Runs until the server refuses. Calls `connected` before the first event, and each time that events may have been
// missed: then everything on the page has to be read again.
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

// Calls a function that loads something: at once, and once more if `again` was called meanwhile. Calls never overlap,
// and there is a pause between them, so that a busy store does not make the page busy.
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
            // The longer a call takes, the longer is the pause after it.
            await wait(Math.max(this.pauseMs, performance.now() - began))
        }
        this.isRunning = false
    }

    close() {
        this.isClosed = true
    }
}
