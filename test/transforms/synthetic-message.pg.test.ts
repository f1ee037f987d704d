/** Messages made up for tables of a real Postgres. */
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { syntheticMessage } from '../../transforms/synthetic-message.ts'
import { createDatabase } from '../services/postgres.ts'

const db = await createDatabase(`
  create type size as enum ('small', 'large');
  create domain code as varchar(3) check (value <> 'xx');
  create domain codes as code;
  create type pair as (a int, b int);
  create table part (
    z text, a int, primary key (z, a), gone int, "is it" boolean, price numeric(4, 3), share numeric(2, 2), whole numeric(5), free numeric,
    named codes, size size, sizes size[], tags text[], fixed char(4), about jsonb, at timestamptz, day date, clock time, took interval,
    ratio float8, id uuid, raw bytea, bits bit(3), address inet, span int4range, email varchar(9), quoted_text text[], pair pair, made int generated always as (1) stored
  );
  alter table part drop column gone;
  create table bare ("""x\\" text);
`)
after(() => db[Symbol.asyncDispose]())

test('each column has a value of its type, as the stream would have it, and the key is told', async () => {
  const { record, metadata, action, changes } = await syntheticMessage(db.connection, 'part')
  assert.deepEqual(record, {
    ...{ z: 'z', a: 1, 'is it': true, price: '1.900', share: '0.90', whole: '19', free: '19.90' },
    ...{ named: 'nam', size: 'small', sizes: ['small'], tags: ['tags'], fixed: 'fixe', about: {} },
    ...{ at: '2025-02-03T04:05:06.000000Z', day: '2025-02-03', clock: '04:05:06', took: { months: 0, days: 1, microseconds: 0 } },
    ...{ ratio: 1.5, id: '00000000-0000-4000-8000-000000000001', raw: '\\x00', bits: '100', address: '192.0.2.1', span: '[1,10)' },
    ...{ email: 'ada@examp', quoted_text: ['quoted_text'], pair: null, made: 1 },
  })
  const { table_schema, table_name, record_pks } = metadata as Record<string, unknown>
  assert.deepEqual([action, changes, table_schema, table_name, record_pks], ['insert', null, 'public', 'part', ['z', '1']])
})

test('a table without key has one too, and one that is not there is told', async () => {
  assert.deepEqual((await syntheticMessage(db.connection, 'public.bare')).record, { '"x\\': '"x\\' })
  await assert.rejects(syntheticMessage(db.connection, 'sales.part'), { code: 'ARGUMENT_INVALID', message: /no table sales\.part/ })
})
