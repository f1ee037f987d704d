/** Packs in parts: runs that die within one, and runs that write late between the parts of another's. */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { comparePositions, ORIGIN, type Position } from '../../../engine/position.ts'
import { PackBuilder } from '../../../engine/log/pack-builder.ts'
import { ACTION, compressPack, Pack } from '../../../engine/log/pack.ts'
import { isWholeWith, PartJoiner, PartPlaces, splitPack } from '../../../engine/log/pack-parts.ts'
import { Random } from '../../faults/random.ts'

const SEEDS = 300
const MESSAGES = 25
const PART_BYTES = 300

function pack(lsn: number, term: number, body: Buffer): Buffer {
  const builder = new PackBuilder({ history: 0, term, routing: 1 })
  builder.begin(BigInt(lsn), lsn, lsn)
  builder.bodies.copy(body)
  builder.add(0, 1, ACTION.insert, 1, 0, lsn, 0, 0)
  return compressPack(builder.encode())
}

const bodyOf = (record: Buffer) => {
  const decoded = Pack.decode(record)
  return decoded.buffer.subarray(decoded.bodyStart(0), decoded.bodyEnd(0))
}

test('a pack in parts is put together byte for byte, compressed or not, and no part passes for a pack', async () => {
  for (const body of [randomBytes(5_000), Buffer.from(randomBytes(5_000).toString('hex'))]) {
    const whole = pack(1, 1, body)
    const parts = splitPack(whole, PART_BYTES)
    assert.ok(parts.length > 1 && parts.every((part) => part.length <= PART_BYTES))
    const joiner = new PartJoiner({ fetch: () => assert.fail('nothing is missing'), places: new PartPlaces(() => 0) })
    const out = (await Promise.all(parts.map((part, i) => joiner.push({ offset: 10 + i, pack: part })))).filter((record) => record)
    assert.deepEqual(out, [{ offset: 9 + parts.length, pack: whole }])
    assert.ok(bodyOf(out[0]?.pack as Buffer).equals(body))
    assert.deepEqual(Pack.header(parts[1] as Buffer), Pack.header(whole))
    assert.deepEqual([whole, ...parts.slice(-2)].map(isWholeWith), [true, false, true])
    assert.throws(() => Pack.decode(parts[0] as Buffer), { code: 'PACK_MALFORMED' })
  }
})

const at = (n: number): Position => ({ history: 0, lsn: BigInt(n), idx: 0, part: 1 })

type Got = { lsn: number; offset: number }

/** What a reader that begins at an offset gets: the messages above its filter, as the dispatcher accepts them. @param first what is below was trimmed */
async function read(log: readonly Buffer[], from: number, filter: Position, first = 0): Promise<{ got: Got[]; places: PartPlaces }> {
  const places = new PartPlaces(() => 0)
  const joiner = new PartJoiner({ fetch: async (offset) => (offset < first ? undefined : log[offset]), places })
  const got: Got[] = []
  let greatest = filter
  for (let offset = from; offset < log.length; offset++) {
    const record = await joiner.push({ offset, pack: log[offset] as Buffer })
    places.met(offset, offset + 1)
    if (!record) continue
    assert.equal(record.offset, offset)
    const position = Pack.decode(record.pack).position(0)
    if (comparePositions(position, greatest) <= 0) continue
    greatest = position
    got.push({ lsn: Number(position.lsn), offset })
  }
  return { got, places }
}

test('whatever runs leave half-written or write late, every message comes once, in order, also after a restart at any place', async () => {
  let halves = 0
  for (let seed = 1; seed <= SEEDS; seed++) {
    const random = new Random(seed)
    const log: Buffer[] = []
    const sizes = Array.from({ length: MESSAGES + 1 }, () => (random.chance(0.3) ? random.int(400, 1_500) : 20))
    let confirmed = 0
    /** what the run before has handed to the network, and what may still arrive of it */
    let late: Buffer[] = []
    /** where the log ended before a message was written for the first time: nothing above that one stands below */
    const ends: Got[] = []
    let written = 0
    for (let term = 1; confirmed < MESSAGES; term++) {
      let dies = false
      for (let lsn = confirmed + 1; lsn <= MESSAGES && !dies; lsn++) {
        if (lsn > written) ends.push({ lsn, offset: log.length })
        written = Math.max(written, lsn)
        const whole = pack(lsn, term, randomBytes(sizes[lsn] as number))
        const records = whole.length > PART_BYTES ? splitPack(whole, PART_BYTES) : [whole]
        for (const [i, record] of records.entries()) {
          while (late.length > 0 && random.chance(0.4)) log.push(late.shift() as Buffer)
          if (random.chance(0.04)) {
            dies = true
            if (i > 0) halves++
            // some of what it was about to write arrives when another run is at work
            const next = [lsn + 1, lsn + 2].filter((n) => n <= MESSAGES).map((n) => pack(n, term, randomBytes(20)))
            written = Math.max(written, lsn + next.length)
            late = [...records.slice(i), ...next].slice(0, random.int(0, records.length - i + 2))
            break
          }
          log.push(record)
        }
        if (!dies && random.chance(0.5)) confirmed = lsn
      }
      if (!dies) confirmed = MESSAGES
    }
    const { got: all, places } = await read(log, 0, ORIGIN)
    const expected = Array.from({ length: MESSAGES }, (_, i) => i + 1)
    const lsnsOf = (got: readonly Got[]) => got.map(({ lsn }) => lsn)
    assert.deepEqual(lsnsOf(all), expected, `seed ${seed}`)
    // readers stand at different places: what one needs is asked for after that of those further ahead
    for (const { lsn, offset } of all.toReversed()) {
      if (!random.chance(0.2)) continue
      const kept = places.neededFrom(offset)
      const again = await read(log, offset, lsn === 1 ? ORIGIN : at(lsn - 1), kept)
      assert.deepEqual(lsnsOf(again.got), expected.slice(lsn - 1), `seed ${seed}: from message ${lsn} on, trimmed below ${kept}`)
      const after = await read(log, offset + 1, at(lsn), kept)
      assert.deepEqual(lsnsOf(after.got), expected.slice(lsn), `seed ${seed}: after message ${lsn}`)
    }
    for (const { lsn, offset } of ends) {
      if (!random.chance(0.2)) continue
      const joined = await read(log, offset, lsn === 1 ? ORIGIN : at(lsn - 1), offset)
      assert.deepEqual(lsnsOf(joined.got), expected.slice(lsn - 1), `seed ${seed}: from the end before message ${lsn} was first written`)
    }
  }
  assert.ok(halves > SEEDS / 4, 'runs died within a set')
})
