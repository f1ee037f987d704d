/** `tailrace types` as a shell sees it: what it writes is TypeScript that fits the rows. */
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { test } from 'node:test'
import { createDatabase } from '../services/postgres.ts'

const root = dirname(dirname(import.meta.dirname))
const bin = join(root, 'cli', 'tailrace.mjs')

/** What the compiler says of files beside the types of rows, in a project as the docs have it. */
async function typeErrors(folder: string, files: Readonly<Record<string, string>>): Promise<string[]> {
  for (const [name, text] of Object.entries(files)) await writeFile(join(folder, name), text)
  const compilerOptions = {
    strict: true,
    noEmit: true,
    target: 'es2024',
    lib: ['es2024'],
    types: [],
    module: 'nodenext',
    skipLibCheck: true,
  }
  const paths = { tailrace: [join(root, 'transforms', 'types.ts')] }
  const project = { compilerOptions: { ...compilerOptions, allowImportingTsExtensions: true, paths }, files: Object.keys(files) }
  await writeFile(join(folder, 'tsconfig.json'), JSON.stringify(project))
  const { stdout } = spawnSync(process.execPath, [join(root, 'node_modules', 'typescript', 'bin', 'tsc'), '-p', folder], {
    encoding: 'utf8',
  })
  return [...stdout.matchAll(/^(\S+)\(\d+,\d+\): error TS\d+: (.*)$/gm)]
    .map(([, file, text]) => `${basename(file ?? '')}: ${text}`)
    .toSorted()
}

test('the types of a database’s rows are written as functions see them', async () => {
  await using db = await createDatabase(`
    create schema sales;
    create type size as enum ('small', 'x-large');
    create domain sku as text not null;
    create table goods (id bigint primary key, sku sku, size size, sizes size[], tags text[] not null, price numeric, weight float8, about jsonb, "sold at" timestamptz, day interval, twice numeric generated always as (price * 2) stored);
    create table sales.goods (id int primary key, name text not null, codes int[]);
    alter table sales.goods replica identity full;
    create table links (id int primary key, a int not null, b int not null, note text not null);
    create unique index links_ab on links (b, a);
    alter table links replica identity using index links_ab;
    create table parts (id int, no int) partition by range (id);
    create table parts_1 partition of parts for values from (1) to (2);
    alter table parts_1 replica identity full;
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
  sizes: ("small" | "x-large" | null)[] | 'unchanged_toast' | null
  tags: (string | null)[] | 'unchanged_toast'
  price: string | null
  weight: number | 'NaN' | 'Infinity' | '-Infinity' | null
  about: any
  "sold at": string | null
  day: { months: number; days: number; microseconds: number } | null
  twice?: string | null
}
export type DeletedGoods = {
  id: number | bigint
  sku: null
  size: null
  sizes: null
  tags: null
  price: null
  weight: null
  about: null
  "sold at": null
  day: null
  twice?: null
}

/** public.links */
export type Links = {
  id: number
  a: number
  b: number
  note: string
}
export type DeletedLinks = {
  id: null
  a: number
  b: number
  note: null
}

/** public.parts */
export type Parts = {
  id: number | null
  no: number | null
}
export type DeletedParts = Parts

/** sales.goods */
export type SalesGoods = {
  id: number
  name: string
  codes: (number | null)[] | null
}
export type DeletedSalesGoods = SalesGoods
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
    assert.match(await readFile(output, 'utf8'), /^\/\/ Rows of "shop" .*[^]*export type SalesGoods = \{\n {2}id: number\n[^]*$/)
    assert.match(
      run(['other'], { CONFIG_FILE_PATH: config }).stderr,
      /^ARGUMENT_INVALID: the configuration file has no database "other"; it has shop\n/,
    )
    assert.equal(run([]).status, 2)

    await writeFile(join(folder, 'shop.ts'), stdout)
    const wrong = await typeErrors(folder, {
      'deleted.ts': `import type { Transform } from 'tailrace'\nimport type { Goods, DeletedGoods } from './shop.ts'
export default ((action, record) => ({ id: record.id.toString(), price: record.price?.length, tags: record.tags?.length })) satisfies Transform<Goods, DeletedGoods>\n`,
      'unsafe.ts': `import type { Filter } from 'tailrace'\nimport type { Links, DeletedLinks } from './shop.ts'
export default ((action, record) => record.note.length > record.a) satisfies Filter<Links, DeletedLinks>\n`,
      'unknown.ts': `import type { Transform } from 'tailrace'\nimport type { Links } from './shop.ts'
export default ((action, record) => record.note.length) satisfies Transform<Links>\n`,
      'narrowed.ts': `import type { Route } from 'tailrace'\nimport type { Links, DeletedLinks } from './shop.ts'
export default ((action, record) => (record.note === null ? {} : { index_name: record.note.trim() + record.id.toFixed() })) satisfies Route<'elasticsearch', Links, DeletedLinks>\n`,
      'full.ts': `import type { Transform } from 'tailrace'\nimport type { SalesGoods, DeletedSalesGoods } from './shop.ts'
export default ((action, record) => [record.name.trim(), record.codes?.map((code) => code), record.colour]) satisfies Transform<SalesGoods, DeletedSalesGoods>\n`,
    })
    assert.deepEqual(wrong, [
      "full.ts: Property 'colour' does not exist on type 'SalesGoods'.",
      "unknown.ts: 'record.note' is possibly 'null'.",
      "unsafe.ts: 'record.note' is possibly 'null'.",
    ])
  } finally {
    await rm(folder, { recursive: true })
  }
})
