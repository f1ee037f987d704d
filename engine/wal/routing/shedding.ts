/**
 * Knows the sinks whose messages are dropped at the moment: they are full, and say `discard_on_full`. Their changes are not
 * appended; what counts is only that, and how many.
 *
 * Why at the source, and not where the log is read: new messages are the ones to go, as docs/how-it-works.md says, and a log is freed from
 * its oldest end only. Messages dropped by the reader would lie there behind those that are kept, and the bound, which is
 * for the disk, would not hold. Nor by a routing version, which would make it a function of position: a mark takes effect at
 * the end of the write-ahead log, and a source that is a hundred gigabytes behind would append all of that before.
 *
 * So whether a message is dropped depends on the moment, and two runs over the same log may append different messages of
 * such a sink (the one exception to docs/rules.md, rule 6). That is harmless, because a reader accepts only what lies above the greatest
 * position it has accepted (docs/rules.md, rule 16):
 *  - dropped by one run, appended by a later one: accepted if the sink has nothing above it yet, and then in its place;
 *    otherwise it stays dropped, as was decided;
 *  - appended by one run, dropped by a later one: it was accepted where it first stood, or comes below and is a repetition;
 *  - a run that drops appends everything else in order, and after a failed append nothing. So what is missing was dropped
 *    by some run while the sink was full, and what is there is in order.
 * Closing packs and rows of backfills are never dropped.
 */
export class Shedding {
  readonly #counts = new Map<string, number>()
  readonly #dropping = new Set<string>()

  /** Whether any sink drops now: nothing else costs a message something. */
  get active(): boolean {
    return this.#dropping.size > 0
  }

  begin(sinkId: string): void {
    this.#dropping.add(sinkId)
  }

  end(sinkId: string): void {
    this.#dropping.delete(sinkId)
  }

  /** Whether messages of the sink are dropped now. */
  isDropping(sinkId: string): boolean {
    return this.#dropping.has(sinkId)
  }

  /** Whether this message of the sink is dropped; if so it is counted. */
  drops(sinkId: string): boolean {
    if (!this.#dropping.has(sinkId)) return false
    this.#counts.set(sinkId, (this.#counts.get(sinkId) ?? 0) + 1)
    return true
  }

  /** Counts how many messages of a sink have been dropped; the number never goes back. */
  dropped(sinkId: string): number {
    return this.#counts.get(sinkId) ?? 0
  }
}
