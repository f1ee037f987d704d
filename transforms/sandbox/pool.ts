/**
 * Runs functions on batches for everyone in this process. Calls wait here, not in a sandbox, so that functions take turns,
 * and so that it is known what ran when a sandbox had to be ended:
 *
 *   queued ─a thread is free─▶ running in the main sandbox ─answer─▶ done, or queued again for what is left
 *                                │ the sandbox ends
 *                                ▼
 *                              on trial: in a second sandbox of one thread, message by message, function by function;
 *                              if that one ends too, this message fails with FUNCTION_KILLED
 *
 *  I1. Of one function at most all threads but one are in use: a slow one never stands in the way of the others.
 *  I2. A function that was found to have ended a sandbox runs on trial from then on, and is switched off when it was not one message's doing
 *      (strikes.ts).
 *  I3. Code that nobody has saved yet is built and run on trial only.
 *  I4. What waits is bounded by who calls; what comes out of functions by what is held of it already: the rest of a batch is left.
 *  I5. Batches that wait for the same functions go out in one call: what a call costs beside its messages is paid once.
 *  I6. One trial runs at a time, and accounts take turns with theirs: nobody waits for all that another account tries.
 *  I7. A sandbox has as few threads as keep up: one more begins when something has waited a while for those that are there.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { MB } from '../../engine/amounts.ts'
import { EngineError } from '../../engine/errors.ts'
import { BatchOutcome } from './batch-outcome.ts'
import { heldResults } from './held-results.ts'
import { Sandbox, SandboxEnded, type Callable, type Checked, type EndReason, type SandboxSettings } from './sandbox.ts'
import { StrikeBook, type NamedMessage, type Strikes } from './strikes.ts'
import { STATE } from './wire.ts'

/** Messages on their way to functions. */
export type FunctionBatch = Readonly<{
  count: number
  /** `{…}` and MESSAGE_END for each */
  lines: Uint8Array
  lineEnds: Uint32Array
  /** rest of their metadata, JSON */
  tail: string
  /** which message it is; absent: each is one of its own, that nobody can look up */
  named?: (i: number) => NamedMessage | undefined
}>

/** How many threads functions have in a sandbox, and what is told of it. */
export type PoolSettings = SandboxSettings &
  Readonly<{
    /** told once, when a sandbox is there, what the system could not keep from it */
    unconfined?: (lacks: string) => void
  }>

/** The pool as one account has it. Its trials take turns with those of other accounts. */
export type AccountPool = Readonly<{
  /**
   * Runs functions one after the other on messages; each sees what the one before it kept. The outcome may leave some at the end,
   * not the first, when what was said of the others is much: they are asked about when they are taken again.
   * @throws EngineError SANDBOX_UNAVAILABLE, STOPPING: nothing is known of any message
   */
  run: (functions: readonly Callable[], batch: FunctionBatch) => Promise<BatchOutcome>
  /** Runs functions on trial, for code that is being written. @throws EngineError SANDBOX_UNAVAILABLE, STOPPING */
  test: (functions: readonly Callable[], batch: FunctionBatch) => Promise<BatchOutcome>
  /** Builds a function and says what is wrong with it. @throws EngineError SANDBOX_UNAVAILABLE, STOPPING */
  check: (fn: Omit<Callable, 'key'>) => Promise<Checked>
  /** Drops code that is not in use any more. */
  forget: (key: string) => void
}>

type Job = {
  readonly account: string
  readonly functions: readonly Callable[]
  readonly batch: FunctionBatch
  readonly outcome: BatchOutcome
  readonly done: (outcome: BatchOutcome) => void
  readonly failed: (error: unknown) => void
  failedStarts: number
  /** when it began to wait, monotonic ms */
  since: number
}
/** The part of a job that goes out in one call. */
type Share = Readonly<{ job: Job; from: number; count: number }>

