/** Positions in the write-ahead log. In memory a bigint, so they compare and subtract as they should;
 *  text such as "16/B374D848" exists only in SQL, logs and the API. Nothing here does I/O. */
import { EngineError } from './errors.ts'

/** A position in the write-ahead log. */
export type Lsn = bigint

/**
 * Reads the text of a place in the write-ahead log. @throws EngineError LSN_MALFORMED: not two groups of 1–8 hexadecimal digits
 * joined by "/"
 */
export function parseLsn(text: string): Lsn {
  const [, high, low] = /^([0-9A-F]{1,8})\/([0-9A-F]{1,8})$/i.exec(text) ?? []
  if (!high || !low) throw new EngineError('LSN_MALFORMED', `not an LSN (such as 16/B374D848): "${text.slice(0, 40)}"`)
  return (BigInt(`0x${high}`) << 32n) | BigInt(`0x${low}`)
}

/** Writes a place in the write-ahead log as Postgres does. */
export function formatLsn(lsn: Lsn): string {
  return `${(lsn >> 32n).toString(16).toUpperCase()}/${(lsn & 0xffffffffn).toString(16).toUpperCase()}`
}
