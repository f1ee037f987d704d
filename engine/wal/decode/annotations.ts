/**
 * Transaction annotations (docs/messages.md): logical messages by which a transaction attaches JSON to the changes that
 * follow in it. This file says what a logical message means; the source applies it, and forgets it at the commit.
 */

const SET = new Set(['sequin:transaction_annotations.set', 'tailrace:transaction_annotations.set'])
const CLEAR = new Set(['sequin:transaction_annotations.clear', 'tailrace:transaction_annotations.clear'])

/** Says what a logical message does to the annotations of its transaction. */
export type AnnotationMark =
  | Readonly<{ kind: 'set'; json: Buffer }>
  | Readonly<{ kind: 'clear' }>
  /** `ignored`: what was set before stays; otherwise the following changes have none */
  | Readonly<{ kind: 'invalid'; ignored: boolean; reason: string }>

/** Keeps a byte order mark, so that JSON.parse refuses it: the bytes are copied into messages as they are. */
const UTF8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

/**
 * Reads what a logical message says of annotations. @param content not kept @returns undefined: nothing
 */
export function readAnnotation(transactional: boolean, prefix: string, content: Uint8Array): AnnotationMark | undefined {
  const isSet = SET.has(prefix)
  if (!isSet && !CLEAR.has(prefix)) return undefined
  if (!transactional) return { kind: 'invalid', ignored: true, reason: `${prefix} must be emitted with transactional = true` }
  if (!isSet) return { kind: 'clear' }
  try {
    JSON.parse(UTF8.decode(content))
  } catch {
    return { kind: 'invalid', ignored: false, reason: `${prefix} does not hold valid JSON` }
  }
  // a control character can only stand between tokens: messages have no line breaks
  return { kind: 'set', json: Buffer.from(content.map((byte) => (byte < 0x20 ? 0x20 : byte))) }
}
