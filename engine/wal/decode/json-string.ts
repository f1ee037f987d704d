/**
 * Postgres text to a JSON string, byte for byte. Runs without anything to escape are copied four bytes at a time. The
 * result is valid UTF-8 whatever came (a database in SQL_ASCII may hold anything): bytes that are not become U+FFFD.
 */
import type { ByteWriter } from '../../byte-writer.ts'

const QUOTE = 0x22
const BACKSLASH = 0x5c

/** For each byte: 0 copied as it is, 1 begins a sequence of UTF-8, else what stands behind the backslash ('u': \u00XX). */
const CLASS = new Uint8Array(256)
CLASS.fill(0x75 /* u */, 0, 0x20)
CLASS.fill(1, 0x80)
CLASS[0x08] = 0x62 /* b */
CLASS[0x09] = 0x74 /* t */
CLASS[0x0a] = 0x6e /* n */
CLASS[0x0c] = 0x66 /* f */
CLASS[0x0d] = 0x72 /* r */
CLASS[QUOTE] = QUOTE
CLASS[BACKSLASH] = BACKSLASH

const HEX = Buffer.from('0123456789abcdef')
/** the longest escape */
const MOST = 6

/**
 * Writes the bytes from `start` to `end` of `text` as a JSON string with its quotes.
 */
export function writeString(out: ByteWriter, text: DataView, start: number, end: number): void {
  out.reserve(end - start + 8)
  out.buffer[out.length++] = QUOTE
  writeEscaped(out, text, start, end)
  out.byte(QUOTE)
}

/** Writes a string without its quotes: for one that is put together from parts. */
function writeEscaped(out: ByteWriter, text: DataView, start: number, end: number): void {
  out.reserve(end - start + MOST)
  let { buffer, words } = out
  let o = out.length
  let i = start
  while (i < end) {
    // four bytes at once: none below 0x20, no quote, no backslash, none above 0x7f. A borrow may report one too many, never one too few
    for (const last = end - 4; i <= last; i += 4, o += 4) {
      const word = text.getInt32(i, true)
      if ((((word - 0x20202020) | ((word ^ 0x22222222) - 0x01010101) | ((word ^ 0x5c5c5c5c) - 0x01010101) | word) & 0x80808080) !== 0) break
      words.setInt32(o, word, true)
    }
    // then one by one, until past the word that had something in it
    for (const until = i + 4 < end ? i + 4 : end; i < until;) {
      const byte = text.getUint8(i)
      const kind = CLASS[byte] as number
      if (kind === 0) {
        buffer[o++] = byte
        i++
        continue
      }
      if (o + MOST + (end - i) > buffer.length) {
        out.length = o
        out.reserve(MOST + 2 * (end - i)) // what needs escapes once will likely need more
        buffer = out.buffer
        words = out.words
      }
      if (kind === 1) {
        const size = sequenceLength(text, i, end)
        if (size === 0) {
          buffer[o++] = 0xef
          buffer[o++] = 0xbf
          buffer[o++] = 0xbd
          i++
        } else for (const next = i + size; i < next; i++) buffer[o++] = text.getUint8(i)
        continue
      }
      buffer[o++] = BACKSLASH
      buffer[o++] = kind
      if (kind === 0x75) {
        buffer[o++] = 0x30
        buffer[o++] = 0x30
        buffer[o++] = HEX[byte >> 4] as number
        buffer[o++] = HEX[byte & 15] as number
      }
      i++
    }
  }
  out.length = o
}

/** Bytes of the UTF-8 sequence that begins at `at`; 0: it isn't one (cut short, overlong, a surrogate, above U+10FFFF). */
function sequenceLength(text: DataView, at: number, end: number): number {
  const lead = text.getUint8(at)
  const size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2
  if (lead < 0xc2 || lead > 0xf4 || at + size > end) return 0
  const second = text.getUint8(at + 1)
  if ((second & 0xc0) !== 0x80) return 0
  if (size === 2) return 2
  if ((text.getUint8(at + 2) & 0xc0) !== 0x80) return 0
  if (lead === 0xe0 && second < 0xa0) return 0
  if (lead === 0xed && second > 0x9f) return 0
  if (size === 3) return 3
  if ((text.getUint8(at + 3) & 0xc0) !== 0x80) return 0
  if (lead === 0xf0 && second < 0x90) return 0
  if (lead === 0xf4 && second > 0x8f) return 0
  return 4
}
