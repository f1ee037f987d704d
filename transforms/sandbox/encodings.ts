/**
 * What functions have beside the language: TextEncoder and TextDecoder, base64, SHA-256 and random UUIDs. It reaches an
 * isolate as text, like the runtime beside it, and like that uses nothing from outside and nothing that user code could
 * replace later.
 */

/** Gives them to the context it runs in. @param seed random hex digits, for randomUUID */
export function encodings(seed: string): void {
  const { fromCharCode } = String
  const { defineProperty } = Object
  const Bytes = Uint8Array
  const Words = Uint32Array
  const WrongType = TypeError
  const { call } = Function.prototype
  const indexOf: (text: string, wanted: string, from?: number) => number = call.bind(String.prototype.indexOf)
  const slice: (text: string, from: number, to?: number) => string = call.bind(String.prototype.slice)
  const charCodeAt: (text: string, at: number) => number = call.bind(String.prototype.charCodeAt)
  const numberText: (value: number, radix: number) => string = call.bind(Number.prototype.toString)
  const give = (name: string, value: unknown) =>
    defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false })

  // UTF-8, as the Encoding standard has it
  const encode = (text: string): Uint8Array => {
    const bytes = new Bytes(text.length * 3)
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
    for (let i = 0; i < at; i++) exact[i] = bytes[i] ?? 0
    return exact
  }
  const decode = (bytes: Uint8Array, fatal: boolean): string => {
    let text = ''
    for (let i = 0; i < bytes.length;) {
      const first = bytes[i++] ?? 0
      let need =
        first < 0x80 ? 0 : first >= 0xc2 && first < 0xe0 ? 1 : first >= 0xe0 && first < 0xf0 ? 2 : first >= 0xf0 && first < 0xf5 ? 3 : -1
      let c = need === 0 ? first : need === 1 ? first & 31 : need === 2 ? first & 15 : first & 7
      let lower = first === 0xe0 ? 0xa0 : first === 0xf0 ? 0x90 : 0x80
      let upper = first === 0xed ? 0x9f : first === 0xf4 ? 0x8f : 0xbf
      let isWrong = need < 0
      for (; need > 0; need--) {
        const next = bytes[i] ?? -1
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
  const digit = (bits: number): string => slice(ALPHABET, bits & 63, (bits & 63) + 1)
  const toBase64 = (bytes: Uint8Array): string => {
    let text = ''
    for (let i = 0; i < bytes.length; i += 3) {
      const left = bytes.length - i
      const bits = ((bytes[i] ?? 0) << 16) | ((bytes[i + 1] ?? 0) << 8) | (bytes[i + 2] ?? 0)
      text += digit(bits >> 18) + digit(bits >> 12) + (left > 1 ? digit(bits >> 6) : '=') + (left > 2 ? digit(bits) : '=')
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
      const c = text[i] ?? ''
      const value = c === '-' ? 62 : c === '_' ? 63 : indexOf(ALPHABET, c)
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
    for (let i = 0; i < 8; i++) h[i] = H[i] ?? 0
    const { length } = bytes
    const blocks = ((length + 8) >> 6) + 1
    for (let block = 0; block < blocks; block++) {
      for (let i = 0; i < 16; i++) {
        let word = 0
        for (let j = 0; j < 4; j++) {
          const at = block * 64 + i * 4 + j
          word = (word << 8) | (bytes[at] ?? (at === length ? 0x80 : 0))
        }
        W[i] = word
      }
      if (block === blocks - 1) {
        W[14] = (length / 2 ** 29) >>> 0
        W[15] = length << 3
      }
      for (let i = 16; i < 64; i++) {
        const x = W[i - 15] ?? 0
        const y = W[i - 2] ?? 0
        const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3)
        const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10)
        W[i] = (W[i - 16] ?? 0) + s0 + (W[i - 7] ?? 0) + s1
      }
      let a = h[0] ?? 0
      let b = h[1] ?? 0
      let c = h[2] ?? 0
      let d = h[3] ?? 0
      let e = h[4] ?? 0
      let f = h[5] ?? 0
      let g = h[6] ?? 0
      let z = h[7] ?? 0
      for (let i = 0; i < 64; i++) {
        const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7))
        const t1 = (z + s1 + ((e & f) ^ (~e & g)) + (K[i] ?? 0) + (W[i] ?? 0)) | 0
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
      for (let i = 0; i < 8; i++) h[i] = (h[i] ?? 0) + (sums[i] ?? 0)
    }
    return h
  }
  const hex = (words: Uint32Array): string => {
    let text = ''
    for (let i = 0; i < words.length; i++) {
      const digits = numberText(words[i] ?? 0, 16)
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
      return encode(`${text}`)
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
    decode(bytes?: Uint8Array | ArrayBuffer): string {
      if (bytes === undefined) return ''
      return decode(bytes instanceof Bytes ? bytes : new Bytes(bytes), this.#fatal)
    }
  }
  give('TextEncoder', TextEncoder)
  give('TextDecoder', TextDecoder)
  give('sha256', (text: unknown) => hex(digest(bytesOf(text, 'sha256'))))
  give('base64Encode', (text: unknown) => toBase64(bytesOf(text, 'base64Encode')))
  give('base64Decode', (text: unknown) => fromBase64(`${text}`))
  give('btoa', (text: unknown) => {
    const latin = `${text}`
    const bytes = new Bytes(latin.length)
    for (let i = 0; i < latin.length; i++) {
      const c = charCodeAt(latin, i)
      if (c > 255) throw new RangeError('btoa takes characters up to U+00FF; base64Encode takes any text')
      bytes[i] = c
    }
    return toBase64(bytes)
  })
  give('atob', (text: unknown) => {
    const bytes = fromBase64(`${text}`)
    let latin = ''
    for (let i = 0; i < bytes.length; i++) latin += fromCharCode(bytes[i] ?? 0)
    return latin
  })
  give('randomUUID', () => {
    const h = hex(digest(encode(`${seed}${drawn++}`)))
    const variant = '89ab'[charCodeAt(h, 16) & 3]
    return `${slice(h, 0, 8)}-${slice(h, 8, 12)}-4${slice(h, 13, 16)}-${variant}${slice(h, 17, 20)}-${slice(h, 20, 32)}`
  })
}
