/** `tailrace function test` with a database: on its rows, and of what is a query. */
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { sampleOf } from '../../transforms/table-sample.ts'
import { COMMAND } from '../services/bundled-command.ts'
import { createDatabase } from '../services/postgres.ts'

test('a function runs on the rows of a table, and a query for them, as messages and a batch would have them', async () => {
  await using db = await createDatabase(`
    create schema sales;
    create table sales."Part" ("No" bigint, shop text, price numeric, made timestamptz, primary key (shop, "No"));
    insert into sales."Part" values (9007199254740993, 'b', 1.50, '2025-02-03 04:05:06Z'), (2, 'a', null, null);
    create table sales.shop (name text primary key, city text);
    insert into sales.shop values ('a', 'Aix');
    create table bare (id int);
    create table empty (id int primary key);
  `)
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-function-'))
  const run = (file: string, ...args: string[]) => {
    const { status, stdout, stderr } = spawnSync(process.execPath, [COMMAND, 'function', 'test', join(folder, file), ...args], {
      encoding: 'utf8',
    })
    return { code: status, out: stdout, err: stderr }
  }
  try {
    await writeFile(join(folder, 'doc.ts'), 'export default (a, r, c, m) => [a, r.No, r.shop, r.price, r.made, m.table_name, m.record_pks]')
    const { code, out, err } = run('doc.ts', '--database', db.url, '--table', 'sales.Part')
    assert.equal(code, 0, err)
    const rows = out.replaceAll(/\s+/g, ' ')
    assert.match(
      rows,
      /^\[ "insert", 2, "a", null, null, "Part", \[ "2", "a" \] \] \d+ µs \[ "insert", 9007199254740993, "b", "1\.50", "2025-02-03T04:05:06\.000000Z", /,
    )

    const query =
      'select p."No", p.shop, s.city from sales."Part" p left join sales.shop s on s.name = p.shop join unnest($1::int8[], $2::text[]) k(n, s) on p."No" = k.n and p.shop = k.s'
    await writeFile(join(folder, 'city.sql'), query)
    const found = run('city.sql', '--database', db.url, '--table', 'sales.Part')
    assert.equal(found.code, 0, found.out + found.err)
    assert.match(found.out.replaceAll(/\s+/g, ' '), /^ for \[\["2"\],\["a"\]\] \{ "No": 2, "shop": "a", "city": "Aix" \} \d+ µs for /)
    await writeFile(
      join(folder, 'one.json'),
      '{"record": {}, "metadata": {"table_schema": "sales", "table_name": "shop", "record_pks": ["a"]}}',
    )
    await writeFile(join(folder, 'wrong.sql'), 'select name, 1 / 0 as x\nfrom sales.shops where name = any($1)')
    const refused = run('wrong.sql', '--database', db.url, '--input', join(folder, 'one.json'))
    assert.deepEqual([refused.code, refused.out], [1, refused.out])
    assert.match(refused.out, /for \["a"\]\n✗ relation "sales\.shops" does not exist, line 2, column 6 \(42P01\)/)

    for (const [table, words] of [
      ['sales.nosuch', /has no table sales\.nosuch/],
      ['bare', /public\.bare has no primary key/],
    ] as const)
      await assert.rejects(sampleOf(db.connection, table), words)
    const made = run('doc.ts', '--database', db.url, '--table', 'empty')
    assert.match(made.out, /^the table empty has no rows: on one made up for its columns: \{"id":1\}\n\[\n {2}"insert",/)
    const nowhere = run('city.sql', '--database', db.url, '--table', 'empty')
    assert.match(nowhere.out, /the table empty has no rows, and a query runs only for rows/)
    const away = run('city.sql', '--database', 'postgresql://u@127.0.0.1:1/x', '--table', 'a')
    assert.match(away.err, /^SOURCE_UNREACHABLE: /)
  } finally {
    await rm(folder, { recursive: true })
  }
})
