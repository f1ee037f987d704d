/**
 * What runs inside an isolate, around the user's function. It reaches the isolate as text (`runtime.toString()`), so it
 * uses nothing from outside, and nothing that user code could replace: what it needs of the language is taken here, before
 * any user code runs. It gives the user no reference to anything outside the isolate.
 *
 *  - Input is one string, a line of JSON a message; output one string, a line a message in their order:
 *    `+` and the result as JSON · `1` kept, `0` dropped · `-` and the failure as JSON. `#` and a list of texts, before the
 *    line it belongs to: what the function printed.
 *  - A message is parsed when its turn comes near, so that one run of a function can't touch the arguments of another.
 *  - Integers beyond ±2^53 are BigInt in the arguments, and a BigInt becomes its digits in the result: the digits are
 *    found in the text, replaced by a string that nothing else can hold, and put back as values after parsing.
 */

/** What `build` gives to the host. */
export type Runtime = Readonly<{
  /** Takes the user's function. @returns '' or what is wrong with it */
  attach: (fn: unknown, kind: string) => string
  /**
   * @param tail rest of the metadata, the same for all; @param from first message to run; @param until ms since the epoch
   * @returns the lines, behind a `.`, or `!` when messages are left
   */
  run: (lines: string, tail: string, from: number, until: number, maxResult: number) => string
  /** What was done when the last run was cut off, and then forgets it. */
  rest: () => string
}>

