/**
 * The functions of one sink at work, between the log and whoever delivers. There is one way through it for all sinks:
 *
 *   drops(pack)      when the log is read: what the filter drops is finished before anyone sees it
 *   run(messages)    when messages are to be delivered: enrichment ▸ filter (what passed at reading isn't asked again,
 *                    unless the filter was edited since) ▸ routing ▸ transform; an outcome for each message
 *
 * A filter that looks at the metadata of a sink with enrichment is asked only then, for the row that it may need is in there.
 *
 * What an outcome means for the dispatcher is the caller's: dropped is finished, failed is tried again after a while and
 * its group waits. A tombstone passes every filter: it has nothing but the old key, and a document would stay for ever. So
 * does what was too large to be kept: nobody can tell what it was, and it is put on record.
 * A stage is made anew when its sink or one of its functions is edited; calls under way end with the old.
 */
import { bodyMemory } from '../engine/body-memory.ts'
import { type MessageView, ACTION, MESSAGE_FLAG } from '../engine/log/pack.ts'
import { linesOf, type FunctionMessage } from './function-lines.ts'
import type { Enriched, Enricher } from './enrichment.ts'
import { RouteMemory, type ReadRoute, type RouteFields } from './routes.ts'
import type { BatchOutcome, FunctionFailure, ResultPlace } from './sandbox/batch-outcome.ts'
import { SANDBOX_KINDS, type SandboxKind } from '../engine/state/function-kinds.ts'
import type { AccountPool } from './sandbox/pool.ts'
import type { Callable } from './sandbox/sandbox.ts'
import type { NamedMessage } from './sandbox/strikes.ts'
import { STATE } from './sandbox/wire.ts'
import { placeText } from './sandbox/source-position.ts'

export type { FunctionFailure } from './sandbox/batch-outcome.ts'
export { STATE } from './sandbox/wire.ts'

/** A function as a sink has it. */
export type StageFunction = Callable & Readonly<{ /** false: it never looks at the metadata */ usesMetadata: boolean }>
/** The functions of a sink, by their kind. */
export type StageFunctions = Readonly<Partial<Record<SandboxKind, StageFunction | undefined>>>

/** The functions and limits that a stage is made with. */
export type StageOptions = Readonly<{
  pool: Pick<AccountPool, 'run'>
  functions: StageFunctions
  /** what the sink adds to the metadata of each message, as JSON */
  tail: string
  /** the sink's name, by which people know whose messages they are */
  sinkName?: string
  /**
   * transformed: like any other message. named: the transform is asked what names the document that goes, and where it can't
   * say of an old row, the row's key does. keyed: it isn't asked
   */
  deletes: 'transformed' | 'named' | 'keyed'
  /** true: what functions print, and the words of their failures, may hold rows, and aren't told */
  isSensitive?: boolean
  /** finds the rows that enrich messages; absent: none do */
  enricher?: Pick<Enricher, 'enrich'> | undefined
  /** checks what the routing function says; absent: there is none */
  readRoute?: ReadRoute | undefined
}>

/** What has become of each message of a run. */
export interface StageOutcome {
  /** kept, dropped, failed, or left, which is none of them and goes back to where it was taken from: `STATE` */
  stateOf(i: number): number
  /** of a message that failed */
  failureOf(i: number): FunctionFailure
  /** what the transform made of a message that is kept; undefined: nothing, the default message goes out */
  payloadOf(i: number): Uint8Array | undefined
  /** what `payloadOf` gives, as a place in a larger text: for many a view of each would cost more than its copy */
  payloadAt(i: number): ResultPlace | undefined
  /** what the routing function said of a message that is kept, the same object for the same; undefined: there is none */
  routeOf(i: number): RouteFields | undefined
  /** JSON of the row that enriches it; undefined: there is none */
  enrichmentOf(i: number): Uint8Array | undefined
  /** what functions printed */
  logsOf(i: number): readonly string[]
}

type Decoded = MessageView & Readonly<{ count: number }>

/** Runs the functions of one sink. */
export class FunctionStage {
  readonly #options: StageOptions
  /** by pack: which filter let its messages pass */
  readonly #passed: WeakMap<MessageView, string>

  /** @param former the stage before an edit: what its filter let pass stays passed under the same filter */
  constructor(options: StageOptions, former?: FunctionStage) {
    this.#options = options
    this.#passed = former ? former.#passed : new WeakMap()
  }

  /** Whether there is nothing to do: messages go by without being looked at. */
  get isIdle(): boolean {
    const { functions, enricher } = this.#options
    return !enricher && SANDBOX_KINDS.every((kind) => functions[kind] === undefined)
  }

  /** Whether the sink has a filter. */
  get isFiltering(): boolean {
    return this.#options.functions.filter !== undefined
  }

