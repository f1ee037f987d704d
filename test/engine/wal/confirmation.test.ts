import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Confirmer, DurableEnd } from '../../../engine/wal/confirmation.ts'
import { pass } from '../../waiting.ts'

test('a transaction end is confirmable only when its append is durable, and then exactly', () => {
  const end = new DurableEnd(100n)
  end.committed(110n, 1)
  end.committed(120n, 1)
  end.committed(130n, 2)
  assert.equal(end.lsn, 100n)
  end.durable(1)
  assert.equal(end.lsn, 120n)
  end.durable(2)
  assert.equal(end.lsn, 130n)
})

test('a transaction that left nothing to append waits for those before it', () => {
  const end = new DurableEnd(100n)
  end.committed(105n, 0)
  assert.equal(end.lsn, 105n)
  end.committed(110n, 1)
  end.committed(111n, 1) // empty, behind one whose append is open
  assert.equal(end.lsn, 105n)
  end.durable(1)
  assert.equal(end.lsn, 111n)
})

test('what comes again after a crash of Postgres never lowers it', () => {
  const end = new DurableEnd(100n)
  end.committed(90n, 0)
  end.idle(95n)
  assert.equal(end.lsn, 100n)
})

type Saved = { lsn: bigint; done: PromiseWithResolvers<void> }
function confirmer(over: Partial<ConstructorParameters<typeof Confirmer>[0]> = {}) {
  const saves: Saved[] = []
  const log: string[] = []
  let arrived = Promise.withResolvers<void>()
  const it = new Confirmer({
    start: 0n,
    save: (lsn) => {
      const done = Promise.withResolvers<void>()
      saves.push({ lsn, done })
      log.push(`save ${lsn}`)
      arrived.resolve()
      arrived = Promise.withResolvers()
      return done.promise
    },
    send: () => log.push(`send ${it.confirmed}`),
    failed: (error) => log.push(`failed ${(error as Error).message}`),
    everyMs: 5,
    idleEveryMs: 3_600_000,
    idleBytes: 1000,
    ...over,
  })
  return { it, saves, log, next: () => arrived.promise }
}

test('what is confirmed is saved before it is sent, and one save is open at a time', async () => {
  const { it, saves, log, next } = confirmer()
  const first = next()
  it.advance(10n, true)
  await first
  it.advance(20n, true)
  it.advance(30n, true)
  assert.equal(it.confirmed, 0n)
  const second = next()
  saves[0]?.done.resolve()
  await second
  assert.equal(it.confirmed, 10n)
  saves[1]?.done.resolve()
  await it.finish()
  assert.deepEqual(log, ['save 10', 'send 10', 'save 30', 'send 30'])
})

test('a failed save sends nothing, ends the run, and nothing is saved after it', async () => {
  const { it, saves, log, next } = confirmer()
  const first = next()
  it.advance(10n, true)
  await first
  saves[0]?.done.reject(new Error('fenced'))
  await it.finish()
  it.advance(20n, true)
  assert.deepEqual(log, ['save 10', 'failed fenced'])
  assert.equal(it.confirmed, 0n)
})

test('a log that only moves on is confirmed rarely, but soon when it moved far: our own saves are among what moves it', async () => {
  const { it, saves, log, next } = confirmer()
  const first = next()
  it.advance(10n, false)
  await first
  it.advance(20n, false) // the WAL of that very save comes back while it is open
  saves[0]?.done.resolve()
  await pass(30, 'what is saved all the same is saved by then')
  assert.deepEqual(log, ['save 10', 'send 10'])
  const second = next()
  it.advance(1010n, false)
  await second
  assert.deepEqual(log.at(-1), 'save 1010')
  saves[1]?.done.resolve()
  await it.finish()
})
