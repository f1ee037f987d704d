/** A bound on waiting for what may never settle. */
/** @returns whether `promise` settled in time */
export async function within(ms: number, promise: Promise<unknown> | undefined): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined
  const limit = new Promise<false>((resolve) => (timer = setTimeout(() => resolve(false), ms)))
  const isOver = await Promise.race([Promise.resolve(promise).then(() => true as const), limit])
  clearTimeout(timer)
  return isOver
}