  /**
   * Asks the filter about all messages of a pack.
   * @returns 1 for each that it drops; undefined: none. What it can't decide is left to `run`, which tells why.
   */
  async drops(pack: Decoded): Promise<Uint8Array | undefined> {
    const { pool, functions, tail } = this.#options
    const { filter } = functions
    if (!filter || pack.count === 0 || (this.#options.enricher && filter.usesMetadata)) return undefined
    const messages = Array.from({ length: pack.count }, (_, place) => ({ view: pack, place }))
    const batch = linesOf(messages, { metadata: filter.usesMetadata })
    let outcome: BatchOutcome
    try {
      outcome = await pool.run([filter], { ...batch, count: pack.count, tail, named: (place) => this.#named({ view: pack, place }) })
    } catch {
      return undefined
    } finally {
      bodyMemory.give(batch.lines)
    }
    if (outcome.failures.size === 0 && !outcome.hasLeft) this.#passed.set(pack, filter.key)
    const { states } = outcome
    const drops = new Uint8Array(pack.count)
    let any = false
    for (let i = 0; i < drops.length; i++) {
      if (states[i] !== STATE.dropped || (pack.flags(i) & (MESSAGE_FLAG.tombstone | MESSAGE_FLAG.discarded)) !== 0) continue
      drops[i] = 1
      any = true
    }
    return any ? drops : undefined
  }

  /** Runs the functions on messages. @throws EngineError SANDBOX_UNAVAILABLE, STOPPING, SOURCE_UNREACHABLE …: nothing is known of any message */
  async run(messages: readonly FunctionMessage[]): Promise<StageOutcome> {
    const { filter, routing, transform } = this.#options.functions
    const { deletes, enricher, readRoute, isSensitive = false } = this.#options
    const enriched = await enricher?.enrich(messages)
    const byAsked: (Part | undefined)[] = []
    let last: MessageView | undefined
    let hasPassed = false
    for (const [i, message] of messages.entries()) {
      if (enriched?.failures.has(i)) continue
      const { view, place } = message
      if (view !== last) hasPassed = filter !== undefined && this.#passed.get(view) === filter.key
      last = view
      const isFiltered = filter !== undefined && !hasPassed && (view.flags(place) & MESSAGE_FLAG.tombstone) === 0
      const isDelete = deletes !== 'transformed' && view.action(place) === ACTION.delete
      const isTransformed = transform !== undefined && !(isDelete && deletes === 'keyed')
      const asked = Number(isFiltered) + 2 * Number(isTransformed) + 4 * Number(isDelete)
      const part = (byAsked[asked] ??= {
        functions: inOrder({ filter: isFiltered ? filter : undefined, routing, transform: isTransformed ? transform : undefined }),
        isDelete,
        chosen: [],
        messages: [],
      })
      part.chosen.push(i)
      part.messages.push(message)
    }
    const parts = byAsked.filter((part) => part !== undefined)
    const outcomes = await Promise.all(parts.map((part) => this.#runPart(part, enriched)))
    const reader = routing && readRoute && new RouteMemory(readRoute)
    const routes = outcomes.map((outcome) => outcome && reader?.of(outcome))
    return new Outcomes(messages.length, { parts, outcomes, routes, enriched, isSensitive })
  }

  #named({ view, place }: FunctionMessage): NamedMessage {
    const { sinkName = '' } = this.#options
    const { lsn, idx } = view.position(place)
    return { text: `commit_lsn ${lsn}, commit_idx ${idx} of sink "${sinkName}"`, group: `${sinkName} ${view.group(place)}` }
  }

  async #runPart(part: Part, enriched: Enriched | undefined): Promise<BatchOutcome | undefined> {
    const { functions, isDelete, chosen, messages } = part
    const { pool, tail } = this.#options
    if (functions.length === 0) return undefined
    const metadata = functions.some(({ usesMetadata }) => usesMetadata)
    const batch = linesOf(messages, {
      metadata,
      ...(enriched && { enrichment: (k: number) => enriched.rows[chosen[k] ?? -1] }),
    })
    try {
      const named = (k: number) => {
        const message = messages[k]
        return message && this.#named(message)
      }
      const outcome = await pool.run(functions, { ...batch, count: chosen.length, tail, named })
      if (isDelete) keepFailedDeletes(outcome)
      return outcome
    } finally {
      bodyMemory.give(batch.lines)
    }
  }
}

/** Messages that go through the same functions. @property chosen which of all they are */
type Part = Readonly<{ functions: readonly StageFunction[]; isDelete: boolean; chosen: number[]; messages: FunctionMessage[] }>

/** Lists the functions that messages go through, in the order of their kinds. */
const inOrder = (functions: Readonly<Record<SandboxKind, StageFunction | undefined>>): readonly StageFunction[] =>
  SANDBOX_KINDS.map((kind) => functions[kind]).filter((fn) => fn !== undefined)

/** Keeps deletes that a transform failed on: of their rows nothing but the key may be left, of which it need not make anything. */
function keepFailedDeletes(outcome: BatchOutcome): void {
  for (const [i, { kind, code }] of outcome.failures) if (kind === 'transform' && code === 'FUNCTION_FAILED') outcome.keep(i)
}

/** Holds what came of each part of a run. */
type PartOutcomes = Readonly<{
  parts: readonly Part[]
  outcomes: readonly (BatchOutcome | undefined)[]
  /** of each message of a part */
  routes: readonly (readonly (RouteFields | undefined)[] | undefined)[]
  enriched: Enriched | undefined
  isSensitive: boolean
}>

class Outcomes implements StageOutcome {
  readonly #outcomes: readonly (BatchOutcome | undefined)[]
  /** by part: which of its functions makes what is delivered */
  readonly #payloadSteps: readonly (number | undefined)[]
  readonly #routes: PartOutcomes['routes']
  readonly #enriched: Enriched | undefined
  readonly #isSensitive: boolean
  /** of each message: its part, and its place there */
  readonly #part: Uint8Array
  readonly #place: Uint32Array

  constructor(count: number, { parts, outcomes, routes, enriched, isSensitive }: PartOutcomes) {
    this.#isSensitive = isSensitive
    this.#enriched = enriched
    this.#outcomes = outcomes
    this.#payloadSteps = outcomes.map((outcome) => outcome?.stepOf('transform'))
    this.#routes = routes
    this.#part = new Uint8Array(count)
    this.#place = new Uint32Array(count)
    for (const [p, { chosen }] of parts.entries())
      for (const [k, i] of chosen.entries()) {
        this.#part[i] = p
        this.#place[i] = k
      }
  }

  stateOf(i: number): number {
    if (this.#enriched?.failures.has(i)) return STATE.failed
    return this.#of(i)?.states[this.#at(i)] ?? STATE.kept
  }
  failureOf(i: number): FunctionFailure {
    const failure = this.#enriched?.failures.get(i) ?? this.#of(i)?.failures.get(this.#at(i))
    if (!failure) throw new Error(`no function has failed message ${i}`)
    return this.#isSensitive ? nameOnly(failure) : failure
  }
  logsOf(i: number): readonly string[] {
    return this.#isSensitive ? [] : (this.#of(i)?.logs.get(this.#at(i)) ?? [])
  }
  payloadOf(i: number): Uint8Array | undefined {
    const at = this.payloadAt(i)
    return at?.text.subarray(at.start, at.end)
  }
  payloadAt(i: number): ResultPlace | undefined {
    const step = this.#payloadSteps[this.#partOf(i)]
    if (step === undefined || this.#of(i)?.failures.has(this.#at(i))) return undefined
    return this.#of(i)?.result(step, this.#at(i))
  }
  routeOf(i: number): RouteFields | undefined {
    return this.#routes[this.#partOf(i)]?.[this.#at(i)]
  }

  enrichmentOf(i: number): Uint8Array | undefined {
    return this.#enriched?.rows[i]
  }

  #of(i: number): BatchOutcome | undefined {
    return this.#outcomes[this.#partOf(i)]
  }
  #at(i: number): number {
    return this.#place[i] ?? 0
  }
  #partOf(i: number): number {
    return this.#part[i] ?? 0
  }
}

/** Names of errors that the language has: another name could hold anything. */
const ERROR_NAMES = new Set(
  [Error, TypeError, RangeError, SyntaxError, ReferenceError, EvalError, URIError, AggregateError].map(({ name }) => name),
)

/** Takes the words out of a failure, for they could hold a row of a sensitive sink. The kind of error is left, and its place. */
function nameOnly(failure: FunctionFailure): FunctionFailure {
  if (failure.code !== 'FUNCTION_FAILED' && failure.code !== 'ENRICHMENT_FAILED') return failure // our own words
  const [said = ''] = /^[A-Za-z]*Error(?=:)|\([0-9A-Z]{5}\)$/.exec(failure.text) ?? []
  const named = failure.code === 'ENRICHMENT_FAILED' || ERROR_NAMES.has(said) ? said : ''
  return { ...failure, text: `${named || 'an error'}; its words are not kept, for the sink is sensitive` }
}

/** Writes a failure in one line for people: which function failed, with which words, and where. */
export const failureText = (failure: FunctionFailure): string => `${failure.kind} "${failure.name}": ${failure.text}${placeText(failure)}`

/** Makes the record of a failed attempt: plain JSON, under the names that attempts of deliveries have too. */
export function attemptOf(failure: FunctionFailure, logs: readonly string[]): Readonly<Record<string, unknown>> {
  const { code, name, file, line, column } = failure
  return {
    at: new Date().toISOString(),
    counts: true,
    code,
    message: failureText(failure),
    function: name,
    ...(line !== undefined && { line, column }),
    ...(file !== undefined && { file }),
    ...(logs.length > 0 && { logs }),
  }
}
