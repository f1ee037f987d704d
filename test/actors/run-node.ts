/** A process that a test can kill: one node on the state database that its argument names. It says when its source streams,
 *  and ends cleanly at SIGTERM. */
import type { Connection } from '../../engine/postgres/client-config.ts'
import { startNode } from './engine-node.ts'

const node = await startNode({ name: 'child', state: JSON.parse(process.argv[2] as string) as Connection })
process.once('SIGTERM', () => void node.stop().then(() => process.exit(0)))
process.on('disconnect', () => process.exit(1)) // the test is gone
const states = setInterval(() => {
  const state = node.engine.actors().find(({ kind }) => kind === 'source')?.state
  process.send?.({ state })
}, 20)
states.unref()
