/** How long something waits for its next try. Pure, given a random number. */

/** A message that failed: about 1 s, doubling, at most 3 min (contract 12.3). */
const MESSAGE_FIRST_MS = 1_000
export const MESSAGE_LONGEST_MS = 180_000
const JITTER = 0.15

/** @param attempts that have failed, 1 or more. @param random from 0 up to before 1 */
export function messageBackOff(attempts: number, random: number): number {
  return jittered(Math.min(MESSAGE_FIRST_MS * 2 ** Math.min(attempts - 1, 30), MESSAGE_LONGEST_MS), random)
}

/** So that what failed together is not tried together. */
export const jittered = (ms: number, random: number): number => Math.round(ms * (1 - JITTER + 2 * JITTER * random))
