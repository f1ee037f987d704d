/** The stage between log and delivery: which functions see which messages. */
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { ACTION } from '../../engine/log/pack.ts'
import { FunctionStage, STATE, type StageOptions } from '../../transforms/stage.ts'
import { batchOf } from '../sinks/batch.ts'
import { fn, pool, TAIL } from './function-fixture.ts'

const shared = pool()
after(() => shared.stop())

test('of deleted rows a transform is asked as the sink needs it: for the message, for the name of a document, or not at all', async () => {
  const transform = { ...fn(`export default (action, r) => ({ id: 'doc-' + r.sku.toLowerCase() })`), usesMetadata: false }
  const { messages } = batchOf([
    { key: ['1'], record: { id: 1, sku: 'A' } },
    { key: ['2'], record: { id: 2, sku: 'B' }, action: ACTION.delete },
    { key: ['3'], record: { id: 3, sku: null }, action: ACTION.delete },
  ])
  const seen = async (deletes: StageOptions['deletes']) => {
    const stage = new FunctionStage({ pool: shared, functions: { transform }, tail: JSON.stringify(TAIL), deletes })
    const outcome = await stage.run(messages)
    return [0, 1, 2].map((i) => {
      const payload = outcome.stateOf(i) === STATE.kept ? outcome.payloadOf(i) : 'failed'
      return payload instanceof Uint8Array ? (JSON.parse(String(Buffer.from(payload))) as { id: string }).id : payload
    })
  }
  assert.deepEqual(await seen('transformed'), ['doc-a', 'doc-b', 'failed'])
  assert.deepEqual(await seen('named'), ['doc-a', 'doc-b', undefined])
  assert.deepEqual(await seen('keyed'), ['doc-a', undefined, undefined])
})

test('of a sensitive sink neither what a function prints nor what it throws is told, but its place is', async () => {
  const transform = { ...fn(`export default (a, r) => {\n  console.log(r.email)\n  throw new TypeError(r.email)\n}`), usesMetadata: false }
  const { messages } = batchOf([{ key: ['1'], record: { email: 'a@b.c' } }])
  const options = { pool: shared, functions: { transform }, tail: JSON.stringify(TAIL), deletes: 'transformed' } as const
  const open = await new FunctionStage(options).run(messages)
  assert.deepEqual([open.failureOf(0).text, open.logsOf(0)], ['TypeError: a@b.c', ['a@b.c']])
  const hushed = await new FunctionStage({ ...options, isSensitive: true }).run(messages)
  const { code, text, line } = hushed.failureOf(0)
  assert.deepEqual([code, text, line], ['FUNCTION_FAILED', 'TypeError; its words are not kept, for the sink is sensitive', 3])
  assert.deepEqual(hushed.logsOf(0), [])
  const named = {
    ...fn("export default (a, r) => { throw Object.assign(new Error('no'), { name: r.email.replace(/[@.]/g, '') + 'Error' }) }"),
    usesMetadata: false,
  }
  const other = await new FunctionStage({ ...options, functions: { transform: named }, isSensitive: true }).run(messages)
  assert.equal(other.failureOf(0).text, 'an error; its words are not kept, for the sink is sensitive')
})

test('a message that ends the sandbox is named by its position and its sink', async () => {
  const transform = { ...fn(`export default (a, r) => 'a'.repeat(2 ** 28).split('').length`), usesMetadata: false }
  const { messages } = batchOf([{ key: ['1'], record: { email: 'a@b.c' }, lsn: 4096n }])
  const stage = new FunctionStage({
    pool: shared,
    functions: { transform },
    tail: JSON.stringify(TAIL),
    deletes: 'transformed',
    sinkName: 'orders',
  })
  const { code, text } = (await stage.run(messages)).failureOf(0)
  assert.equal(code, 'FUNCTION_KILLED')
  assert.match(text, /^its sandbox was ended at commit_lsn 4096, commit_idx \d+ of sink "orders": /)
})
