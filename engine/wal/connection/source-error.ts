/** Decides what a failure of a connection to the source means, and what becomes of the source, by code and never by message text. */
import { EngineError, ERRORS, type ErrorCode, type ErrorContext, errorText, codeOf } from '../../errors.ts'
import { faultOf, sqlstateOf, type Fault } from '../../postgres/sqlstate.ts'
import { tlsRefusal } from '../../postgres/tls-refusal.ts'

/** Says where a failure happened: an "undefined object" in the stream is the publication. */
type Phase = 'connecting' | 'starting' | 'streaming'

/** Makes an error of ours of one that PostgreSQL, the socket or the pg library produced; ours pass through. */
export function toSourceError(error: unknown, phase: Phase, context: ErrorContext = {}): EngineError {
  if (error instanceof EngineError) return error
  const refusal = tlsRefusal(error)
  if (refusal) return refusal
  const code = codeOf(error)
  const text = errorText(error)
  return new EngineError(
    classify(sqlstateOf(error), phase),
    code ? `${text} (${code})` : text,
    { ...context, ...(code ? { sqlstate: code } : {}) },
    { cause: error },
  )
}

/** Tells by its SQLSTATE whether an error says that the server is going down: whoever holds a connection to it should let go. */
export function isShutdown(error: unknown): boolean {
  const code = sqlstateOf(error)
  return code === '57P01' || code === '57P02' || code === '57P03'
}

const CODE_OF: Readonly<Record<Fault, ErrorCode>> = {
  away: 'SOURCE_UNREACHABLE',
  unable: 'SOURCE_UNABLE',
  login: 'SOURCE_LOGIN_REFUSED',
  rights: 'SOURCE_REFUSED',
  other: 'SOURCE_FAILED',
}

/** That a slot is missing or lost is never concluded from here: the inspection before each try looks it up (slot.ts). */
function classify(sqlstate: string | undefined, phase: Phase): ErrorCode {
  if (sqlstate === '55006') return 'SLOT_IN_USE'
  if (sqlstate === '42704') return phase === 'starting' ? 'SOURCE_UNABLE' : phase === 'streaming' ? 'PUBLICATION_MISSING' : 'SOURCE_FAILED'
  if (sqlstate === '22021' || sqlstate === '22P05') return 'SOURCE_ENCODING' // bytes that are none of the encoding, or have no counterpart in UTF-8
  return CODE_OF[faultOf(sqlstate)]
}

/**
 * Says what a source does after a failure: `soon` and `later` try again, `later` with pauses that grow to minutes; `stop` waits for
 * a person. What stands still makes its server keep its log until a disk is full, so only proven loss, memories that
 * don't fit each other, and what nobody but a person can change stop a source (docs/rules.md, rule 39).
 */
export type Course = 'soon' | 'later' | 'stop'

/** The codes that are no reason to stop although the same try may well fail again: what they mean is not known, or others mend it. */
const LATER: ReadonlySet<ErrorCode> = new Set([
  'EGRESS_REFUSED', // names get other addresses
  'INTERNAL',
  'LOG_REFUSED',
  'LSN_MALFORMED',
  'MESSAGE_MALFORMED',
  'PACK_MALFORMED',
  'SOURCE_FAILED',
  'SOURCE_LOGIN_REFUSED',
  'TLS_REFUSED',
])

/** Decides what a source does after a failure. */
export function courseAfter(error: unknown): Course {
  if (!(error instanceof EngineError) || LATER.has(error.code)) return 'later'
  return ERRORS[error.code].retry ? 'soon' : 'stop'
}
