/**
 * Looks into an object or a list of JSON bytes without parsing it: where the value of a member stands, and what a strict reader on
 * the other side would stumble over. Bytes that Postgres or a function has made are known to be JSON; of those that somebody else
 * sent, what is found may still be none, and whoever reads them is ready for a RangeError.
 */
const QUOTE = 0x22
const BACKSLASH = 0x5c
const COMMA = 0x2c
const COLON = 0x3a
const OPEN_OBJECT = 0x7b
const CLOSE_OBJECT = 0x7d
const OPEN_LIST = 0x5b
const CLOSE_LIST = 0x5d
/** Shorter digits without an exponent are below the largest float64. */
const SAFE_NUMBER_LENGTH = 300

/** A part of some bytes. */
export type ByteSpan = Readonly<{ start: number; end: number }>

/** A cursor over the members of an object, or the elements of a list. */
export class JsonMembers {
  readonly #bytes: Buffer
  #at: number
  #depth = 0
  /** how deep objects and lists lie in each other, the object that is read included */
  depth = 1
  /** somewhere is a number that no float64 holds */
  isOutOfRange = false

  /** @param start where the first member's name stands, or the end of the object */
  constructor(bytes: Buffer, start: number) {
    this.#bytes = bytes
    this.#at = start
  }

  /** The members of the object whose brace stands at or after `start`. @returns undefined: it is no object */
  static of(bytes: Buffer, start: number): JsonMembers | undefined {
    const members = new JsonMembers(bytes, start)
    if (members.#space() !== OPEN_OBJECT) return undefined
    members.#at++
    return members
  }

  /** @returns the name with its quotes, or undefined at the end; its value has to be read before the next name */
  name(): ByteSpan | undefined {
    let byte = this.#space()
    if (byte === COMMA) {
      this.#at++
      byte = this.#space()
    }
    if (byte !== QUOTE) return undefined
    const name = this.#string()
    this.#space()
    this.#at++ // the colon
    return name
  }

  /** The elements of the list whose bracket stands at or after `start`. @returns undefined: it is no list */
  static list(bytes: Buffer, start: number): JsonMembers | undefined {
    const elements = new JsonMembers(bytes, start)
    if (elements.#space() !== OPEN_LIST) return undefined
    elements.#at++
    return elements
  }

  /** The next element of a list, or undefined at its end. @throws RangeError: it is longer than so many bytes */
  element(most?: number): ByteSpan | undefined {
    if (this.#space() === COMMA) this.#at++
    return this.#space() === CLOSE_LIST ? undefined : this.value(most)
  }

  /** The value that stands here. @throws RangeError: it is longer than so many bytes */
  value(most = Infinity): ByteSpan {
    this.#space()
    const start = this.#at
    do {
      this.#token()
      if (this.#at - start > most) throw new RangeError(`a value of more than ${most} bytes`)
    } while (this.#depth > 0)
    return { start, end: this.#at }
  }

  /** The text, number, true, false or null that stands here; undefined: an object or a list does, which is passed. */
  scalar(): string | number | boolean | null | undefined {
    const byte = this.#space()
    const { start, end } = this.value()
    if (byte === OPEN_OBJECT || byte === OPEN_LIST) return undefined
    return JSON.parse(this.#bytes.toString('utf8', start, end)) // a token of JSON that is neither
  }

  /** Where the value stands whose name was read. */
  get at(): number {
    return this.#at
  }

  is(name: ByteSpan, text: string): boolean {
    const raw = this.#bytes.toString('utf8', name.start, name.end)
    return raw.includes('\\') ? JSON.parse(raw) === text : raw.length === text.length + 2 && raw.startsWith(text, 1)
  }

  #token(): void {
    const byte = this.#space()
    switch (byte) {
      case QUOTE:
        this.#string()
        return
      case OPEN_OBJECT:
      case OPEN_LIST:
        this.#at++
        this.depth = Math.max(this.depth, 1 + ++this.#depth)
        return
      case CLOSE_OBJECT:
      case CLOSE_LIST:
        this.#at++
        this.#depth--
        return
      case COMMA:
      case COLON:
        this.#at++
        return
    }
    this.#scalar()
  }

  #string(): ByteSpan {
    const bytes = this.#bytes
    const start = this.#at
    let at = start + 1
    while (bytes[at] !== QUOTE) {
      at += bytes[at] === BACKSLASH ? 2 : 1
      if (at >= bytes.length) throw new RangeError('a text without an end')
    }
    this.#at = at + 1
    return { start, end: this.#at }
  }

  /** A number, true, false or null. */
  #scalar(): void {
    const bytes = this.#bytes
    const start = this.#at
    let at = start
    let hasExponent = false
    for (let byte = bytes[at]; byte !== undefined && isScalar(byte); byte = bytes[++at]) hasExponent ||= byte === 0x65 || byte === 0x45
    if (at === start) throw new RangeError('not the bytes of JSON')
    this.#at = at
    const isNumber = (bytes[start] ?? 0) <= 0x39 // "-" and digits
    if (isNumber && (hasExponent || at - start > SAFE_NUMBER_LENGTH))
      this.isOutOfRange ||= !Number.isFinite(Number(bytes.toString('latin1', start, at)))
  }

  /** @returns the byte that is no space */
  #space(): number {
    for (;;) {
      const byte = this.#bytes[this.#at]
      if (byte === undefined) throw new RangeError('JSON without an end')
      if (byte !== 0x20 && byte !== 0x0a && byte !== 0x0d && byte !== 0x09) return byte
      this.#at++
    }
  }
}

/** letters, digits, "+", "-" and "." */
const isScalar = (byte: number) =>
  (byte >= 0x61 && byte <= 0x7a) || (byte >= 0x30 && byte <= 0x39) || byte === 0x2d || byte === 0x2e || byte === 0x2b || byte === 0x45
