/** Which tables can be backfilled, what of them is read, and what a refusal says. On each version of PostgreSQL that the machine has. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createDatabase, machinePostgres, startPostgres } from '../../services/postgres.ts'
import { pageQuery } from '../../../engine/backfill/page-query.ts'
import { PageReader } from './page-reader.ts'

/** undefined: the server that tests share */
const versions = [undefined, ...machinePostgres()]

/** Why a table is refused; undefined: it is not. */
async function whyNot(reader: PageReader, table: string): Promise<string | undefined> {
  try {
    await reader.describe({ table })
    return undefined
  } catch (error) {
    const { code, message } = error as { code?: string; message: string }
    assert.equal(code, 'BACKFILL_REFUSED', message)
    return message.replace(`${table} can't be backfilled: `, '')
  }
}

const ids = (records: readonly Record<string, unknown>[]) => records.map(({ id }) => id)

for (const binaries of versions) {
  test(`PostgreSQL ${binaries?.version ?? 'as it is embedded'}`, async (t) => {
    await using server = binaries && (await startPostgres({ binaries }))
    const of = server ? { server: server.url } : {}
    const database = (ddl: string) => createDatabase(ddl, of)

    await t.test('what is no table, or has no changes in the stream, is refused, and says what to read instead', async () => {
      await using db = await database(`
        create table plain (id int primary key);
        create view seen as select * from plain;
        create materialized view kept as select * from plain;
        create unlogged table quick (id int primary key);
        create sequence counter;
        create foreign data wrapper w; create server far foreign data wrapper w; create foreign table away (id int) server far;
        create schema tailrace; create table tailrace.sink (id int primary key);
        create publication p for all tables`)
      await using reader = await PageReader.open(db)
      assert.equal(await whyNot(reader, 'public.plain'), undefined)
      assert.equal(await whyNot(reader, 'public.none'), 'there is no such table in the source database')
      assert.equal(await whyNot(reader, 'nowhere.plain'), 'there is no such table in the source database')
      assert.match((await whyNot(reader, 'public.seen')) ?? '', /^it is a view, .*backfill the tables that it reads$/)
      assert.match((await whyNot(reader, 'public.kept')) ?? '', /^it is a materialised view/)
      assert.match((await whyNot(reader, 'public.away')) ?? '', /^it is a foreign table/)
      assert.match((await whyNot(reader, 'public.quick')) ?? '', /run: alter table "public"."quick" set logged;$/)
      assert.match((await whyNot(reader, 'public.counter')) ?? '', /^it is no table/)
      assert.match((await whyNot(reader, 'pg_catalog.pg_class')) ?? '', /^it is a table of the system/)
      assert.match((await whyNot(reader, 'information_schema.sql_features')) ?? '', /^it is a table of the system/)
      assert.match((await whyNot(reader, 'tailrace.sink')) ?? '', /^it is a table of Tailrace itself/)
    })

    await t.test('a table that is not published is refused with the SQL that publishes it', async () => {
      await using db = await database(
        'create table "T" (id int primary key); create table t (id int primary key); create publication p for table t',
      )
      await using reader = await PageReader.open(db)
      const why = (await whyNot(reader, 'public.T')) ?? ''
      await db.query(why.slice(why.indexOf('run: ') + 5))
      assert.equal(await whyNot(reader, 'public.T'), undefined)
    })

    await t.test('a role without the right to read is refused with the SQL that gives it', async () => {
      await using db = await database(
        'create schema s; create table s.t (id int primary key, secret text); create publication p for all tables',
      )
      const role = `r_${db.name}`
      await db.query(`create role ${role} login password 'x'`)
      try {
        await using reader = await PageReader.open(db, { as: { username: role, password: 'x' } })
        const why = (await whyNot(reader, 's.t')) ?? ''
        await db.query(`grant usage on schema s to ${role}; grant select (id) on s.t to ${role}`)
        assert.equal(await whyNot(reader, 's.t'), `the role may not read "secret"; run: grant select on "s"."t" to ${role};`)
        await db.query(why.slice(why.indexOf('run: ') + 5))
        assert.equal(await whyNot(reader, 's.t'), undefined)
      } finally {
        await db.query(`drop owned by ${role}; drop role ${role}`)
      }
    })

    await t.test('row-level security that may hide rows from the role is told, with the SQL that shows them', async () => {
      await using db = await database(`create table t (id int primary key); create publication p for all tables;
        alter table t enable row level security; create policy own on t using (id > 1)`)
      const role = `r_${db.name}`
      await db.query(`create role ${role} login password 'x'; grant select on t to ${role}`)
      try {
        await using reader = await PageReader.open(db, { as: { username: role, password: 'x' } })
        const why = (await whyNot(reader, 'public.t')) ?? ''
        assert.match(why, /^its row-level security may hide rows from the role/)
        await db.query(why.slice(why.indexOf('create policy')))
        assert.equal(await whyNot(reader, 'public.t'), undefined)
        await db.query(`create policy low on t as restrictive using (id < 5)`)
        assert.match((await whyNot(reader, 'public.t')) ?? '', /^its row-level security/)
        await db.query(/alter role [^;]*;/.exec(why)?.[0] ?? '')
        assert.equal(await whyNot(reader, 'public.t'), undefined)
      } finally {
        await db.query(`drop owned by ${role}; drop role ${role}`)
      }
    })

    await t.test('partitions are read by the name that their changes come under', async () => {
      await using db = await database(`
        create table root (id int primary key, name text) partition by range (id);
        create table low partition of root for values from (0) to (10);
        create table high partition of root for values from (10) to (100) partition by range (id);
        create table highest partition of high for values from (20) to (100);
        insert into root select i, 'n' from generate_series(1, 9) i; insert into root values (25, 'x');
        create publication p for all tables with (publish_via_partition_root = true);
        create publication q for table root; create publication r for table high with (publish_via_partition_root = true)`)
      await using viaRoot = await PageReader.open(db)
      assert.deepEqual(ids(await viaRoot.records({ table: 'public.root' })), [1, 2, 3, 4, 5, 6, 7, 8, 9, 25])
      assert.equal(await viaRoot.planned({ table: 'public.root' }), 10)
      assert.match((await whyNot(viaRoot, 'public.low')) ?? '', /come under the name of public.root/)
      assert.match((await whyNot(viaRoot, 'public.highest')) ?? '', /come under the name of public.root/)
      await using alone = await PageReader.open(db, { publication: 'q' })
      assert.deepEqual(ids(await alone.records({ table: 'public.highest' })), [25])
      const why = (await whyNot(alone, 'public.root')) ?? ''
      await using between = await PageReader.open(db, { publication: 'r' })
      assert.deepEqual(ids(await between.records({ table: 'public.high' })), [25])
      assert.match((await whyNot(between, 'public.root')) ?? '', /not in the publication/)
      await db.query(why.slice(why.indexOf('run: ') + 5))
      assert.equal(await whyNot(alone, 'public.root'), undefined)
    })

    await t.test('of tables that inherit, each is read alone, as each is streamed alone', async () => {
      await using db = await database(`create table t (id int primary key); create table child (primary key (id)) inherits (t);
        insert into t values (1); insert into child values (2); create publication p for all tables`)
      await using reader = await PageReader.open(db)
      assert.deepEqual([ids(await reader.records()), ids(await reader.records({ table: 'public.child' }))], [[1], [2]])
    })

    await t.test('what the publication leaves out is left out here', async (tt) => {
      await using db =
        await database(`create schema s; create table s.t (id int primary key, name text, up text generated always as (upper(name)) stored, secret text);
        insert into s.t values (1, 'a', default, 'x'), (2, 'b', default, 'y'), (3, 'c', default, 'z'); create publication p for table s.t`)
      await using reader = await PageReader.open(db)
      const read = () => reader.records({ table: 's.t' })
      assert.deepEqual(Object.keys((await read())[0] ?? {}), ['id', 'name', 'secret'], 'what is generated is not streamed')
      const [now] = await db.query<{ version: number }>(`select current_setting('server_version_num')::int as version`)
      if ((now?.version ?? 0) < 150_000) return tt.skip('has no lists of columns')
      await db.query('alter publication p set table s.t (id, name) where (id <> 2)')
      assert.deepEqual(await read(), [
        { id: 1, name: 'a' },
        { id: 3, name: 'c' },
      ])
      await db.query('create publication other for table s.t')
      assert.equal((await read()).length, 2, 'other publications are none of ours')
      await db.query(`drop publication p; create publication p for tables in schema s`)
      assert.equal((await read()).length, 3)
      if ((now?.version ?? 0) < 180_000) return undefined
      await db.query(`drop publication p; create publication p for all tables with (publish_generated_columns = stored)`)
      assert.deepEqual((await read())[0], { id: 1, name: 'a', up: 'A', secret: 'x' })
      await db.query(`drop publication p; create publication p for table s.t (id, up)`)
      assert.deepEqual((await read())[0], { id: 1, up: 'A' })
    })

    await t.test(
      'without a primary key: by the replica identity, else by a unique index of what is not null, else as the rows lie',
      async (tt) => {
        const tables: readonly [ddl: string, order: readonly string[], identity: unknown][] = [
          ['create table t (a int, id int not null); create unique index i on t (id)', ['id'], { columns: ['id'] }],
          [
            'create table t (a int not null unique, id int not null); create unique index z on t (id); alter table t replica identity using index z',
            ['id'],
            { columns: ['id'] },
          ],
          [
            'create table t (a int not null, id int primary key); create unique index z on t (a); alter table t replica identity using index z',
            ['id'],
            { columns: ['a'] },
          ],
          ['create table t (b text not null, id int not null, c int, unique (id, b) include (c))', ['id', 'b'], { columns: ['b', 'id'] }],
          ['create table t (id int unique)', [], { rowsOf: ['id'] }],
          ['create table t (id int not null); create unique index i on t (id) where id > 0', [], { rowsOf: ['id'] }],
          ['create table t (id int not null); create unique index i on t ((id + 1))', [], { rowsOf: ['id'] }],
          ['create table t (id int not null); create unique index i on t (id desc)', [], { rowsOf: ['id'] }],
          [
            'create table t (id int not null); create unique index i on t (id desc); alter table t replica identity using index i',
            [],
            { columns: ['id'] },
          ],
          ['create table t (id int not null unique deferrable)', [], { rowsOf: ['id'] }],
          [
            'create table t (a text not null collate "C", id int); create unique index i on t (a collate "POSIX")',
            [],
            { rowsOf: ['a', 'id'] },
          ],
          ['create table t (id int); alter table t replica identity full', [], { rowsOf: ['id'] }],
        ]
        for (const [ddl, order, identity] of tables)
          await tt.test(ddl, async () => {
            await using db = await database(`${ddl}; create publication p for all tables`)
            await using reader = await PageReader.open(db)
            const table = await reader.describe()
            assert.deepEqual([table.order.map(({ name }) => name), table.identity], [order, identity])
            await db.query(`insert into t (${table.relation.message.columns.map(({ name }) => name).join(', ')})
            select ${table.relation.message.columns.map(({ name }) => (name === 'b' || (ddl.includes('a text') && name === 'a') ? `'x' || i` : 'i')).join(', ')} from generate_series(1, 1001) i`)
            const pages = await reader.pages({}, 100)
            const read = pages.flat().map((text) => JSON.parse(text) as { record: { id: number }; metadata: { idempotency_key: string } })
            assert.deepEqual(
              read.map(({ record }) => record.id),
              Array.from({ length: 1001 }, (_, n) => n + 1),
            )
            assert.equal(new Set(read.map(({ metadata }) => metadata.idempotency_key)).size, 1001)
          })
      },
    )

    await t.test('a table that is read as its rows lie is read block by block, to where it ended when it was begun', async () => {
      await using db = await database(
        `create table t (id int); insert into t select i from generate_series(1, 50000) i; create publication p for all tables`,
      )
      await using reader = await PageReader.open(db)
      const plan = await reader.with({}, (table) => reader.session.plan(pageQuery(table, ['(10,1)', '100'], 1_000)))
      assert.match(JSON.stringify(plan), /"Tid Range Scan"/)
      const table = await reader.describe()
      await db.query('insert into t select i from generate_series(50001, 60000) i')
      const rest = await reader.with({}, (now) =>
        reader.session.query(
          `select count(*)::int as count from (${pageQuery(now, [`(${table.blocks - 1},0)`, String(table.blocks)], 1_000_000)}) x`,
        ),
      )
      assert.ok(Number(rest.rows[0]?.['count']) < 300, 'the rows of the last block')
      await db.query('vacuum full t')
      assert.notEqual((await reader.describe()).orderedBy, table.orderedBy, 'rows lie elsewhere by now')
    })

    await t.test('what can only be read by a key is refused without one', async () => {
      await using db =
        await database(`create table t (id int, at timestamptz, doc json, primary key (id)); create table keyless (id int, at timestamptz);
        create table root (id int) partition by range (id); create table leaf partition of root for values from (0) to (10);
        create publication p for all tables with (publish_via_partition_root = true)`)
      await using reader = await PageReader.open(db)
      const sorted = (table: string, sortColumn: string) => reader.describe({ table, sortColumn })
      await assert.rejects(sorted('public.keyless', 'at'), /add primary key/)
      await assert.rejects(sorted('public.t', 'none'), /it has no column "none"/)
      await assert.rejects(sorted('public.t', 'doc'), /the type of "doc" has no order/)
      assert.match((await whyNot(reader, 'public.root')) ?? '', /a partitioned table is read by a key/)
    })

    await t.test(
      'pages that would each read a large table are refused with the index that mends it; how many rows there are is told',
      async () => {
        await using db = await database(`create table t (id int primary key, at timestamptz, kind int);
        insert into t select i, timestamptz '2025-01-01' + i * interval '1 s', i % 1000 from generate_series(1, 150000) i; analyze t;
        create table young (id int primary key); insert into young select i from generate_series(1, 1200) i; create table never (id int primary key);
        create publication p for all tables`)
        await using reader = await PageReader.open(db)
        const near = (rows: number, expected: number) =>
          assert.ok(Math.abs(rows - expected) < expected / 5, `${rows} instead of about ${expected}`)
        const partial = { sortColumn: 'at', startPosition: '2025-01-02 00:00:00+00' }
        const some = { condition: 'kind = 7' }
        near(await reader.planned(), 150_000)
        assert.equal(await reader.planned({ table: 'public.young' }), 1_200)
        assert.equal(await reader.planned({ table: 'public.never' }), 0)
        for (const asked of [partial, some]) {
          const error = await reader.planned(asked).then(
            () => assert.fail('was not refused'),
            (reason: Error) => reason.message,
          )
          await db.query(error.slice(error.indexOf('run: ') + 5, error.indexOf(';', error.indexOf('run: '))).replace(' concurrently', ''))
          await db.query('analyze t')
        }
        near(await reader.planned(partial), 150_000 - 86_400)
        near(await reader.planned(some), 150)
        assert.equal((await reader.records(some, 1_000)).length, 150)
      },
    )
  })
}
