/** Frames as the wire brings them: of any size, cut anywhere, whole again on the other side. */
import assert from 'node:assert/strict'
import fc from '../../../services/fast-check.ts'
import { test } from 'node:test'
import { EngineError } from '../../../../engine/errors.ts'
import { FrameSplitter } from '../../../../engine/wal/connection/replication-wire.ts'

/** Of a frame: tag and length. */
const HEADER_BYTES = 5

const MAX_BODY_BYTES = 300_000

function frame(tag: number, bodyBytes: number, seed: number): Buffer {
  const bytes = Buffer.allocUnsafe(HEADER_BYTES + bodyBytes)
  bytes.writeUInt8(tag, 0)
  bytes.writeUInt32BE(4 + bodyBytes, 1)
  let state = seed | 1
  for (let i = HEADER_BYTES; i < bytes.length; i++) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) | 0
    bytes[i] = state >>> 24
  }
  return bytes
}

/** Feeds it as a socket does that reads into one buffer again and again: nothing that is kept may lie in it. */
function split(chunks: readonly Buffer[]): Buffer[] {
  const seen: Buffer[] = []
  const splitter = new FrameSplitter((bytes, start, end) => void seen.push(Buffer.from(bytes.subarray(start, end))))
  for (const chunk of chunks) {
    const lent = Buffer.from(chunk)
    splitter.push(lent)
    lent.fill(0xff)
  }
  return seen
}

/** @param cuts shares of the whole, 0..1, in any order */
function cutAt(bytes: Buffer, cuts: readonly number[]): Buffer[] {
  const ends = [...cuts.map((share) => Math.floor(share * bytes.length)), bytes.length].sort((a, b) => a - b)
  return ends.map((end, i) => bytes.subarray(ends[i - 1] ?? 0, end))
}

// most frames are small, some are empty, a few are greater than any chunk
const bodyBytes = fc.oneof(
  { weight: 4, arbitrary: fc.integer({ min: 0, max: 12 }) },
  { weight: 3, arbitrary: fc.integer({ min: 0, max: 2_000 }) },
  { weight: 1, arbitrary: fc.integer({ min: 60_000, max: 70_000 }) },
  { weight: 1, arbitrary: fc.integer({ min: 0, max: MAX_BODY_BYTES }) },
)
const frames = fc.array(
  fc.tuple(fc.integer({ min: 0, max: 255 }), bodyBytes, fc.integer()).map(([tag, bytes, seed]) => frame(tag, bytes, seed)),
  { maxLength: 12 },
)
const cuts = fc.array(fc.double({ min: 0, max: 1, noNaN: true }), { maxLength: 30 })

test('frames of any size cut at any places come out whole, in order, byte for byte', () => {
  fc.assert(
    fc.property(frames, cuts, (sent, shares) => {
      const seen = split(cutAt(Buffer.concat(sent), shares))
      assert.equal(seen.length, sent.length)
      for (const [i, bytes] of sent.entries()) assert.ok(bytes.equals(seen[i] as Buffer), `frame ${i} of ${bytes.length} bytes`)
    }),
    { numRuns: 300 },
  )
})

test('frames that come one byte at a time come out whole, and what follows a great one too', () => {
  const sent = [frame(0x64, 0, 1), frame(0x64, 3, 2), frame(0x43, 70_000, 3), frame(0x64, 0, 4), frame(0x64, 9, 5)]
  const bytes = Buffer.concat(sent)
  const seen = split(Array.from(bytes, (_, i) => bytes.subarray(i, i + 1)))
  assert.deepEqual(seen, sent)
})

test('what large frames take is used again, or freed as soon as they were read', () => {
  for (const bytes of [1_000_000, 10_000_000]) {
    const sent = [1, 2, 3].map((seed) => frame(0x64, bytes, seed))
    const memories = new Set<ArrayBufferLike>()
    const seen: Buffer[] = []
    const splitter = new FrameSplitter((whole, start, end) => {
      memories.add(whole.buffer)
      seen.push(Buffer.from(whole.subarray(start, end)))
    })
    for (const each of sent) for (const chunk of cutAt(each, [0.000_000_2, 0.1, 0.5, 0.9])) splitter.push(chunk)
    assert.deepEqual(seen, sent)
    const left = [...memories].filter(({ byteLength }) => byteLength > 0)
    assert.ok(left.length <= (bytes < 4_000_000 ? 1 : 0), `${left.length} frames of ${bytes} bytes are in memory`)
  }
})

test('a length below four is malformed, wherever the frame is cut', () => {
  fc.assert(
    fc.property(frames, fc.integer({ min: 0, max: 3 }), fc.integer({ min: 0, max: 255 }), cuts, (before, length, tag, shares) => {
      const bad = Buffer.from([tag, 0, 0, 0, length])
      assert.throws(() => split(cutAt(Buffer.concat([...before, bad]), shares)), { name: 'EngineError', code: 'MESSAGE_MALFORMED' })
    }),
    { numRuns: 100 },
  )
})

test('a length above what a server can send is malformed, instead of memory that nobody has', () => {
  for (const length of [0x4000_0004, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff]) {
    const bad = Buffer.alloc(HEADER_BYTES)
    bad.writeUInt32BE(length, 1)
    assert.throws(() => split([frame(0x64, 3, 1), bad]), { name: 'EngineError', code: 'MESSAGE_MALFORMED' })
  }
})

test('random bytes end in frames, in a frame that waits for more, or in MESSAGE_MALFORMED', () => {
  const bytes = fc.oneof(
    fc.uint8Array({ maxLength: 4_000 }),
    // lengths small enough to be met: the random ones above nearly all wait for gigabytes
    fc
      .array(fc.tuple(fc.integer({ min: 0, max: 255 }), fc.integer({ min: 0, max: 40 })), { maxLength: 200 })
      .map((pairs) => Uint8Array.from(pairs.flatMap(([tag, length]) => [tag, 0, 0, 0, length]))),
  )
  fc.assert(
    fc.property(bytes, cuts, (random, shares) => {
      const all = Buffer.from(random)
      const seen: Buffer[] = []
      const splitter = new FrameSplitter((b, start, end) => void seen.push(Buffer.from(b.subarray(start, end))))
      try {
        for (const chunk of cutAt(all, shares)) splitter.push(chunk)
      } catch (error) {
        assert.ok(error instanceof EngineError && error.code === 'MESSAGE_MALFORMED', String(error))
      }
      const whole = Buffer.concat(seen)
      assert.ok(whole.equals(all.subarray(0, whole.length)), 'what came out is the beginning of what went in')
    }),
    { numRuns: 500 },
  )
})