/** @param seed random hex digits: for randomUUID and for the string that stands for digits */
export function runtime(seed: string): Runtime {
  const { parse, stringify, rawJSON } = JSON as typeof JSON & { rawJSON: (text: string) => unknown }
  const { fromCharCode } = String
  const { now } = Date
  const { isFinite: isFiniteNumber } = Number
  const { isArray } = Array
  const { defineProperty } = Object
  const { deleteProperty, ownKeys } = Reflect
  const BigIntOf = BigInt
  const Bytes = Uint8Array
  const Words = Uint32Array
  const Failure = Error
  const WrongType = TypeError
  const call = Function.prototype.call
  // oxlint-disable-next-line typescript/no-explicit-any
  const uncurried = (method: unknown) => call.bind(method as never) as unknown as (...args: any[]) => any
  const indexOf = uncurried(String.prototype.indexOf) as (text: string, wanted: string, from?: number) => number
  const slice = uncurried(String.prototype.slice) as (text: string, from: number, to?: number) => string
  const charCodeAt = uncurried(String.prototype.charCodeAt) as (text: string, at: number) => number
  const replace = uncurried(RegExp.prototype[Symbol.replace]) as (re: RegExp, text: string, by: unknown) => string
  const exec = uncurried(RegExp.prototype.exec) as (re: RegExp, text: string) => RegExpExecArray | null
  const bigintText = uncurried(BigInt.prototype.toString) as (value: bigint, radix?: number) => string
  const numberText = uncurried(Number.prototype.toString) as (value: number, radix: number) => string
  const functionText = uncurried(Function.prototype.toString) as (value: unknown) => string

  const BATCH = 64
  const MARK = `\u0001${slice(seed, 0, 24)}:`
  const MANY_DIGITS = /[0-9]{16}/
  const AS_VALUE = /[:,[]\s*-?[0-9]{16}/
  /** strings as they are, and integers of 16 digits or more that stand as values */
  const LONG_INTEGERS = /"(?:[^"\\]|\\.)*"|(?<![0-9.eE+-])-?[0-9]{16,}(?![0-9.eE])/g
  /** What comes in from outside stands outside the heap, where nothing counts it, until the heap is collected. */
  const COLLECT_AFTER = 8_000_000
  const MAX_LINES = 50
  const MAX_LINE = 1000
  const MAX_TEXT = 2000
  const SAFE = 2n ** 53n

  // ── globals: what is taken away, and what is given ────────────────────────────────────────────────

  const scope = globalThis as unknown as Record<string, unknown>
  const collect = scope.gc as (() => void) | undefined
  for (const name of ['gc', 'WebAssembly', 'SharedArrayBuffer', 'Atomics', 'FinalizationRegistry', 'WeakRef'])
    if (!deleteProperty(scope, name)) defineProperty(scope, name, { value: undefined, writable: false })
  const give = (target: object, name: string, value: unknown) =>
    defineProperty(target, name, { value, writable: true, configurable: true, enumerable: false })
  const refuse = (what: string) => ({
    toJSON() {
      throw new WrongType(what)
    },
  })
  give(
    BigInt.prototype,
    'toJSON',
    {
      toJSON(this: bigint) {
        return rawJSON(bigintText(this))
      },
    }.toJSON,
  )
  give(Function.prototype, 'toJSON', refuse('the result holds a function').toJSON)
  give(Promise.prototype, 'toJSON', refuse('the result holds a promise: a function returns its result itself, it can not wait').toJSON)

  let logs: string[] = []
  let logged = 0
  const shown = (value: unknown): string => {
    if (typeof value === 'string') return value
    if (typeof value === 'function') return '[function]'
    if (value instanceof Failure) return `${value.name}: ${value.message}`
    try {
      return stringify(value) ?? String(value)
    } catch {
      return '[can not be shown]'
    }
  }
  const log = (...args: unknown[]): void => {
    if (logged++ >= MAX_LINES) return
    let line = ''
    for (let i = 0; i < args.length && line.length <= MAX_LINE; i++) line += (i > 0 ? ' ' : '') + shown(args[i])
    logs[logs.length] = line.length > MAX_LINE ? `${slice(line, 0, MAX_LINE)}…` : line
  }
  const console = {}
  for (const name of ['log', 'info', 'warn', 'error', 'debug']) give(console, name, (...args: unknown[]) => log(...args))
  give(scope, 'console', console)

  // UTF-8, as the Encoding standard has it
  const encode = (text: string): Uint8Array => {
    let bytes = new Bytes(text.length * 3)
    let at = 0
    for (let i = 0; i < text.length; i++) {
      let c = charCodeAt(text, i)
      if (c >= 0xd800 && c < 0xe000) {
        const low = c < 0xdc00 && i + 1 < text.length ? charCodeAt(text, i + 1) : 0
        if (low >= 0xdc00 && low < 0xe000) {
          c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00)
          i++
        } else c = 0xfffd
      }
      if (c < 0x80) bytes[at++] = c
      else if (c < 0x800) {
        bytes[at++] = 0xc0 | (c >> 6)
        bytes[at++] = 0x80 | (c & 63)
      } else if (c < 0x10000) {
        bytes[at++] = 0xe0 | (c >> 12)
        bytes[at++] = 0x80 | ((c >> 6) & 63)
        bytes[at++] = 0x80 | (c & 63)
      } else {
        bytes[at++] = 0xf0 | (c >> 18)
        bytes[at++] = 0x80 | ((c >> 12) & 63)
        bytes[at++] = 0x80 | ((c >> 6) & 63)
        bytes[at++] = 0x80 | (c & 63)
      }
    }
    const exact = new Bytes(at)
    for (let i = 0; i < at; i++) exact[i] = bytes[i] as number
    bytes = exact
    return bytes
  }
  const decode = (bytes: Uint8Array, fatal: boolean): string => {
    let text = ''
    for (let i = 0; i < bytes.length;) {
      const first = bytes[i++] as number
      let need =
        first < 0x80 ? 0 : first >= 0xc2 && first < 0xe0 ? 1 : first >= 0xe0 && first < 0xf0 ? 2 : first >= 0xf0 && first < 0xf5 ? 3 : -1
      let c = need === 0 ? first : need === 1 ? first & 31 : need === 2 ? first & 15 : first & 7
      let lower = first === 0xe0 ? 0xa0 : first === 0xf0 ? 0x90 : 0x80
      let upper = first === 0xed ? 0x9f : first === 0xf4 ? 0x8f : 0xbf
      let isWrong = need < 0
      for (; need > 0; need--) {
        const next = i < bytes.length ? (bytes[i] as number) : -1
        if (next < lower || next > upper) {
          isWrong = true
          break
        }
        lower = 0x80
        upper = 0xbf
        c = (c << 6) | (next & 63)
        i++
      }
      if (isWrong && fatal) throw new WrongType('the bytes are not UTF-8')
      if (isWrong) c = 0xfffd
      text += c < 0x10000 ? fromCharCode(c) : fromCharCode(0xd800 + ((c - 0x10000) >> 10), 0xdc00 + ((c - 0x10000) & 1023))
    }
    return text
  }
  const bytesOf = (value: unknown, what: string): Uint8Array => {
    if (typeof value === 'string') return encode(value)
    if (value instanceof Bytes) return value
    throw new WrongType(`${what} takes a text or a Uint8Array`)
  }
  const ALPHABET = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'
  const toBase64 = (bytes: Uint8Array): string => {
    let text = ''
    for (let i = 0; i < bytes.length; i += 3) {
      const left = bytes.length - i
      const a = bytes[i] as number
      const b = left > 1 ? (bytes[i + 1] as number) : 0
      const c = left > 2 ? (bytes[i + 2] as number) : 0
      text +=
        (ALPHABET[a >> 2] as string) +
        (ALPHABET[((a & 3) << 4) | (b >> 4)] as string) +
        (left > 1 ? (ALPHABET[((b & 15) << 2) | (c >> 6)] as string) : '=') +
        (left > 2 ? (ALPHABET[c & 63] as string) : '=')
    }
    return text
  }
  const fromBase64 = (text: string): Uint8Array => {
    let length = text.length
    while (length > 0 && text[length - 1] === '=') length--
    if (length % 4 === 1 || text.length - length > 2) throw new WrongType('the text is not Base64')
    const bytes = new Bytes((length * 3) >> 2)
    let bits = 0
    let at = 0
    for (let i = 0; i < length; i++) {
      const c = text[i] === '-' ? '+' : text[i] === '_' ? '/' : (text[i] as string)
      const value = indexOf(ALPHABET, c)
      if (value < 0) throw new WrongType('the text is not Base64')
      bits = ((bits << 6) | value) & 0xffffff
      if ((i & 3) !== 0) bytes[at++] = (bits >> (6 - 2 * (i & 3))) & 255
    }
    return bytes
  }

  // SHA-256, FIPS 180-4; the constants are the fractions of roots of the first primes
  const K = new Words(64)
  const H = new Words(8)
  {
    const { pow } = Math
    const fraction = (x: number) => (x - (x >>> 0)) * 2 ** 32
    for (let n = 2, i = 0; i < 64; n++) {
      let isPrime = true
      for (let d = 2; d * d <= n; d++) if (n % d === 0) isPrime = false
      if (!isPrime) continue
      if (i < 8) H[i] = fraction(pow(n, 1 / 2))
      K[i++] = fraction(pow(n, 1 / 3))
    }
  }
  const W = new Words(64)
  const digest = (bytes: Uint8Array): Uint32Array => {
    const h = new Words(8)
    for (let i = 0; i < 8; i++) h[i] = H[i] as number
    const { length } = bytes
    const blocks = ((length + 8) >> 6) + 1
    for (let block = 0; block < blocks; block++) {
      for (let i = 0; i < 16; i++) {
        let word = 0
        for (let j = 0; j < 4; j++) {
          const at = block * 64 + i * 4 + j
          word = (word << 8) | (at < length ? (bytes[at] as number) : at === length ? 0x80 : 0)
        }
        W[i] = word
      }
      if (block === blocks - 1) {
        W[14] = (length / 2 ** 29) >>> 0
        W[15] = length << 3
      }
      for (let i = 16; i < 64; i++) {
        const x = W[i - 15] as number
        const y = W[i - 2] as number
        const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3)
        const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10)
        W[i] = (W[i - 16] as number) + s0 + (W[i - 7] as number) + s1
      }
      let a = h[0] as number
      let b = h[1] as number
      let c = h[2] as number
      let d = h[3] as number
      let e = h[4] as number
      let f = h[5] as number
      let g = h[6] as number
      let z = h[7] as number
      for (let i = 0; i < 64; i++) {
        const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7))
        const t1 = (z + s1 + ((e & f) ^ (~e & g)) + (K[i] as number) + (W[i] as number)) | 0
        const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10))
        const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0
        z = g
        g = f
        f = e
        e = (d + t1) | 0
        d = c
        c = b
        b = a
        a = (t1 + t2) | 0
      }
      const sums = [a, b, c, d, e, f, g, z]
      for (let i = 0; i < 8; i++) h[i] = (h[i] as number) + (sums[i] as number)
    }
    return h
  }
  const hex = (words: Uint32Array): string => {
    let text = ''
    for (let i = 0; i < words.length; i++) {
      const digits = numberText(words[i] as number, 16)
      text += slice('00000000', digits.length) + digits
    }
    return text
  }
  let drawn = 0

  class TextEncoder {
    get encoding(): string {
      return 'utf-8'
    }
    encode(text: unknown = ''): Uint8Array {
      return encode(`${text as string}`)
    }
  }
  class TextDecoder {
    readonly #fatal: boolean
    constructor(label: unknown = 'utf-8', options: { fatal?: boolean } = {}) {
      if (label !== 'utf-8' && label !== 'utf8') throw new RangeError('TextDecoder knows utf-8 only')
      this.#fatal = options.fatal === true
    }
    get encoding(): string {
      return 'utf-8'
    }
    decode(bytes: unknown): string {
      if (bytes === undefined) return ''
      return decode(bytes instanceof Bytes ? bytes : new Bytes(bytes as ArrayBuffer), this.#fatal)
    }
  }
  give(scope, 'TextEncoder', TextEncoder)
  give(scope, 'TextDecoder', TextDecoder)
  give(scope, 'sha256', (text: unknown) => hex(digest(bytesOf(text, 'sha256'))))
  give(scope, 'base64Encode', (text: unknown) => toBase64(bytesOf(text, 'base64Encode')))
  give(scope, 'base64Decode', (text: unknown) => fromBase64(`${text as string}`))
  give(scope, 'btoa', (text: unknown) => {
    const latin = `${text as string}`
    const bytes = new Bytes(latin.length)
    for (let i = 0; i < latin.length; i++) {
      const c = charCodeAt(latin, i)
      if (c > 255) throw new RangeError('btoa takes characters up to U+00FF; base64Encode takes any text')
      bytes[i] = c
    }
    return toBase64(bytes)
  })
  give(scope, 'atob', (text: unknown) => {
    const bytes = fromBase64(`${text as string}`)
    let latin = ''
    for (let i = 0; i < bytes.length; i++) latin += fromCharCode(bytes[i] as number)
    return latin
  })
  give(scope, 'randomUUID', () => {
    const h = hex(digest(encode(`${seed}${drawn++}`)))
    const variant = '89ab'[charCodeAt(h, 16) & 3] as string
    return `${slice(h, 0, 8)}-${slice(h, 8, 12)}-4${slice(h, 13, 16)}-${variant}${slice(h, 17, 20)}-${slice(h, 20, 32)}`
  })

  // ── arguments ─────────────────────────────────────────────────────────────────────────────────────

  const marked = (found: string): string => {
    if (found[0] === '"') return found
    const value = BigIntOf(found)
    return value <= SAFE && value >= -SAFE ? found : `"${slice(stringify(MARK), 1, -1)}${found}"`
  }
  const restored = (value: unknown): unknown => {
    if (typeof value === 'string') return indexOf(value, MARK) === 0 ? BigIntOf(slice(value, MARK.length)) : value
    if (typeof value !== 'object' || value === null) return value
    const holder = value as Record<string, unknown>
    if (isArray(value)) for (let i = 0; i < value.length; i++) value[i] = restored(value[i])
    else {
      const keys = ownKeys(holder) as string[]
      for (let i = 0; i < keys.length; i++) {
        const key = keys[i] as string
        const inner = holder[key]
        const now = restored(inner)
        if (now !== inner) defineProperty(holder, key, { value: now, writable: true, enumerable: true, configurable: true })
      }
    }
    return value
  }
  type Named = { id: string; name: string; annotations: unknown; database?: string; hostname?: string }
  type Message = { action: string; record: unknown; changes: unknown; metadata: Record<string, unknown> }
  const parsed = (text: string): Message[] =>
    exec(MANY_DIGITS, text) === null || exec(AS_VALUE, text) === null
      ? (parse(text) as Message[])
      : (restored(parse(replace(LONG_INTEGERS, text, marked))) as Message[])

  // ── results ───────────────────────────────────────────────────────────────────────────────────────

  const bounded = (text: unknown): string => {
    const whole = typeof text === 'string' ? text : shown(text)
    return whole.length > MAX_TEXT ? `${slice(whole, 0, MAX_TEXT)}…` : whole
  }
  const failed = (error: unknown): string => {
    let name = 'Error'
    let message = ''
    let stack = ''
    try {
      if (error instanceof Failure) {
        name = bounded(error.name)
        message = bounded(error.message)
        stack = bounded(error.stack)
      } else message = `thrown: ${bounded(error)}`
    } catch {
      message = 'what was thrown can not be read'
    }
    return failure(name, message, stack)
  }
  const failure = (name: string, message: string, stack: string): string => {
    try {
      return `-${stringify({ name, message, stack })}\n`
    } catch {
      return '-\n' // the language itself has been changed
    }
  }
  const wrong = (message: string): string => failure('TypeError', message, '')
  /** JSON has no word for these and would write null. */
  const holdsNonFinite = (value: unknown, depth: number): boolean => {
    if (typeof value === 'number') return !isFiniteNumber(value)
    if (typeof value !== 'object' || value === null || depth > 100) return false
    if (isArray(value)) {
      for (let i = 0; i < value.length; i++) if (holdsNonFinite(value[i], depth + 1)) return true
      return false
    }
    for (const key in value) if (holdsNonFinite((value as Record<string, unknown>)[key], depth + 1)) return true
    return false
  }

  let fn: (action: string, record: unknown, changes: unknown, metadata: unknown) => unknown
  let kind = ''
  let out = ''
  let taken = 0

  const line = (m: Message, metadata: unknown, maxResult: number): string => {
    let text: string
    try {
      const result = fn(m.action, m.record, m.changes, metadata)
      if (kind === 'filter') {
        if (result === true) return '1\n'
        if (result === false) return '0\n'
        return wrong(`a filter returns true or false, this one returned ${kindOf(result)}`)
      }
      if (result === undefined) return wrong('the function returned nothing (undefined)')
      if (typeof result === 'object' && result !== null && typeof (result as { then?: unknown }).then === 'function')
        return wrong('the function returned a promise: a function returns its result itself, it can not wait')
      if (kind === 'routing' && (typeof result !== 'object' || result === null || isArray(result)))
        return wrong(`a routing function returns an object, this one returned ${kindOf(result)}`)
      text = stringify(result)
      if (typeof text !== 'string') return wrong(`the function returned ${kindOf(result)}, which JSON has no form for`)
      if (indexOf(text, 'null') >= 0 && holdsNonFinite(result, 0))
        return wrong('the result holds NaN or Infinity, which JSON has no form for')
    } catch (error) {
      return failed(error)
    }
    if (text.length > maxResult) return wrong(`the result has ${text.length} characters, more than ${maxResult}`)
    return `+${text}\n`
  }
  const kindOf = (value: unknown): string => {
    if (value === null) return 'null'
    if (value === undefined) return 'nothing (undefined)'
    if (isArray(value)) return 'a list'
    if (typeof value === 'object') return typeof (value as { then?: unknown }).then === 'function' ? 'a promise' : 'an object'
    if (typeof value === 'string') return 'a text'
    if (typeof value === 'function') return 'a function'
    return `${typeof value} ${String(value)}`
  }

  /** A copy for one message: nothing that a function changes is seen by its next run. */
  const copied = (named: Named, isEmpty: boolean, annotations: string): Named => {
    const { id, name, database, hostname } = named
    const own = isEmpty ? {} : parse(annotations)
    return hostname === undefined ? { id, name, annotations: own } : { id, name, annotations: own, database, hostname }
  }

  return {
    attach(value, of) {
      kind = of
      if (typeof value !== 'function') return 'the default export is not a function'
      const text = functionText(value)
      if (exec(/^class\b/, text) !== null) return 'the default export is a class; export a function'
      if (exec(/^async\s*(?:function\b|\(|\*|[\w$]+\s*=>)|^function\s*\*|^\*/, text) !== null)
        return 'the function must be a plain one, not async and no generator: it returns its result itself, it can not wait'
      if (value.length > 4) return 'the function takes at most four parameters: action, record, changes, metadata'
      fn = value as typeof fn
      return ''
    },
    run(lines, tail, from, until, maxResult) {
      out = ''
      taken += lines.length
      if (taken > COLLECT_AFTER) {
        taken = 0
        collect?.()
      }
      const { database_name, consumer, database } = parse(tail) as { database_name: string; consumer: Named; database: Named }
      const ofConsumer = stringify(consumer.annotations)
      const ofDatabase = stringify(database.annotations)
      let start = 0
      for (let i = 0; i < from; i++) start = indexOf(lines, '\n', start) + 1
      while (start < lines.length) {
        let stop = start
        let count = 0
        for (; count < BATCH && stop < lines.length; count++) stop = indexOf(lines, '\n', stop) + 1
        const messages = parsed(`[${slice(lines, start, stop - 2)}]`)
        for (let i = 0; i < count; i++) {
          const m = messages[i] as Message
          const { metadata } = m
          if (metadata !== undefined) {
            if (metadata.enrichment === undefined) metadata.enrichment = null
            metadata.database_name = database_name
            metadata.consumer = copied(consumer, ofConsumer === '{}', ofConsumer)
            metadata.database = copied(database, ofDatabase === '{}', ofDatabase)
          }
          logs = []
          logged = 0
          const result = line(m, metadata, maxResult)
          if (logged > 0) out += `#${stringify(logs)}\n`
          out += result
          if ((out.length > maxResult || now() >= until) && (i + 1 < count || stop < lines.length)) return `!${out}`
        }
        start = stop
      }
      return `.${out}`
    },
    rest() {
      const done = out
      out = ''
      return done
    },
  }
}