/** Messages of one call, and their bytes unless it has one message. */
const MAX_CALL = 2_000
const MAX_CALL_BYTES = 512 * 1024
/** Bytes that an answer may have for each function; one message more may stand behind them. */
const MAX_ANSWER_BYTES = 1024 * 1024
/** A batch on trial gives way to others after this. */
const TRIAL_SLICE_MS = 250
const TRIAL_IDLE_MS = 10 * 60_000
const MAX_FAILED_STARTS = 3
const RESTART_MS = 500
/** So long something waits for threads that are busy before there is one more. */
const GROW_AFTER_MS = 10
/** Of its cap: above it a sandbox is replaced by a fresh one as soon as that is ready. */
const WORN = 0.75

/** Runs the functions of all accounts. */
export class FunctionPool {
  readonly #settings: PoolSettings
  readonly #queue: Job[] = []
  /** calls that each function has in the main sandbox */
  readonly #calls = new Map<string, number>()
  readonly #strikes = new StrikeBook()
  #unnamed = 0
  #main: { sandbox: Sandbox; calls: number; isWorn: boolean } | undefined
  #trial: Sandbox | undefined
  /** trials that wait, by account, in the order of the accounts' turns; of the first account, one runs */
  readonly #trials = new Map<string, (() => Promise<unknown>)[]>()
  #trialIdle: NodeJS.Timeout | undefined
  #growing: NodeJS.Timeout | undefined
  #stopped = false
  #isLackTold = false

  constructor(settings: PoolSettings) {
    this.#settings = settings
  }

