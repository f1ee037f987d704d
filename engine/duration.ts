/** Durations as settings have them: a whole number of milliseconds, or a number with its unit, such as "90s" or "1h". */
const UNIT_MS: Readonly<Record<string, number>> = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 }

/** The pattern of a duration in a JSON schema. */
export const DURATION_PATTERN = '^(0|[1-9][0-9]{0,8})(ms|s|m|h|d)$'
const DURATION = new RegExp(DURATION_PATTERN)

/** Converts a duration to milliseconds. @param duration as the schema has checked it */
export function durationMs(duration: number | string): number {
  if (typeof duration === 'number') return duration
  const [, digits, unit = ''] = DURATION.exec(duration) ?? []
  return Number(digits) * (UNIT_MS[unit] ?? NaN)
}
