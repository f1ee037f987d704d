/** The published package: Node strips no types below node_modules, so what npm packs has to run without. */
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { cp, mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { test } from 'node:test'

const root = dirname(dirname(import.meta.dirname))
type Manifest = Readonly<{ version: string; dependencies: Readonly<Record<string, string>> }>
/** Names of packages that a module imports, by the form that the compiler gives imports. */
const packagesOf = (module: string): string[] =>
  [...module.matchAll(/(?:^(?:import|export) [^;]*?from |^import |\bimport\()["']((?:@[\w-]+\/)?[\w-]+)(?:\/[\w./-]+)?["']/gm)].map(
    ([, name]) => name as string,
  )
/** A program of a user that has no types of Node. */
const PROGRAM = `import { consume, TailraceError, type Message } from 'tailrace/client'
import type { Transform } from 'tailrace'
type Goods = { id: number; title: string | null }
type DeletedGoods = { id: number; title: null }
export const same: Transform = (_, record) => record
const titleOf = (message: Message<Goods, DeletedGoods>): string | null => (message.action === 'delete' ? null : message.record.title)
consume<Goods, DeletedGoods>({ sink: 'goods', token: '' }, titleOf).catch((error) => console.log(error instanceof TailraceError && error.code))
`
const LEFT_OUT = new Set(['node_modules', 'data', 'dist', '.git', 'results'])

test('what npm packs runs from node_modules, and has the files that the code reads', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-package-'))
  try {
    const source = join(folder, 'source')
    await cp(root, source, { recursive: true, filter: (path) => !LEFT_OUT.has(basename(path)) })
    await symlink(join(root, 'node_modules'), join(source, 'node_modules'))
    execFileSync('npm', ['pack', '--pack-destination', folder], { cwd: source, stdio: 'pipe' })

    const modules = join(folder, 'user', 'node_modules')
    await cp(join(source, 'package.json'), join(folder, 'user', 'package.json'))
    const tarball = (await readdir(folder)).find((name) => name.endsWith('.tgz'))
    assert.ok(tarball, 'npm pack made a tarball')
    execFileSync('tar', ['-xzf', join(folder, tarball), '-C', folder])
    await cp(join(folder, 'package'), join(modules, 'tailrace'), { recursive: true })
    for (const name of await readdir(join(root, 'node_modules'))) await symlink(join(root, 'node_modules', name), join(modules, name))

    const { version, dependencies } = JSON.parse(await readFile(join(root, 'package.json'), 'utf8')) as Manifest
    const bin = join(modules, 'tailrace', 'cli', 'tailrace.mjs')
    assert.equal(execFileSync(process.execPath, [bin, 'version'], { encoding: 'utf8' }), `${version}\n`)

    const packed = await readdir(join(modules, 'tailrace'), { recursive: true })
    const migrations = await readdir(join(root, 'engine', 'state', 'migrations'))
    for (const name of migrations)
      assert.ok(packed.includes(join('dist', 'engine', 'state', 'migrations', name)), `${name} is in the package`)
    assert.deepEqual(
      packed.filter((name) => name.endsWith('.ts') && !name.endsWith('.d.ts')),
      [],
      'no TypeScript that Node would refuse to run',
    )
    const imported = await Promise.all(
      packed
        .filter((name) => name.endsWith('.js'))
        .map(async (name) => packagesOf(await readFile(join(modules, 'tailrace', name), 'utf8'))),
    )
    const known = [...Object.keys(dependencies)]
    assert.deepEqual([...new Set(imported.flat())].filter((name) => !known.includes(name)), [], 'users have what it imports') // prettier-ignore

    const user = join(folder, 'program')
    await mkdir(user)
    await symlink(modules, join(user, 'node_modules'))
    await writeFile(join(user, 'program.mts'), PROGRAM)
    const strict = ['--strict', '--module', 'nodenext', '--target', 'es2023', '--lib', 'es2023,dom', '--types', '']
    execFileSync(process.execPath, [join(root, 'node_modules/typescript/bin/tsc'), ...strict, 'program.mts'], {
      cwd: user,
      stdio: 'inherit',
    })
    assert.equal(execFileSync(process.execPath, ['program.mjs'], { cwd: user, encoding: 'utf8' }), 'ARGUMENT_INVALID\n')
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
})