  /** Starts the sandbox before it is needed. */
  warm(): void {
    if (!this.#stopped) this.#main ??= this.#newMain()
  }

  /** Gives the pool as an account has it. @param account its id */
  of(account: string): AccountPool {
    return {
      run: (functions, batch) => this.#run(account, functions, batch),
      test: (functions, batch) => this.#test(account, functions, batch),
      check: (fn) => this.#check(account, fn),
      forget: (key) => this.forget(key),
    }
  }

  /** Tells at which messages a function ended a sandbox. @param key of the function as it is now: another text begins anew */
  strikes(key: string): Strikes | undefined {
    return this.#strikes.of(key)
  }

  /** Drops code that is not in use any more. */
  forget(key: string): void {
    this.#strikes.forget(key)
    this.#main?.sandbox.forget(key)
    this.#trial?.forget(key)
  }

  /** The process ids of the sandboxes that run. */
  get pids(): number[] {
    return [this.#main?.sandbox, this.#trial].flatMap((sandbox) => (sandbox?.pid === undefined || sandbox.isGone ? [] : [sandbox.pid]))
  }

  async stop(): Promise<void> {
    this.#stopped = true
    clearTimeout(this.#trialIdle)
    clearTimeout(this.#growing)
    for (const { failed } of this.#queue.splice(0)) failed(stopping())
    await Promise.all([this.#main?.sandbox.stop(), this.#trial?.stop()])
  }

  #run(account: string, functions: readonly Callable[], batch: FunctionBatch): Promise<BatchOutcome> {
    const outcome = new BatchOutcome(functions, batch.count)
    return new Promise((done, failed) => {
      if (this.#stopped) return failed(stopping())
      if (outcome.isDone) return done(outcome)
      const job: Job = { account, functions, batch, outcome, done, failed, failedStarts: 0, since: 0 }
      if (functions.some(({ key }) => this.#strikes.of(key))) return void this.#try(job)
      this.#enqueue(job)
      this.#pump()
    })
  }

  // ── the main sandbox ──────────────────────────────────────────────────────────────────────────────

  #newMain(): { sandbox: Sandbox; calls: number; isWorn: boolean } {
    const sandbox = new Sandbox({ ...this.#settings, threadReady: () => this.#pump() })
    sandbox.ready.then(
      () => this.#tellUnconfined(sandbox.lacks),
      () => undefined,
    )
    return { sandbox, calls: 0, isWorn: false }
  }

  #tellUnconfined(lacks: string): void {
    if (lacks !== '' && !this.#isLackTold) this.#settings.unconfined?.(lacks)
    this.#isLackTold = true
  }

  #enqueue(job: Job): void {
    job.since = performance.now()
    this.#queue.push(job)
  }

  /** Sends out what may go now. */
  #pump(): void {
    if (this.#queue.length === 0 || this.#stopped) return
    if (!this.#main || this.#main.sandbox.isGone) this.#main = this.#newMain()
    const main = this.#main
    const { threads } = this.#settings
    const most = Math.max(1, threads - 1)
    for (;;) {
      const at = this.#queue.findIndex(({ functions }) => functions.every(({ key }) => (this.#calls.get(key) ?? 0) < most))
      if (at < 0) return
      if (main.calls >= Math.max(1, main.sandbox.threads)) break // the first call waits for the first thread
      void this.#send(this.#takeShares(at), main)
    }
    if (!main.sandbox.canGrow) return
    this.#growing ??= setTimeout(() => {
      this.#growing = undefined
      const waited = performance.now() - (this.#queue[0]?.since ?? Infinity)
      if (waited >= GROW_AFTER_MS) main.sandbox.grow()
      this.#pump()
    }, GROW_AFTER_MS)
  }

  /** Takes a job out of the queue, and all of those behind it that fit whole into the same call. */
  #takeShares(at: number): readonly Share[] {
    const [job] = this.#queue.splice(at, 1)
    if (!job) return []
    const from = job.outcome.done
    let count = callFrom(job.batch, from)
    const shares: Share[] = [{ job, from, count }]
    if (from + count < job.batch.count) return shares // more of it is to come first
    let bytes = bytesOf(job.batch, from)
    for (const other of this.#queue.slice(at)) {
      if (!isSameCall(job, other)) continue
      const start = other.outcome.done
      const more = other.batch.count - start
      const moreBytes = bytesOf(other.batch, start)
      if (count + more > MAX_CALL || bytes + moreBytes > MAX_CALL_BYTES) return shares
      this.#queue.splice(this.#queue.indexOf(other), 1)
      shares.push({ job: other, from: start, count: more })
      count += more
      bytes += moreBytes
    }
    return shares
  }

  async #send(shares: readonly Share[], main: { sandbox: Sandbox; calls: number; isWorn: boolean }): Promise<void> {
    const [first] = shares
    if (!first) return
    const { functions, batch } = first.job
    main.calls++
    for (const { key } of functions) this.#calls.set(key, (this.#calls.get(key) ?? 0) + 1)
    let ended: unknown
    try {
      await main.sandbox.ready
      const count = shares.reduce((sum, share) => sum + share.count, 0)
      const lines = shares.map((share) => linesOf(share.job.batch, share.from, share.count))
      const answer = await main.sandbox.run({ functions, count, lines, tail: batch.tail, maxBytes: roomOf(shares) })
      heldResults.add(answer.body.buffer)
      let at = 0
      for (const share of shares) {
        const { outcome } = share.job
        outcome.add(answer, { asked: count, at, count: share.count, firstStep: 0 })
        outcome.done += Math.max(0, Math.min(share.count, answer.header.done - at))
        endWhenFull(outcome)
        at += share.count
      }
      if (answer.header.resident > this.#settings.memoryMb * MB * WORN) void this.#replace(main)
    } catch (error) {
      ended = error
    } finally {
      main.calls--
      for (const { key } of functions) {
        const left = (this.#calls.get(key) ?? 1) - 1
        if (left === 0) this.#calls.delete(key)
        else this.#calls.set(key, left)
      }
    }
    for (const { job } of shares) {
      if (ended) this.#afterEnd(job, ended)
      else if (job.outcome.isDone) job.done(job.outcome)
      else this.#enqueue(job)
    }
    this.#pump()
  }

  #afterEnd(job: Job, ended: unknown): void {
    if (this.#stopped || !(ended instanceof SandboxEnded)) return job.failed(this.#stopped ? stopping() : ended)
    if (ended.reason !== 'not started') return this.#try(job)
    if (!ended.isLoosened && ++job.failedStarts >= MAX_FAILED_STARTS) return job.failed(unavailable(ended))
    void delay(RESTART_MS, undefined, { ref: false }).then(() => {
      if (this.#stopped) return job.failed(stopping())
      this.#enqueue(job)
      this.#pump()
    })
  }

  /** Replaces a sandbox whose memory is nearly used up, by nobody's fault: a fresh one takes over, and it ends with its last call. */
  async #replace(worn: { sandbox: Sandbox; calls: number; isWorn: boolean }): Promise<void> {
    if (worn.isWorn || this.#main !== worn) return
    worn.isWorn = true
    const fresh = this.#newMain()
    try {
      await fresh.sandbox.ready
    } catch {
      worn.isWorn = false // the next answer tries again
      return
    }
    if (this.#stopped || this.#main !== worn) return void fresh.sandbox.stop() // it ended meanwhile, and has a follower already
    this.#main = fresh
    while (worn.calls > 0 && !worn.sandbox.isGone) await delay(10, undefined, { ref: false })
    await worn.sandbox.stop()
  }

  // ── on trial ──────────────────────────────────────────────────────────────────────────────────────

  #test(account: string, functions: readonly Callable[], batch: FunctionBatch): Promise<BatchOutcome> {
    const outcome = new BatchOutcome(functions, batch.count)
    return new Promise((done, failed) => this.#try({ account, functions, batch, outcome, done, failed, failedStarts: 0, since: 0 }))
  }

  #check(account: string, fn: Omit<Callable, 'key'>): Promise<Checked> {
    return this.#inTrial(account, async (sandbox) => {
      try {
        return await sandbox.check(fn)
      } catch (error) {
        if (!(error instanceof SandboxEnded) || error.reason === 'stopped' || error.reason === 'not started') throw error
        return { failure: { message: `building it ended the sandbox: ${END_WORDS[error.reason]}` } }
      }
    })
  }

  #try(job: Job): void {
    const { account, outcome, done, failed } = job
    this.#inTrial(account, async (sandbox) => {
      const until = performance.now() + TRIAL_SLICE_MS
      while (!outcome.isDone && performance.now() < until && !sandbox.isGone) await this.#tryOne(job, sandbox)
    }).then(
      () => (outcome.isDone ? done(outcome) : this.#try(job)),
      (error: unknown) => failed(error),
    )
  }

  async #tryOne({ functions, batch, outcome }: Job, sandbox: Sandbox): Promise<void> {
    const i = outcome.done
    const lines = linesOf(batch, i, 1)
    const message = batch.named?.(i) ?? unnamed(++this.#unnamed)
    for (const [step, fn] of functions.entries()) {
      if (outcome.states[i] !== STATE.kept) break
      const strikes = this.strikes(fn.key)
      if (strikes?.isOff) {
        const text = `it is switched off: it ended its sandbox (${END_WORDS[strikes.reason]}) at ${strikes.messages.join('; ')}`
        outcome.fail(i, step, { code: 'FUNCTION_OFF', text })
        break
      }
      try {
        const answer = await sandbox.run({ functions: [fn], count: 1, lines: [lines], tail: batch.tail, maxBytes: 0 })
        heldResults.add(answer.body.buffer)
        outcome.add(answer, { asked: 1, at: 0, count: 1, firstStep: step })
        if (!outcome.failures.has(i)) this.#strikes.passed(fn.key, message)
      } catch (error) {
        if (!(error instanceof SandboxEnded) || error.reason === 'stopped') throw error
        this.#strikes.ended(fn.key, message, error.reason)
        outcome.fail(i, step, { code: 'FUNCTION_KILLED', text: `its sandbox was ended at ${message.text}: ${END_WORDS[error.reason]}` })
      }
    }
    outcome.done++
    endWhenFull(outcome)
  }

  /** @throws EngineError SANDBOX_UNAVAILABLE, STOPPING */
  #inTrial<T>(account: string, work: (sandbox: Sandbox) => Promise<T>): Promise<T> {
    return new Promise((resolve) => {
      const trial = () => {
        const result = this.#withTrialSandbox(work)
        resolve(result)
        return result.catch(() => undefined)
      }
      const isAtWork = this.#trials.size > 0
      const waiting = this.#trials.get(account)
      if (waiting) waiting.push(trial)
      else this.#trials.set(account, [trial])
      if (!isAtWork) void this.#takeTurns()
    })
  }

  /** Runs the trials that wait. An account that had its turn goes behind the others: whoever iterates over a Map comes to what is set again meanwhile. */
  async #takeTurns(): Promise<void> {
    for (const [account, waiting] of this.#trials) {
      await waiting.shift()?.()
      this.#trials.delete(account)
      if (waiting.length > 0) this.#trials.set(account, waiting)
    }
  }

  async #withTrialSandbox<T>(work: (sandbox: Sandbox) => Promise<T>): Promise<T> {
    clearTimeout(this.#trialIdle)
    try {
      for (let starts = 1; ;) {
        if (this.#stopped) throw stopping()
        if (!this.#trial || this.#trial.isGone) this.#trial = new Sandbox({ ...this.#settings, threads: 1, builds: true })
        try {
          await this.#trial.ready
          break
        } catch (error) {
          if (!(error instanceof SandboxEnded && error.isLoosened) && starts++ === MAX_FAILED_STARTS) throw error
        }
      }
      return await work(this.#trial)
    } catch (error) {
      if (!(error instanceof SandboxEnded)) throw error
      throw this.#stopped ? stopping() : unavailable(error)
    } finally {
      this.#trialIdle = setTimeout(() => void this.#trial?.stop(), TRIAL_IDLE_MS)
      this.#trialIdle.unref()
    }
  }
}

const END_WORDS: Readonly<Record<EndReason, string>> = {
  time: 'it ran on past its time limit',
  memory: 'it took more memory than a sandbox has',
  crash: 'the sandbox crashed',
  'not started': 'the sandbox did not start',
  stopped: 'the service was stopping',
}

/** Counts the messages that go out together, from one on. */
function callFrom({ count, lineEnds }: FunctionBatch, from: number): number {
  const start = lineEnds[from - 1] ?? 0
  let end = from + 1
  while (end < count && end - from < MAX_CALL && (lineEnds[end] ?? Infinity) - start <= MAX_CALL_BYTES) end++
  return end - from
}

/** Counts the bytes of all messages from one on. */
const bytesOf = ({ lines, lineEnds }: FunctionBatch, from: number): number => lines.length - (lineEnds[from - 1] ?? 0)

/** Counts the bytes that an answer about these may have. */
const roomOf = (shares: readonly Share[]): number =>
  Math.min(MAX_ANSWER_BYTES, ...shares.map(({ job: { outcome } }) => Math.max(0, heldResults.room - outcome.bytes)))

function endWhenFull(outcome: BatchOutcome): void {
  if (outcome.bytes > 0 && outcome.bytes >= heldResults.room) outcome.leaveRest()
}

const isSameCall = (one: Job, other: Job): boolean =>
  one.batch.tail === other.batch.tail &&
  one.functions.length === other.functions.length &&
  one.functions.every(({ key }, i) => key === other.functions[i]?.key)

const linesOf = ({ lines, lineEnds }: FunctionBatch, from: number, count: number): Uint8Array =>
  lines.subarray(lineEnds[from - 1] ?? 0, lineEnds[from + count - 1])

const unnamed = (n: number): NamedMessage => ({ text: `message ${n} of those on trial`, group: `trial ${n}` })

const stopping = () => new EngineError('STOPPING', 'functions are stopping')
const unavailable = ({ words }: SandboxEnded) =>
  new EngineError('SANDBOX_UNAVAILABLE', `the sandbox for functions does not start${words ? `: ${words}` : ''}`)
