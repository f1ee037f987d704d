/**
 * Backfills of many tables, of which most are empty: how long they take from the request to the last end, with a new sink and by name, and
 * how long calls of the management interface take while all of them are active.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { Client } from 'pg'
import type { Bench } from '../postgres.ts'
import { wallClock } from '../system.ts'
import { tailraceOf, type RunningTailrace } from '../systems/tailrace.ts'
import { dropSlot } from './drain.ts'

/** Times in ms. @property calls by path, while all are active */
export type BackfilledTables = Readonly<{
  tables: number
  initialMs: number
  answeredMs: number
  namedMs: number
  calls: Readonly<Record<string, number>>
}>

const SLOT = 'bench_tables'
/** every so manieth table has rows */
const EVERY = 50
const ROWS = 30
const AT_ONCE = 100
const LOOK_EVERY_MS = 200
const LIMIT_MS = 600_000

/** @param tables how many */
export async function backfillTables(bench: Bench, tables: number): Promise<BackfilledTables> {
  await using opened = new AsyncDisposableStack()
  const client = opened.adopt(new Client(bench.database), (each) => each.end())
  await client.connect()
  for (let from = 0; from < tables; from += AT_ONCE)
    await client.query(
      `do $$ begin for i in ${from}..${Math.min(from + AT_ONCE, tables) - 1} loop
         execute format('create table many_%s (id int primary key, name text)', i);
         if i % ${EVERY} = 0 then execute format('insert into many_%s select n, ''row '' || n from generate_series(1, ${ROWS}) n', i); end if;
       end loop; end $$`,
    )
  const names = Array.from({ length: tables }, (_, i) => `public.many_${i}`)
  await client.query(`create publication ${SLOT} for table ${names.join(', ')}`)
  await client.query(`select pg_create_logical_replication_slot($1, 'pgoutput')`, [SLOT])
  opened.defer(() => dropSlot(client, SLOT))
  const task = {
    ...{ database: bench.database, slot: SLOT, publication: SLOT },
    ...{ table: 'public.many_0', changes: Infinity, recordDelays: false },
  }
  await using running = await tailraceOf('Tailrace', { partitions: 1, processes: 1 }).start(task)
  await running.served(AbortSignal.timeout(LIMIT_MS))
  const sink = { name: 'many', database: 'bench', destination: { type: 'sequin_stream' }, initial_backfill: true }
  const initialAt = wallClock()
  await running.ask('POST', '/api/sinks', sink)
  await ended(running)
  const namedAt = wallClock()
  await running.ask('POST', '/api/sinks/many/backfills', { tables: names })
  const answeredAt = wallClock()
  const calls: Record<string, number> = {}
  for (const path of ['/api/sinks/many', '/api/sinks', '/api/sinks/many/backfills', '/info']) {
    const from = wallClock()
    await running.ask('GET', path)
    calls[path] = wallClock() - from
  }
  await ended(running)
  return { tables, initialMs: namedAt - initialAt, answeredMs: answeredAt - namedAt, namedMs: wallClock() - namedAt, calls }
}

/** Settles when the sink has no active backfill any more. */
async function ended(running: RunningTailrace): Promise<void> {
  const until = AbortSignal.timeout(LIMIT_MS)
  for (;;) {
    const { active_backfills: active } = (await running.ask('GET', '/api/sinks/many')) as { active_backfills: readonly unknown[] }
    if (active.length === 0) return
    await delay(LOOK_EVERY_MS, undefined, { signal: until })
  }
}
