import assert from 'node:assert/strict'
import { test } from 'node:test'
import { NodeRegistry } from '../../../engine/state/node-registry.ts'
import { queryOf, stateDatabase } from '../../actors/sink-state.ts'
import { until } from '../../waiting.ts'

test('a process beats and looks at the others in one statement, and is itself among those that it sees', async () => {
  await using db = await stateDatabase()
  const asked: string[] = []
  const registryOf = (name: string, onAsk: (sql: string) => void = () => undefined) =>
    new NodeRegistry({
      name,
      onError: (error) => assert.fail(String(error)),
      query: async (sql, params) => {
        onAsk(sql)
        return { rows: await db.query(sql, params) }
      },
    })
  const at = { address: 'http://127.0.0.1:1', version: '1' }
  await using after = new AsyncDisposableStack()
  const first = registryOf('first', (sql) => asked.push(sql))
  after.defer(() => first.leave())
  await first.join(at)
  assert.deepEqual([[...first.live.keys()], first.peers], [[first.id], []])
  asked.length = 0
  const second = registryOf('second')
  after.defer(() => second.leave())
  await second.join(at)
  assert.deepEqual(
    second.peers.map(({ name }) => name),
    ['first'],
  )
  await until('the first sees the second', async () => first.peers[0]?.name === 'second')
  const beats = asked.length
  const seen = await queryOf(db)('select seen_at from tailrace.node where id = $1', [first.id])
  await until('it beats again', async () => asked.length > beats)
  await until('the beat is there', async () => {
    const { rows } = await queryOf(db)('select seen_at from tailrace.node where id = $1', [first.id])
    return String(rows[0]?.['seen_at']) !== String(seen.rows[0]?.['seen_at'])
  })
  assert.ok(
    asked.every((sql) => /insert into tailrace\.node .* on conflict .* select .* from tailrace\.node/s.test(sql)),
    asked.join('\n'),
  )
  await second.leave()
  await until('it is alone', async () => first.peers.length === 0)
})
