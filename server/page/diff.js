// Differences between two documents, line by line.

// How many pairs of lines are compared at most. If there are more, everything between the equal start and end counts as
// changed.
const PAIRS_MAX = 4_000_000
// Lines of context around a change. Longer runs of equal lines are folded.
const CONTEXT = 3

// Whether a line ends in a comma depends on the line after it, so a comma is no difference.
const keyOf = (line) =>
    line
        .map(([, text]) => text)
        .join("")
        .replace(/,$/, "")

// The lines of both in order, as { kind: "same" | "added" | "removed", line }.
export function differences(before, after) {
    const old = before.map(keyOf)
    const now = after.map(keyOf)
    let start = 0
    while (start < old.length && start < now.length && old[start] === now[start]) start++
    let oldEnd = old.length
    let nowEnd = now.length
    while (oldEnd > start && nowEnd > start && old[oldEnd - 1] === now[nowEnd - 1]) {
        oldEnd--
        nowEnd--
    }
    return [
        ...after.slice(0, start).map((line) => ({ kind: "same", line })),
        ...between(before, after, old, now, start, oldEnd, nowEnd),
        ...after.slice(nowEnd).map((line) => ({ kind: "same", line })),
    ]
}

// Compares by the longest common subsequence.
function between(before, after, old, now, start, oldEnd, nowEnd) {
    const height = oldEnd - start
    const width = nowEnd - start
    if (height * width > PAIRS_MAX || !height || !width)
        return [
            ...before.slice(start, oldEnd).map((line) => ({ kind: "removed", line })),
            ...after.slice(start, nowEnd).map((line) => ({ kind: "added", line })),
        ]
    const lengths = Array.from({ length: height + 1 }, () => new Uint32Array(width + 1))
    for (let y = height - 1; y >= 0; y--)
        for (let x = width - 1; x >= 0; x--)
            lengths[y][x] =
                old[start + y] === now[start + x]
                    ? lengths[y + 1][x + 1] + 1
                    : Math.max(lengths[y + 1][x], lengths[y][x + 1])
    const found = []
    let y = 0
    let x = 0
    while (y < height || x < width) {
        if (y < height && x < width && old[start + y] === now[start + x]) {
            found.push({ kind: "same", line: after[start + x] })
            y++
            x++
        } else if (y < height && (x === width || lengths[y + 1][x] >= lengths[y][x + 1])) {
            found.push({ kind: "removed", line: before[start + y++] })
        } else found.push({ kind: "added", line: after[start + x++] })
    }
    return found
}

// The same, with long runs of equal lines as { kind: "folded", lines }.
export function folded(changes) {
    const isNear = new Array(changes.length).fill(false)
    changes.forEach(({ kind }, number) => {
        if (kind === "same") return
        for (let at = number - CONTEXT; at <= number + CONTEXT; at++) isNear[at] = true
    })
    const found = []
    changes.forEach((change, number) => {
        if (isNear[number]) found.push(change)
        else if (found.at(-1)?.kind === "folded") found.at(-1).lines.push(change.line)
        else found.push({ kind: "folded", lines: [change.line] })
    })
    return found
}
