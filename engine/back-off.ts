/** Decides how long something waits for its next try. Pure, given a random number. */

/** Gives a pause that doubles with each try that has failed. @param attempt how many have, 1 or more */
export const backOff = ({ firstMs, maxMs }: Readonly<{ firstMs: number; maxMs: number }>, attempt: number): number =>
  Math.min(firstMs * 2 ** (attempt - 1), maxMs)

/** A message that failed is tried again after about 1 s, then twice as long each time, at most 3 min. */
const MESSAGE = { firstMs: 1_000, maxMs: 180_000 }
/** The longest pause of a message. */
export const MESSAGE_LONGEST_MS = MESSAGE.maxMs
const JITTER = 0.15
/** The longest pause of a message that chance can make of it. */
export const MESSAGE_LONGEST_JITTERED_MS = Math.ceil(MESSAGE.maxMs * (1 + JITTER))

/**
 * Gives the pause before a message that failed is tried again. @param attempts that have failed, 1 or more. @param random from 0 up
 * to before 1
 */
export function messageBackOff(attempts: number, random: number): number {
  return jittered(backOff(MESSAGE, attempts), random)
}

/** Varies a pause a little, so that what failed together is not tried together. */
export const jittered = (ms: number, random: number): number => Math.round(ms * (1 - JITTER + 2 * JITTER * random))
