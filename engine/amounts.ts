/** Sizes and durations in words for people: in messages, health and what the command prints. */

/** A megabyte, as settings, sinks and Postgres count it. */
export const MB = 1024 * 1024

const UNITS = ['B', 'KB', 'MB', 'GB', 'TB'] as const

/** Writes a number of bytes in the unit that fits: "512 B", "1.5 MB", "230 GB". */
export function sizeText(bytes: number): string {
  const power = Math.max(0, UNITS.findLastIndex((_, i) => Math.abs(bytes) >= 1024 ** i)) // prettier-ignore
  const amount = bytes / 1024 ** power
  return `${short(amount)} ${UNITS[power]}`
}

/** Writes a duration in seconds, minutes or hours: "90 s", "15 min", "2.5 h". */
export function durationText(seconds: number): string {
  if (seconds < 120) return `${Math.round(seconds)} s`
  return seconds < 7_200 ? `${Math.round(seconds / 60)} min` : `${short(seconds / 3_600)} h`
}

/** Three figures say enough, and no more than one behind the point. */
const short = (amount: number): number => Number(amount.toFixed(Math.abs(amount) >= 100 ? 0 : 1))
