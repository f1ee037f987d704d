/**
 * Waits for work no longer than so many milliseconds; then the work is left to itself.
 * @throws what `late` returns, and what the work throws in time
 */
export async function within<T>(limitMs: number, work: Promise<T>, late: () => Error): Promise<T> {
  const timeout = Promise.withResolvers<never>()
  const timer = setTimeout(() => timeout.reject(late()), limitMs)
  try {
    return await Promise.race([work, timeout.promise])
  } finally {
    clearTimeout(timer)
  }
}
