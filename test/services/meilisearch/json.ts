/**
 * JSON as Meilisearch reads it: the words and columns of its errors, integers of 64 bits exactly, every other number as a
 * float64, and documents that keep the text of each field, because what is wrong with one is told in its own words.
 */
export type Value = null | boolean | number | bigint | string | Value[] | { [name: string]: Value }

/** A top-level field of a document. */
export type Field = Readonly<{
  raw: string
  value: Value
  /** the field can be taken in but not be indexed: fails every task of its batch */
  poison: string | undefined
}>
export type Document = ReadonlyMap<string, Field>

/** Its message ends where the text went wrong: "… at line 1 column 10". */
export class JsonError extends Error {
  override readonly name = 'JsonError'
}
/** An array where NDJSON must have an object. */
export class NotAMap extends Error {
  override readonly name = 'NotAMap'
}

const MAX_DEPTH = 128
const I64_MIN = -(2n ** 63n)
const U64_MAX = 2n ** 64n - 1n
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y
const TEXT = /"(?:[^"\\]|\\.)*"/sy
const LITERALS: readonly (readonly [string, Value])[] = [
  ['null', null],
  ['true', true],
  ['false', false],
]

class Reader {
  readonly #text: string
  #at = 0
  #depth = 0
  /** where the last number beyond a float64 ended */
  #outOfRangeAt: number | undefined

  constructor(text: string) {
    this.#text = text
  }

  get isAtEnd(): boolean {
    this.#space()
    return this.#at >= this.#text.length
  }
  peek(): string | undefined {
    this.#space()
    return this.#text[this.#at]
  }

  /** One value, with the place of a number that no float64 holds. */
  field(): Field {
    this.#space()
    const start = this.#at
    this.#outOfRangeAt = undefined
    const value = this.value()
    const raw = this.#text.slice(start, this.#at)
    return {
      raw,
      value,
      poison: this.#outOfRangeAt === undefined ? undefined : `number out of range at ${placeIn(raw, this.#outOfRangeAt - start)}`,
    }
  }

