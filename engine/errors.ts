/** Every failure Tailrace reports: one class, one table. A released code is never renamed or reused.
 *  The error catalogue in docs/errors.md is generated from the table. Nothing here does I/O. */

type Row = Readonly<{
  /** whether trying the same thing again can help */
  retry: boolean
  /** HTTP status when the error answers a request */
  status: number
  /** what happened, in one sentence */
  meaning: string
  /** what the user does about it */
  remedy: string
}>

export const ERRORS = {
  // ── requests ────────────────────────────────────────────────────────────────────────────────────
  REQUEST_INVALID: {
    retry: false,
    status: 400,
    meaning: 'A parameter or the body of a request has the wrong form.',
    remedy: 'The summary names the parameter, what was expected and what came.',
  },
  REQUEST_UNPARSABLE: {
    retry: false,
    status: 400,
    meaning: 'The body of a request is not valid JSON.',
    remedy: 'Send a JSON object in UTF-8.',
  },
  TOKEN_INVALID: {
    retry: false,
    status: 401,
    meaning: 'The request has no API token, or one that is not known.',
    remedy: 'Send the header "Authorization: Bearer <API token>".',
  },
  NOT_FOUND: {
    retry: false,
    status: 404,
    meaning: 'The account has no such resource.',
    remedy: 'Check the id or name, and that the token belongs to the right account.',
  },
  VALIDATION_FAILED: {
    retry: false,
    status: 422,
    meaning: 'A resource was refused because a field has a value it may not have.',
    remedy: 'validation_errors names each field and the reason.',
  },
  TOO_MANY_WAITING: {
    retry: true,
    status: 429,
    meaning: 'The sink already holds max_waiting receives that wait for messages.',
    remedy: 'Wait for one to end, or raise max_waiting of the sink.',
  },
  ACK_NOT_DURABLE: {
    retry: true,
    status: 503,
    meaning: 'The acknowledgement could not be made durable.',
    remedy: 'Send the same ack again; repeating an ack is safe.',
  },
  STOPPING: {
    retry: true,
    status: 503,
    meaning: 'The service is stopping or the sink is moving.',
    remedy: 'Try again; the message stays in the log.',
  },
  INTERNAL: {
    retry: false,
    status: 500,
    meaning: 'Something went wrong that Tailrace does not know.',
    remedy: 'The log line of the same time has the cause; please report it.',
  },
  // ── decoding ────────────────────────────────────────────────────────────────────────────────────
  LSN_MALFORMED: {
    retry: false,
    status: 400,
    meaning: 'A text is not a position of the write-ahead log.',
    remedy: 'Positions look like 16/B374D848.',
  },
  MESSAGE_MALFORMED: {
    retry: false,
    status: 500,
    meaning: 'Postgres sent a replication message whose lengths do not fit.',
    remedy: 'The source stopped before confirming it, so nothing is lost; please report it with the versions.',
  },
  PACK_MALFORMED: {
    retry: false,
    status: 500,
    meaning: 'A record of the log could not be read: it is damaged or of a newer version.',
    remedy: 'Do not run an older Tailrace on the data of a newer one; otherwise check the disk.',
  },
  // ── start ───────────────────────────────────────────────────────────────────────────────────────
  SETTING_INVALID: {
    retry: false,
    status: 500,
    meaning: 'An environment variable has a value it may not have.',
    remedy: 'The message names the variable and what it takes.',
  },
  CONFIG_INVALID: {
    retry: false,
    status: 422,
    meaning: 'The configuration file could not be applied; nothing of it was.',
    remedy: 'The message names file, line and reason.',
  },
} as const satisfies Record<string, Row>

export type ErrorCode = keyof typeof ERRORS
/** names, positions, sizes; never row values or secrets */
export type ErrorContext = Readonly<Record<string, string | number | boolean | null>>

export class EngineError extends Error {
  override readonly name = 'EngineError'
  readonly code: ErrorCode
  readonly context: ErrorContext
  constructor(code: ErrorCode, message: string, context: ErrorContext = {}, options?: ErrorOptions) {
    super(message, options)
    this.code = code
    this.context = context
  }
}

export const isRetryable = (error: unknown): boolean => error instanceof EngineError && ERRORS[error.code].retry
