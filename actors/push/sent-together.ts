import type { Former } from '../../engine/dispatch/batch.ts'
import type { DeliveredTogether } from '../../engine/dispatch/delivered-messages.ts'
import type { KeptAnswer } from '../../sinks/push.ts'

/** What an attempt weighs in memory, about, but for the answer. */
const KEPT_BYTES = 256
const KEPT_FORMER_BYTES = 2_048
const NONE: readonly unknown[] = []

/** Holds what is known of a request that delivered something. */
export type KeptFacts = Readonly<{ status: number; tookMs: number; answer: KeptAnswer | undefined }>

/**
 * Makes what the messages that one request delivered have in common, to be kept with them: one object for all, for there are many.
 * @param former of a message that had failed before: such are kept one by one
 * @param facts.answerBytes what the answer holds that no other request has counted
 */
export function sentTogether(
  former: Former | undefined,
  facts: KeptFacts & Readonly<{ generation: number; partition: number; answerBytes: number }>,
): DeliveredTogether {
  const { generation, partition, status, tookMs, answer, answerBytes } = facts
  const at = Date.now()
  const formerAttempts = former?.records ?? NONE
  return {
    generation,
    partition,
    at,
    tries: (former?.attempts ?? 0) + 1,
    formerAttempts,
    bytes: KEPT_BYTES + KEPT_FORMER_BYTES * formerAttempts.length + answerBytes,
    attempt: () => ({ at: new Date(at).toISOString(), counts: true, status, tookMs: Math.round(tookMs), ...answer?.shown() }),
  }
}
