/** Appends and commits for ever, and tells its parent what has settled. */
import { openEmbeddedLog } from '../../../engine/log/embedded.ts'
import { PackBuilder } from '../../../engine/log/pack-builder.ts'
import { ACTION } from '../../../engine/log/pack.ts'
import type { Position } from '../../../engine/position.ts'

const log = await openEmbeddedLog(process.argv[2] as string)
await log.createTopic('sink.1', 1)
await log.beginRun('shop')
for (let lsn = 1; ; lsn++) {
  const builder = new PackBuilder({ history: 0, term: 1, routing: 1 })
  builder.begin(BigInt(lsn), lsn, lsn)
  builder.bodies.ascii('x'.repeat(lsn % 2000))
  builder.add(0, 1, ACTION.insert, 1, 0, lsn, 0, 0)
  const position: Position = { history: 0, lsn: BigInt(lsn), idx: 0, part: 1 }
  await log.append([{ topic: 'sink.1', partition: 0, pack: builder.encode() }], { source: 'shop', position })
  const next = { offset: lsn, index: 0 }
  await log.commit('sink.1', 0, { next, accepted: position, finished: [], handedOut: next, term: 1 })
  process.send?.(lsn)
}
