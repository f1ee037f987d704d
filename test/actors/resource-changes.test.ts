import assert from 'node:assert/strict'
import { test } from 'node:test'
import { changesBetween } from '../../actors/resource-changes.ts'
import { FUNCTION_FIELDS } from '../../engine/state/function-kinds.ts'
import { NO_RESOURCES } from '../../engine/state/resource-store.ts'
import type { StoredFunction } from '../../engine/state/functions.ts'
import type { Sink } from '../../engine/state/resources.ts'
import { endpoint } from '../sinks/batch.ts'
import { DATABASE, SINK } from './sink-fixture.ts'

const NOTHING = {
  ...{ goneSinks: [], newSinks: [], editedSinks: [] },
  ...{ endedSources: [], begunSources: [], renamedSources: [], rerouted: [], reselected: false },
}
const known = { ...NO_RESOURCES, databases: [DATABASE], sinks: [SINK] }

test('the same resources, read again, change nothing', () => {
  assert.deepEqual(changesBetween(known, structuredClone(known)), NOTHING)
})

test('everything is new to an engine that begins', () => {
  assert.deepEqual(changesBetween(NO_RESOURCES, known), {
    ...NOTHING,
    newSinks: [SINK],
    begunSources: [DATABASE],
    rerouted: [DATABASE],
    reselected: true,
  })
})

test('an edit of what a sink takes, and how, reaches it and the routing, and asks what is published only where it may be of other tables; any other edit, and one of the description of its database, the sink alone', () => {
  const edits: [Partial<Sink>, boolean, boolean?][] = [
    [{ status: 'disabled' }, true, true],
    [{ actions: ['insert'] }, true],
    [{ partitions: 3 }, true],
    [{ timestamp_format: 'unix_microsecond' }, true],
    [{ tables: [{ name: 'public.a', group_column_names: ['x'] }] }, true],
    [{ source: { include_tables: ['public.a'] } }, true, true],
    [{ key_changes: 'delete_insert' }, true],
    [{ message_grouping: !SINK.message_grouping }, true],
    [{ status: 'paused' }, false],
    [{ max_ack_pending: 7, annotations: { of: 'it' } }, false],
    [{ name: 'other' }, false],
  ]
  for (const [edit, isRerouted, reselected = false] of edits) {
    const sink = { ...SINK, ...edit }
    const rerouted = isRerouted ? [DATABASE] : []
    assert.deepEqual(changesBetween(known, { ...known, sinks: [sink] }), { ...NOTHING, editedSinks: [sink], rerouted, reselected })
  }
  const off = { ...SINK, status: 'disabled' as const }
  assert.deepEqual(changesBetween({ ...known, sinks: [off] }, known).rerouted, [DATABASE])
  const database = { ...DATABASE, annotations: { team: 'b' } }
  assert.deepEqual(changesBetween(known, { ...known, databases: [database] }), { ...NOTHING, editedSinks: [SINK] })
})

test('a source begins anew when it is reached in another way, ends when it is switched off or gone, and not otherwise', () => {
  const elsewhere = { ...DATABASE, connection: { ...DATABASE.connection, hostname: 'other' } }
  const moved = changesBetween(known, { ...known, databases: [elsewhere] })
  assert.deepEqual([moved.endedSources, moved.begunSources], [[DATABASE.id], [elsewhere]])
  const off = { ...DATABASE, slot: { ...DATABASE.slot, status: 'disabled' as const } }
  const switchedOff = changesBetween(known, { ...known, databases: [off] })
  assert.deepEqual([switchedOff.endedSources, switchedOff.begunSources], [[DATABASE.id], []])
  const on = changesBetween({ ...known, databases: [off] }, known)
  assert.deepEqual([on.endedSources, on.begunSources], [[], [DATABASE]])
  const standby = { ...DATABASE, primary: DATABASE.connection }
  assert.deepEqual(changesBetween(known, { ...known, databases: [standby] }).begunSources, [standby])
  const renamed = { ...DATABASE, name: 'renamed', poolSize: 3 }
  const named = changesBetween(known, { ...known, databases: [renamed] })
  assert.deepEqual([named.endedSources, named.begunSources, named.renamedSources], [[], [], [renamed]])
  const gone = changesBetween(known, NO_RESOURCES)
  assert.deepEqual(gone, { ...NOTHING, goneSinks: [SINK.id], endedSources: [DATABASE.id], reselected: true })
})

test('an edit of an HTTP endpoint reaches the sinks that send to it, and nothing else', () => {
  const hooks: Sink = {
    ...SINK,
    id: '5f1d5bb8-4a8e-4f0e-9d0c-0d6f5c1f0a02',
    name: 'hooks',
    destination: { type: 'webhook', http_endpoint: 'hooks', batch: true, item_results: false },
  }
  const before = { ...known, sinks: [SINK, hooks], endpoints: [endpoint('http://a'), endpoint('http://x', { name: 'other' })] }
  const after = { ...before, endpoints: [endpoint('http://b'), endpoint('http://y', { name: 'other' })] }
  assert.deepEqual(changesBetween(before, after), { ...NOTHING, editedSinks: [hooks] })
})

for (const field of FUNCTION_FIELDS) {
  test(`an edit of the function that a sink has as its ${field} reaches the sinks that have it, and nothing else`, () => {
    const fn: StoredFunction = {
      ...{ id: 'f', accountId: SINK.accountId, name: 'mine', type: 'transform', sinkType: null },
      ...{ description: null, code: '', compiled: 'old', usesMetadata: false },
    }
    const having: Sink = { ...SINK, id: '5f1d5bb8-4a8e-4f0e-9d0c-0d6f5c1f0a02', name: 'having', [field]: 'mine' }
    const before = { ...known, sinks: [SINK, having], functions: [fn, { ...fn, id: 'g', name: 'other' }] }
    const after = {
      ...before,
      functions: [
        { ...fn, compiled: 'new' },
        { ...fn, id: 'g', name: 'other', compiled: 'new' },
      ],
    }
    assert.deepEqual(changesBetween(before, after), { ...NOTHING, editedSinks: [having] })
  })
}
