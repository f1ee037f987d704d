/** What a failure of a connection to the source means: decided by SQLSTATE and error code, never by message text. */
import { EngineError, type ErrorCode, type ErrorContext } from '../../errors.ts'
import { tlsRefusal } from '../../postgres/tls-refusal.ts'

/** Where it happened decides what an "undefined object" is: at the start the slot, later the publication. */
export type Phase = 'connecting' | 'starting' | 'streaming'

/** Messages that PostgreSQL, the socket or the pg library produced become one of ours; ours pass through. */
export function toSourceError(error: unknown, phase: Phase, context: ErrorContext = {}): EngineError {
  if (error instanceof EngineError) return error
  const refusal = tlsRefusal(error)
  if (refusal) return refusal
  const code = codeOf(error)
  const text = error instanceof Error ? error.message : String(error)
  return new EngineError(
    classify(code, phase),
    code ? `${text} (${code})` : text,
    { ...context, ...(code ? { sqlstate: code } : {}) },
    { cause: error },
  )
}

/** SQLSTATEs of a server that is going down: whoever holds a connection to it should let go. */
export function isShutdown(error: unknown): boolean {
  const code = codeOf(error)
  return code === '57P01' || code === '57P02' || code === '57P03'
}

function codeOf(error: unknown): string | undefined {
  const code = error instanceof Error && 'code' in error ? error.code : undefined
  return typeof code === 'string' ? code : undefined
}

function classify(code: string | undefined, phase: Phase): ErrorCode {
  if (code === undefined) return 'SOURCE_UNREACHABLE' // "Connection terminated unexpectedly" and the like come without a code
  if (!/^[0-9A-Z]{5}$/.test(code) || code === 'EPIPE') return 'SOURCE_UNREACHABLE' // a socket's code: ECONNREFUSED, ENOTFOUND, ETIMEDOUT
  if (code === '55006') return 'SLOT_IN_USE'
  if (code === '55000' || code === '58P01') return 'SLOT_LOST' // 58P01: a segment of the log has been removed
  if (code === '42704' && phase !== 'connecting') return phase === 'starting' ? 'SLOT_MISSING' : 'PUBLICATION_MISSING'
  if (code === '22021' || code === '22P05') return 'SOURCE_ENCODING' // bytes that are none of the encoding, or have no counterpart in UTF-8
  if (code.startsWith('28') || code === '3D000' || code === '42501') return 'SOURCE_REFUSED'
  if (code.startsWith('08') || code.startsWith('53') || code.startsWith('57')) return 'SOURCE_UNREACHABLE'
  return 'SOURCE_FAILED'
}
