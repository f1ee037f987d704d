/**
 * What a destination said when it took messages, kept so that it can be looked at for a while. Most answers are those of
 * before but for the second in their date, so the one before is kept in the place of each that says the same.
 */
import type { HttpAnswer } from '../engine/net/http-pool.ts'
import type { Answer, KeptAnswer } from './push.ts'
import type { Verbatim } from './verbatim.ts'

/** Most that is kept of a body. */
const MAX_BODY_BYTES = 1024
/** The memory that headers take beside their texts, about. */
const HEADERS_BYTES = 512

/** Keeps answers of one destination. */
export class KeptAnswers {
  readonly #verbatim: Verbatim
  #last: OneAnswer | undefined

  constructor(verbatim: Verbatim) {
    this.#verbatim = verbatim
  }

  keep(answer: HttpAnswer): KeptAnswer {
    if (!this.#last?.says(answer)) this.#last = new OneAnswer(this.#verbatim, answer)
    return this.#last
  }
}

class OneAnswer implements KeptAnswer {
  readonly bytes: number
  readonly #verbatim: Verbatim
  readonly #answer: HttpAnswer

  constructor(verbatim: Verbatim, { status, headers, body, isCut }: HttpAnswer) {
    const some = body.length > MAX_BODY_BYTES ? Buffer.from(body.subarray(0, MAX_BODY_BYTES)) : body
    this.#verbatim = verbatim
    this.#answer = { status, headers, body: some, isCut: isCut || some !== body }
    this.bytes = HEADERS_BYTES + textOf(headers) + some.length
  }

  shown(): Pick<Answer, 'headers' | 'body'> {
    const { headers = {}, body = '' } = this.#verbatim.answer('DESTINATION_REJECTED', this.#answer)
    return { headers, body }
  }

  says({ status, headers, body, isCut }: HttpAnswer): boolean {
    const own = this.#answer
    if (own.status !== status || own.isCut || isCut || !own.body.equals(body)) return false
    let count = 0
    for (const name in headers) {
      if (headers[name] !== own.headers[name]) return false // a list of values is never the same
      count++
    }
    return count === Object.keys(own.headers).length
  }
}

/** A server may send 16 KB of headers, and other ones each time. */
function textOf(headers: HttpAnswer['headers']): number {
  let length = 0
  for (const name in headers) for (const value of [headers[name] ?? ''].flat()) length += name.length + value.length
  return length
}
