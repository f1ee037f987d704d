/** How much a run of the fault tests does: a fifth of the promised sizes in `npm test`, all of it in the long mode. */

export const LONG = process.env['TAILRACE_TEST_LONG'] === '1'

/** @param short how many in `npm test` */
export function seeds(short: number): number[] {
  const one = process.env['TAILRACE_TEST_SEED']
  if (one !== undefined) return [Number(one)]
  const count = LONG ? Number(process.env['TAILRACE_TEST_SEEDS'] ?? 10) : short
  return Array.from({ length: count }, (_, at) => at + 1)
}
