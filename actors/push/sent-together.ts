import type { Former } from '../../engine/dispatch/batch.ts'
import type { DeliveredTogether } from '../../engine/dispatch/delivered-messages.ts'
import type { KeptAnswer } from '../../sinks/push.ts'

/** What an attempt weighs in memory, about, but for the answer. */
const KEPT_BYTES = 256
const KEPT_FORMER_BYTES = 2_048
const NONE: readonly unknown[] = []

/** What the messages that one request delivered have in common, kept with them: one object for all, for there are many. */
export class SentTogether implements DeliveredTogether {
  readonly generation: number
  readonly partition: number
  readonly at = Date.now()
  readonly tries: number
  readonly formerAttempts: readonly unknown[]
  readonly bytes: number
  readonly #status: number
  readonly #tookMs: number
  readonly #answer: KeptAnswer | undefined

  constructor(
    former: Former | undefined,
    {
      generation,
      partition,
      status,
      tookMs,
      answer,
      answerBytes,
    }: Readonly<{
      generation: number
      partition: number
      status: number
      tookMs: number
      answer: KeptAnswer | undefined
      /** those that no former one holds */
      answerBytes: number
    }>,
  ) {
    this.generation = generation
    this.partition = partition
    this.tries = (former?.attempts ?? 0) + 1
    this.formerAttempts = former?.records ?? NONE
    this.bytes = KEPT_BYTES + KEPT_FORMER_BYTES * this.formerAttempts.length + answerBytes
    this.#status = status
    this.#tookMs = tookMs
    this.#answer = answer
  }

  attempt(): Readonly<Record<string, unknown>> {
    return {
      at: new Date(this.at).toISOString(),
      counts: true,
      status: this.#status,
      tookMs: Math.round(this.#tookMs),
      ...this.#answer?.shown(),
    }
  }
}
