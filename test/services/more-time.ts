/**
 * For what a limit shows that a test sets itself, as short as it may be to be quick: a machine that stands still for a while
 * breaks such a limit too, and then it is tried again with a longer one. What is wrong is wrong with every one.
 */
export async function withMoreTime(limitsMs: readonly number[], attempt: (limitMs: number) => Promise<void>): Promise<void> {
  const failures: unknown[] = []
  for (const limitMs of limitsMs) {
    try {
      return await attempt(limitMs)
    } catch (error) {
      failures.push(error)
    }
  }
  throw failures.at(-1)
}
