import assert from 'node:assert/strict'
import { test } from 'node:test'
import { splitKeyChanges } from '../../../actors/partition/split-key-changes.ts'
import { PackBuilder } from '../../../engine/log/pack-builder.ts'
import { ACTION, MESSAGE_FLAG, Pack, type ActionCode } from '../../../engine/log/pack.ts'
import { PART, type Part } from '../../../engine/position.ts'

type Row = Readonly<{ body: string; action: ActionCode; flags?: number; part?: Part; lsn: bigint; idx: number }>
const packOf = (rows: readonly Row[]): Pack => {
  const builder = new PackBuilder({ history: 2, term: 3, routing: 5 })
  for (const { body, action, flags = 0, part = PART.row, lsn, idx } of rows) {
    builder.begin(lsn, 7, Number(lsn))
    builder.bodies.copy(Buffer.from(`["${idx}"]g`))
    builder.bodies.copy(Buffer.from(body))
    builder.add(idx, part, action, 16_384, flags, idx, 5, 1)
  }
  return Pack.decode(builder.encode())
}
const textOf = (pack: Pack, i: number) => pack.buffer.toString('utf8', pack.bodyStart(i), pack.bodyEnd(i))

/** What looks like the members of a message, inside of a row. */
const TRAP = '{"doc":{"a":{},"changes":{"x":1},"action":"update"},"text":"},\\"changes\\":{\\"id\\":1},\\"action\\":\\"update\\","}'
const end = ',"metadata":{"commit_lsn":1'

test('a tombstone becomes a delete and its update an insert; the rest, and every position, stays as it is', () => {
  const rows: Row[] = [
    { body: `"record":{},"changes":{},"action":"update"${end}`, action: ACTION.update, lsn: 8n, idx: 1 },
    { body: `"record":{"id":1},"changes":null,"action":"delete"${end}`, action: ACTION.delete, flags: MESSAGE_FLAG.tombstone, part: PART.tombstone, lsn: 9n, idx: 4 },
    { body: `"record":${TRAP},"changes":{"id":1},"action":"update"${end}`, action: ACTION.update, flags: MESSAGE_FLAG.moved | MESSAGE_FLAG.unchanged, lsn: 9n, idx: 4 },
  ] // prettier-ignore
  const before = packOf(rows)
  const pack = splitKeyChanges(before)
  assert.deepEqual(
    rows.map((_, i) => [textOf(pack, i), pack.action(i), pack.flags(i)]),
    [
      [rows[0]?.body, ACTION.update, 0],
      [rows[1]?.body, ACTION.delete, 0],
      [`"record":${TRAP},"changes":null,"action":"insert"${end}`, ACTION.insert, MESSAGE_FLAG.unchanged],
    ],
  )
  const placesOf = (one: Pack) =>
    rows.map((_, i) => [one.position(i), one.xid(i), one.commitTimeUs(i), one.group(i), one.buffer.toString('utf8', one.keyStart(i), one.bodyStart(i))]) // prettier-ignore
  assert.deepEqual(placesOf(pack), placesOf(before))
  const { rawBytes: _before, ...header } = before.header
  const { rawBytes: _after, ...same } = pack.header
  assert.deepEqual(same, header)
})

test('a pack in which no key changed is left alone', () => {
  const pack = packOf([{ body: `"record":{},"changes":{},"action":"update"${end}`, action: ACTION.update, lsn: 8n, idx: 1 }])
  assert.equal(splitKeyChanges(pack), pack)
})
