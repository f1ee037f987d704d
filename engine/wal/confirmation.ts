/**
 * Decides what may be confirmed to Postgres, and confirms it. `DurableEnd` is the rule (docs/rules.md, rule 7): the exact end of the
 * last transaction whose every message is durable. `Confirmer` paces the act: saved first, then sent; it only grows.
 */
import type { Lsn } from '../lsn.ts'

/**
 * Appends are numbered and settle in order, so each transaction end needs one number: the append that holds its last
 * message. Ends wait here until that append is durable; of those that wait for the same one only the highest is kept.
 */
export class DurableEnd {
  #lsn: Lsn
  #durable = 0
  readonly #waiting: { append: number; end: Lsn }[] = []

  constructor(start: Lsn) {
    this.#lsn = start
  }

  get lsn(): Lsn {
    return this.#lsn
  }

  /** A transaction ended at `end`; everything of it is in appends up to number `append` (0: it left nothing to append). */
  committed(end: Lsn, append: number): void {
    if (append <= this.#durable) return this.#grow(end)
    const last = this.#waiting.at(-1)
    if (last?.append === append) last.end = end
    else this.#waiting.push({ append, end })
  }

  /** Append number `append` and all before it are durable. */
  durable(append: number): void {
    this.#durable = append
    for (let [next] = this.#waiting; next && next.append <= append; [next] = this.#waiting) {
      this.#grow(next.end)
      this.#waiting.shift()
    }
  }

  /** Nothing is pending and the server has sent everything below `lsn`. */
  idle(lsn: Lsn): void {
    this.#grow(lsn)
  }

  #grow(lsn: Lsn): void {
    if (lsn > this.#lsn) this.#lsn = lsn // what comes again after a crash of Postgres ends below what was confirmed
  }
}

type ConfirmerOptions = Readonly<{
  start: Lsn
  /** makes the LSN durable in the state database, fenced by the term, and then whatever each memory keeps of it */
  save: (lsn: Lsn) => Promise<void>
  /** tells the server, once saved */
  send: () => void
  /** a save failed: the run has to end */
  failed: (error: unknown) => void
  /** under load, one save at most in this time */
  everyMs: number
  /** while only unwanted writes move the log, at most one save in this time or for each `idleBytes`: our own saves may be among them */
  idleEveryMs: number
  idleBytes: number
}>

/** Confirms what may be confirmed, at its pace. */
export class Confirmer {
  readonly #options: ConfirmerOptions
  #target: Lsn
  #confirmed: Lsn
  #saving: Promise<void> | undefined
  #timer: NodeJS.Timeout | undefined
  /** whether what waits is worth a save soon, and whether the running timer is a soon one */
  #isNear = false
  #isTimerNear = false
  #savedAt = -Infinity
  #stopped = false

  constructor(options: ConfirmerOptions) {
    this.#options = options
    this.#target = options.start
    this.#confirmed = options.start
  }

  /** Saved, and with the next status sent. */
  get confirmed(): Lsn {
    return this.#confirmed
  }

  /** @param loaded whether messages became durable; otherwise the log merely moved on */
  advance(lsn: Lsn, loaded: boolean): void {
    if (lsn <= this.#target || this.#stopped) return
    this.#target = lsn
    if (loaded || lsn - this.#confirmed >= BigInt(this.#options.idleBytes)) this.#isNear = true
    this.#schedule()
  }

  /** Saves and sends what is due, and then nothing any more. */
  async finish(): Promise<void> {
    await this.#saving
    if (!this.#stopped && this.#target > this.#confirmed) await this.#save()
    this.stop()
  }

  stop(): void {
    this.#stopped = true
    clearTimeout(this.#timer)
  }

  #schedule(): void {
    if (this.#stopped || this.#saving || this.#target <= this.#confirmed) return
    if (this.#timer && (this.#isTimerNear || !this.#isNear)) return
    clearTimeout(this.#timer)
    this.#isTimerNear = this.#isNear
    const { everyMs, idleEveryMs } = this.#options
    const at = this.#savedAt + (this.#isNear ? everyMs : idleEveryMs)
    this.#timer = setTimeout(() => void this.#save(), Math.max(0, at - performance.now()))
  }

  async #save(): Promise<void> {
    clearTimeout(this.#timer)
    this.#timer = undefined
    if (this.#saving || this.#stopped) return
    this.#isNear = false
    const lsn = this.#target
    this.#saving = this.#options.save(lsn).then(
      () => {
        this.#confirmed = lsn
        this.#savedAt = performance.now()
        this.#options.send()
      },
      (error: unknown) => {
        this.stop()
        this.#options.failed(error)
      },
    )
    await this.#saving
    this.#saving = undefined
    this.#schedule()
  }
}
