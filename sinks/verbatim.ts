/**
 * What an answer may leave behind in our records: its own words, cut at a limit, with every secret that we sent along
 * taken out again, for many servers repeat what they were asked.
 */
import type { ErrorCode } from '../engine/errors.ts'
import type { HttpAnswer, HttpFailure } from '../engine/net/http-pool.ts'
import type { Answer, Blame, Failure } from './push.ts'

/** of an answer's body, and of each header, that are kept */
const BODY_CHARACTERS = 8_192
const HEADER_CHARACTERS = 512
const MAX_HEADERS = 40
/** Most characters of the one line that people read first. */
const LINE_CHARACTERS = 2_000
const HIDDEN = '[secret]'
/** A shorter one is too likely to be a word of its own. */
const MIN_SECRET = 4

const CODE_OF: Readonly<Record<Blame, ErrorCode>> = {
  unreachable: 'DESTINATION_UNREACHABLE',
  unavailable: 'DESTINATION_UNAVAILABLE',
  refused: 'DESTINATION_REFUSED',
  rejected: 'DESTINATION_REJECTED',
  throttled: 'DESTINATION_THROTTLED',
  tooLarge: 'DESTINATION_REJECTED',
  message: 'DESTINATION_REJECTED',
}

/** Takes the secrets of one sink out of what its destination said. */
export class Verbatim {
  readonly #secrets: readonly string[]

  /** @param secrets texts that must not be kept, in every form in which they are sent */
  constructor(secrets: readonly string[]) {
    this.#secrets = [...new Set(secrets.filter((text) => text.length >= MIN_SECRET))].sort((a, b) => b.length - a.length)
  }

  /** What was said, without secrets. */
  clean(text: string, characters = LINE_CHARACTERS): string {
    let clean = text
    for (const secret of this.#secrets) clean = clean.replaceAll(secret, HIDDEN)
    return clean.length > characters ? `${clean.slice(0, characters)}… (${clean.length} characters)` : clean
  }

  /** A request that brought no answer. */
  unanswered({ phase, code, message }: HttpFailure): Failure {
    const blame = phase === 'connect' ? 'unreachable' : 'unavailable'
    return {
      blame,
      answer: {
        code: code === 'EGRESS_REFUSED' ? code : CODE_OF[blame],
        message: this.clean(`${code === 'TIMEOUT' ? '' : `${code}: `}${message}`),
      },
    }
  }

  /** An answer that is no success. @param message one line, when the answer has a better one than its beginning */
  answered(blame: Blame, answer: HttpAnswer, message?: string): Failure {
    const retryAfterMs = retryAfter(answer)
    return { blame, answer: this.answer(CODE_OF[blame], answer, message), ...(retryAfterMs === undefined ? {} : { retryAfterMs }) }
  }

  answer(code: ErrorCode, { status, headers, body, isCut }: HttpAnswer, message?: string): Answer {
    const text = body.toString('utf8')
    const line = message ?? text.trim()
    const kept = Object.entries(headers).slice(0, MAX_HEADERS)
    return {
      code,
      message: this.clean(line === '' ? `status ${status}` : `status ${status}: ${line}`),
      status,
      headers: Object.fromEntries(kept.map(([name, value]) => [name, this.clean(String(value), HEADER_CHARACTERS)])),
      body: this.clean(isCut ? `${text}…` : text, BODY_CHARACTERS),
    }
  }

  /** What the destination said of one message. */
  about(blame: Blame, status: number, message: string): Failure {
    return { blame, answer: { code: CODE_OF[blame], message: this.clean(message), status } }
  }

  /** An answer of another protocol than HTTP. @param message with the code that the protocol has */
  said(blame: Blame, message: string): Failure {
    return { blame, answer: { code: CODE_OF[blame], message: this.clean(message) } }
  }

  /** What we say of a message before it is sent. */
  undeliverable(message: string): Failure {
    return { blame: 'message', answer: { code: 'MESSAGE_UNDELIVERABLE', message: this.clean(message) } }
  }
}

/** How long the answer asks us to wait: seconds, or a date. */
function retryAfter({ headers }: HttpAnswer): number | undefined {
  const value = headers['retry-after']
  if (typeof value !== 'string') return undefined
  if (/^\d{1,9}$/.test(value.trim())) return Number(value) * 1000
  const at = Date.parse(value)
  return Number.isNaN(at) ? undefined : Math.max(0, at - Date.now())
}
