/** What a form is refused for: for each wrong field one reason, all at once. Nothing here does I/O. */
import { EngineError } from '../engine/errors.ts'
import type { Reason } from '../engine/schema-reasons.ts'

export { reasonsOf, type Reason } from '../engine/schema-reasons.ts'

/** @returns VALIDATION_FAILED, its context has the reasons of each field */
export function refused(summary: string, reasons: readonly Reason[]): EngineError {
  const byField: Record<string, string> = Object.create(null)
  for (const [field, reason] of reasons) byField[field] = byField[field] === undefined ? reason : `${byField[field]} and ${reason}`
  return new EngineError('VALIDATION_FAILED', summary, byField)
}

const MAX_SUMMARY = 500

/** The error of a form, told all at once. */
export const invalid = (reasons: readonly Reason[]): EngineError =>
  refused(
    `Validation failed: ${reasons
      .map(([field, reason]) => `${field} ${reason}`)
      .join('; ')
      .slice(0, MAX_SUMMARY)}.`,
    reasons,
  )

export const isObject = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)