  document(): Document {
    const fields = new Map<string, Field>()
    this.#object((name) => {
      const field = this.field()
      const isMap = typeof field.value === 'object' && field.value !== null && !Array.isArray(field.value)
      const poison = name === '_vectors' && !isMap ? 'invalid type: expected a map at line 1 column 0' : field.poison
      fields.set(name, { ...field, poison })
    })
    return fields
  }

  value(): Value {
    this.#space()
    const next = this.peek()
    if (next === undefined) throw this.#error('EOF while parsing a value')
    if (next === '{') {
      const value: { [name: string]: Value } = {}
      this.#object(
        (name) => void Object.defineProperty(value, name, { value: this.value(), enumerable: true, writable: true, configurable: true }),
      )
      return value
    }
    if (next === '[') return this.list(() => this.value())
    if (next === '"') return this.#string()
    for (const [text, value] of LITERALS) {
      if (!this.#text.startsWith(text, this.#at)) continue
      this.#at += text.length
      return value
    }
    NUMBER.lastIndex = this.#at
    const [digits] = NUMBER.exec(this.#text) ?? []
    if (digits === undefined) throw this.#error('expected value', 1)
    this.#at += digits.length
    return this.#number(digits)
  }

  list<T>(item: () => T): T[] {
    const items: T[] = []
    this.#enter()
    if (this.peek() === ']') this.#at++
    else
      for (;;) {
        items.push(item())
        const next = this.peek()
        if (next === undefined) throw this.#error('EOF while parsing a list')
        if (next !== ',' && next !== ']') throw this.#error('expected `,` or `]`', 1)
        this.#at++
        if (next === ']') break
        if (this.peek() === undefined) throw this.#error('EOF while parsing a value')
        if (this.peek() === ']') throw this.#error('trailing comma', 1)
      }
    this.#depth--
    return items
  }

  mustEnd(): void {
    if (!this.isAtEnd) throw this.#error('trailing characters', 1)
  }

  #object(member: (name: string) => void): void {
    this.#enter()
    if (this.peek() === '}') this.#at++
    else
      for (;;) {
        if (this.peek() === undefined) throw this.#error('EOF while parsing an object')
        if (this.peek() !== '"') throw this.#error('key must be a string', 1)
        const name = this.#string()
        const colon = this.peek()
        if (colon === undefined) throw this.#error('EOF while parsing an object')
        if (colon !== ':') throw this.#error('expected `:`', 1)
        this.#at++
        member(name)
        const next = this.peek()
        if (next === undefined) throw this.#error('EOF while parsing an object')
        if (next !== ',' && next !== '}') throw this.#error('expected `,` or `}`', 1)
        this.#at++
        if (next === '}') break
        if (this.peek() === undefined) throw this.#error('EOF while parsing a value')
        if (this.peek() === '}') throw this.#error('trailing comma', 1)
      }
    this.#depth--
  }

  #string(): string {
    TEXT.lastIndex = this.#at
    const [raw] = TEXT.exec(this.#text) ?? []
    if (raw === undefined) {
      this.#at = this.#text.length
      throw this.#error('EOF while parsing a string')
    }
    this.#at += raw.length
    let text: string
    try {
      text = JSON.parse(raw) as string
    } catch {
      throw this.#error('invalid escape')
    }
    if (!text.isWellFormed()) throw this.#error('lone leading surrogate in hex escape')
    return text
  }

  #number(digits: string): Value {
    if (/^-?\d+$/.test(digits)) {
      const exact = BigInt(digits)
      if (exact >= I64_MIN && exact <= U64_MAX) return Number.isSafeInteger(Number(digits)) ? Number(digits) : exact
    }
    const value = Number(digits)
    if (!Number.isFinite(value)) this.#outOfRangeAt = this.#at
    return value
  }

  #enter(): void {
    this.#at++
    if (++this.#depth > MAX_DEPTH - 1) throw this.#error('recursion limit exceeded')
  }

  #space(): void {
    while (this.#at < this.#text.length && ' \t\r\n'.includes(this.#text[this.#at] as string)) this.#at++
  }

  /** @param peeked 1: about the character that stands here, 0: about what was read */
  #error(what: string, peeked: 0 | 1 = 0): JsonError {
    return new JsonError(`${what} at ${placeIn(this.#text, this.#at + peeked)}`)
  }
}

function placeIn(text: string, at: number): string {
  const lines = text.slice(0, at).split('\n')
  return `line ${lines.length} column ${lines.at(-1)?.length ?? 0}`
}

/** A document, or a list of documents. @throws JsonError */
export function documentsOfJson(text: string): Document[] {
  const reader = new Reader(text)
  const next = reader.peek()
  if (next !== '{' && next !== '[') {
    reader.value()
    reader.mustEnd()
    throw new JsonError('data are neither an object nor a list of objects')
  }
  const documents = next === '{' ? [reader.document()] : reader.list(() => documentOf(reader))
  reader.mustEnd()
  return documents
}

function documentOf(reader: Reader): Document {
  if (reader.peek() !== '{') throw new JsonError('data are neither an object nor a list of objects')
  return reader.document()
}

/** Documents behind each other, whatever space is between them. @throws JsonError, NotAMap */
export function documentsOfNdjson(text: string): Document[] {
  const reader = new Reader(text)
  const documents: Document[] = []
  while (!reader.isAtEnd) {
    if (reader.peek() === '[') throw new NotAMap('invalid type: sequence, expected a map at line 1 column 0')
    documents.push(documentOf(reader))
  }
  return documents
}

/** Any JSON. @throws JsonError */
export function parseJson(text: string): Value {
  const reader = new Reader(text)
  const value = reader.value()
  reader.mustEnd()
  return value
}

/** Integers beyond 2^53 keep their digits. */
export function printJson(value: Value): string {
  if (typeof value === 'bigint') return value.toString()
  if (Array.isArray(value)) return `[${value.map(printJson).join(',')}]`
  if (value !== null && typeof value === 'object')
    return `{${Object.entries(value)
      .map(([name, member]) => `${JSON.stringify(name)}:${printJson(member)}`)
      .join(',')}}`
  return JSON.stringify(value)
}
