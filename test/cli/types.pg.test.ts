/** `tailrace types` as a shell sees it: what it writes is TypeScript that fits the rows. */
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { test } from 'node:test'
import { createDatabase } from '../services/postgres.ts'

const bin = join(dirname(dirname(import.meta.dirname)), 'cli', 'tailrace.mjs')

test('the types of a database’s rows are written as functions see them', async () => {
  await using db = await createDatabase(`
    create schema sales;
    create type size as enum ('small', 'x-large');
    create domain sku as text not null;
    create table goods (id bigint primary key, sku sku, size size, sizes size[], tags text[] not null, price numeric, weight float8, about jsonb, "sold at" timestamptz, day interval);
    create table sales.goods (id int primary key);
    create table parts (id int, no int) partition by range (id);
    create table parts_1 partition of parts for values from (1) to (2);
  `)
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-types-'))
  try {
    const run = (args: readonly string[], env: Record<string, string> = {}) =>
      spawnSync(process.execPath, [bin, 'types', ...args], { encoding: 'utf8', env: { ...process.env, ...env } })
    const { stdout, stderr } = run([db.url])
    const lines = stdout.split('\n').filter((line) => !line.startsWith('//'))
    assert.deepEqual(
      lines.slice(1),
      `/** public.goods */
export type Goods = {
  id: number | bigint
  sku: string | null
  size: "small" | "x-large" | null
  sizes: ("small" | "x-large" | null)[] | null
  tags: (string | null)[]
  price: string | null
  weight: number | 'NaN' | 'Infinity' | '-Infinity' | null
  about: any
  "sold at": string | null
  day: { months: number; days: number; microseconds: number } | null
}

/** public.parts */
export type Parts = {
  id: number | null
  no: number | null
}

/** sales.goods */
export type SalesGoods = {
  id: number
}
`.split('\n'),
      stderr,
    )
    const { hostname, port, database, username, password } = db.connection
    const yaml = {
      account: { name: 'a' },
      databases: [
        { name: 'shop', hostname, port, database, username, password, ssl: false, slot: { name: 's' }, publication: { name: 'p' } },
      ],
    }
    const [config, output] = [join(folder, 'tailrace.yaml'), join(folder, 'shop.ts')]
    await writeFile(config, JSON.stringify(yaml))
    const named = run(['shop', '--schema', 'sales', '--output', output], { CONFIG_FILE_PATH: config })
    assert.equal(named.status, 0, named.stderr)
    assert.match(await readFile(output, 'utf8'), /^\/\/ Rows of "shop" .*[^]*export type SalesGoods = \{\n {2}id: number\n\}\n$/)
    assert.match(
      run(['other'], { CONFIG_FILE_PATH: config }).stderr,
      /^ARGUMENT_INVALID: the configuration file has no database "other"; it has shop\n/,
    )
    assert.equal(run([]).status, 2)
  } finally {
    await rm(folder, { recursive: true })
  }
})
