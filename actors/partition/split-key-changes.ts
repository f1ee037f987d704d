/**
 * Changes of a primary key as a delete and an insert, for sinks that ask for it: the log holds a tombstone in the group of the
 * old key and the update in that of the new one, and here, as they are read, the first becomes a delete and the second an insert.
 * All behind it takes them for what they say they are. Each group then tells of its keys without the others, so a reader that
 * folds messages by key needs no order between groups.
 */
import type { ByteWriter } from '../../engine/byte-writer.ts'
import { PackBuilder } from '../../engine/log/pack-builder.ts'
import { ACTION, MESSAGE_FLAG, Pack } from '../../engine/log/pack.ts'
import { JsonMembers } from '../../sinks/json-members.ts'

const OF_KEY_CHANGES = MESSAGE_FLAG.tombstone | MESSAGE_FLAG.moved
const NO_CHANGES = Buffer.from('null')
const INSERT = Buffer.from('"insert"')

/**
 * Makes each change of a primary key in a pack a delete and an insert. @returns a pack of the same messages at the same positions;
 * the same one where no primary key changed
 */
export function splitKeyChanges(pack: Pack): Pack {
  const { count, header } = pack
  let any = 0
  for (let i = 0; i < count; i++) any |= pack.flags(i) & OF_KEY_CHANGES
  if (any === 0) return pack
  const builder = new PackBuilder(header)
  const { bodies } = builder
  for (let i = 0; i < count; i++) {
    if (i === 0 || pack.transaction(i) !== pack.transaction(i - 1)) builder.begin(pack.lsn(i), pack.xid(i), pack.commitTimeUs(i))
    const flags = pack.flags(i)
    const isMoved = (flags & MESSAGE_FLAG.moved) !== 0
    if (isMoved) {
      bodies.copy(pack.buffer, pack.keyStart(i), pack.bodyStart(i))
      writeAsInsert(bodies, pack.buffer.subarray(pack.bodyStart(i), pack.bodyEnd(i)))
    } else bodies.copy(pack.buffer, pack.keyStart(i), pack.bodyEnd(i))
    const keyLength = pack.keyEnd(i) - pack.keyStart(i)
    const groupKeyLength = pack.groupKeyEnd(i) - pack.groupKeyStart(i)
    const action = isMoved ? ACTION.insert : pack.action(i)
    builder.add(pack.idx(i), pack.part(i), action, pack.relation(i), flags & ~OF_KEY_CHANGES, pack.group(i), keyLength, groupKeyLength)
  }
  return Pack.decode(builder.encode())
}

/** @param body of an update, as the log holds it: `"record":…,"changes":…,"action":"update",` and more */
function writeAsInsert(out: ByteWriter, body: Buffer): void {
  const members = new JsonMembers(body, 0)
  let copied = 0
  for (const value of [undefined, NO_CHANGES, INSERT]) {
    members.name()
    const { start, end } = members.value()
    if (!value) continue
    out.copy(body, copied, start)
    out.copy(value)
    copied = end
  }
  out.copy(body, copied)
}
