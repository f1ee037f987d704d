/** What answers of any HTTP server say, whatever it is a server of. */
import { fieldsOf } from '../engine/json.ts'
import type { HttpAnswer } from '../engine/net/http-pool.ts'
import { JsonMembers } from './json-members.ts'

/** Statuses by which a server, or what stands before it, says that it can't serve at the moment. */
export const UNAVAILABLE = new Set([408, 425, 502, 503, 504, 521, 522, 523, 524, 529])

/** Bytes that are kept of an answer that is about the request alone. */
export const KEPT_BYTES = 64 * 1024
/** What an answer may say of one of many things that it was asked about, on average: mostly it is a name and a status. */
const BYTES_EACH = 4 * 1024
/** One of them may be worth more words than the others. */
const MAX_ITEM_BYTES = 64 * 1024

/** What is kept of an answer about so many messages. One that is longer is not believed. */
export const bytesAbout = (count: number): number => KEPT_BYTES + count * BYTES_EACH

/** The beginning of an answer: it may be as long as one that was asked for would be, and is none. */
export const beginningOf = (answer: HttpAnswer): HttpAnswer =>
  answer.body.length <= KEPT_BYTES ? answer : { ...answer, body: answer.body.subarray(0, KEPT_BYTES), isCut: true }

/**
 * The elements of a list that the object in the body has under a name, one by one: parsed as a whole, a few bytes of JSON can take
 * twenty times as much memory.
 * @param most as many as were asked about; the rest is not looked at
 * @returns undefined: there is no such list; unreadable: what is in it is no JSON, or too long
 */
export function elementsOf({ body }: HttpAnswer, list: string, most: number): readonly unknown[] | 'unreadable' | undefined {
  let isFound = false
  try {
    const members = JsonMembers.of(body, 0)
    if (!members) return undefined
    for (let name = members.name(); name; name = members.name()) {
      if (!members.is(name, list)) {
        members.value(MAX_ITEM_BYTES)
        continue
      }
      const elements = JsonMembers.list(body, members.at)
      if (!elements) return undefined
      isFound = true
      const found: unknown[] = []
      while (found.length < most) {
        const span = elements.element(MAX_ITEM_BYTES)
        if (!span) break
        found.push(JSON.parse(body.toString('utf8', span.start, span.end)))
      }
      return found
    }
  } catch {} // no JSON
  return isFound ? 'unreadable' : undefined
}

/** Reads a short body that should be an object. @returns no members where it is none */
export function objectIn({ body }: HttpAnswer): Readonly<Record<string, unknown>> {
  try {
    const value: unknown = JSON.parse(body.toString('utf8'))
    return fieldsOf(value)
  } catch {
    return {}
  }
}
