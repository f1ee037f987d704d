/**
 * What makes clients of the OpenAPI document, one for each language, in the versions that the folders beside this file pin. Each is fetched from the
 * registry of its language the first time, into a folder that is kept, and needs the language itself.
 */
import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { cp, mkdir, rename, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'

const root = join(import.meta.dirname, '..', '..', '..')
/** The compiler that the sources of this project are held by. */
const TSC = join(root, 'node_modules', '.bin', 'tsc')
/** A first build of the Go client's generator takes minutes on a slow machine. */
const LIMIT_MS = 15 * 60_000

/** Makes a client for one language, and a program with it. */
export type Generator = Readonly<{
  language: string
  /** @throws Error the language or its registry is missing: says which */
  install: () => Promise<string>
  /**
   * Makes the client and compiles it, with the scenario.
   * @param options.tools what `install` returned
   * @param options.document the file with the OpenAPI document
   * @param options.folder empty, for what is made
   * @returns the command that runs the scenario
   */
  build: (options: Build) => Promise<Command>
}>
type Build = Readonly<{ tools: string; document: string; folder: string }>
type Command = readonly [program: string, ...args: string[]]

/** @throws Error the program is missing, or failed: with what it said */
export async function run([program, ...args]: Command, { cwd, env = {} }: Readonly<{ cwd: string; env?: object }>): Promise<string> {
  const options = { cwd, env: { ...process.env, ...env }, timeout: LIMIT_MS, maxBuffer: 64 << 20 }
  try {
    return (await promisify(execFile)(program, args, options)).stdout
  } catch (error) {
    const { message, stdout = '', stderr = '' } = error as Error & { stdout?: string; stderr?: string }
    throw new Error(`${message}\n${stdout}${stderr}`, { cause: error })
  }
}

/** Fills a folder of the machine's temporary one, once for each text of the files that pin what comes into it. */
async function installed(language: string, pins: readonly string[], fill: (folder: string) => Promise<unknown>): Promise<string> {
  const sources = join(import.meta.dirname, language)
  const digest = createHash('sha256')
  for (const file of pins) digest.update(readFileSync(join(sources, file)))
  const folder = join(tmpdir(), `tailrace-generator-${language}-${digest.digest('hex').slice(0, 12)}`)
  if (existsSync(folder)) return folder
  const filling = `${folder}.${process.pid}`
  await mkdir(filling, { recursive: true })
  for (const file of pins) await cp(join(sources, file), join(filling, file))
  try {
    await fill(filling)
  } catch (error) {
    await rm(filling, { recursive: true, force: true })
    throw error
  }
  await rename(filling, folder).catch(() => rm(filling, { recursive: true, force: true })) // another process was first
  return folder
}

const typescript: Generator = {
  language: 'typescript',
  install: () =>
    installed('typescript', ['package.json', 'package-lock.json'], (folder) =>
      run(['npm', 'ci', '--ignore-scripts', '--no-audit', '--no-fund'], { cwd: folder }),
    ),
  build: async ({ tools, document, folder }) => {
    const generator = join(tools, 'node_modules', 'openapi-typescript', 'bin', 'cli.js')
    await run([process.execPath, generator, document, '--output', join(folder, 'api.d.ts')], { cwd: folder })
    await cp(join(import.meta.dirname, 'typescript', 'scenario.ts'), join(folder, 'scenario.ts'))
    await symlink(join(tools, 'node_modules'), join(folder, 'node_modules'))
    const compilerOptions = {
      ...{ target: 'es2024', lib: ['es2024', 'dom', 'dom.iterable'], module: 'nodenext', strict: true, noUncheckedIndexedAccess: true },
      ...{ noEmit: true, allowImportingTsExtensions: true, typeRoots: [join(root, 'node_modules', '@types')], types: ['node'] },
    }
    await writeFile(join(folder, 'package.json'), JSON.stringify({ type: 'module' }))
    await writeFile(join(folder, 'tsconfig.json'), JSON.stringify({ compilerOptions, files: ['scenario.ts'] }))
    await run([TSC], { cwd: folder })
    return [process.execPath, join(folder, 'scenario.ts')]
  },
}

const python: Generator = {
  language: 'python',
  install: () =>
    installed('python', ['requirements.txt'], async (folder) => {
      await run(['python3', '-m', 'venv', '--copies', join(folder, 'venv')], { cwd: folder })
      const install = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '--requirement', 'requirements.txt'] as const
      await run([interpreter(folder), ...install], { cwd: folder })
    }),
  build: async ({ tools, document, folder }) => {
    const config = join(folder, 'generator.yaml')
    await writeFile(config, 'post_hooks: []\n') // they only format
    const output = join(folder, 'tailrace_api')
    const options = ['--path', document, '--output-path', output, '--meta', 'none', '--config', config, '--fail-on-warning']
    await run([interpreter(tools), '-m', 'openapi_python_client', 'generate', ...options], { cwd: folder })
    await cp(join(import.meta.dirname, 'python', 'scenario.py'), join(folder, 'scenario.py'))
    await run([interpreter(tools), '-m', 'compileall', '-q', folder], { cwd: folder })
    return [interpreter(tools), join(folder, 'scenario.py')]
  },
}
const interpreter = (tools: string): string => join(tools, 'venv', 'bin', 'python3')

const go: Generator = {
  language: 'go',
  // `go` keeps what it fetches and builds in a folder of its own
  install: async () => {
    const sources = join(import.meta.dirname, 'go')
    await run(['go', 'tool', 'oapi-codegen', '-version'], { cwd: sources })
    return sources
  },
  build: async ({ tools, document, folder }) => {
    for (const file of ['go.mod', 'go.sum', 'scenario.go']) await cp(join(tools, file), join(folder, file))
    await mkdir(join(folder, 'api'))
    const output = join(folder, 'api', 'api.go')
    await run(['go', 'tool', 'oapi-codegen', '-generate', 'types,client', '-package', 'api', '-o', output, document], { cwd: folder })
    await run(['go', 'vet', './...'], { cwd: folder })
    await run(['go', 'build', '-o', 'scenario', '.'], { cwd: folder })
    return [join(folder, 'scenario')]
  },
}

/** One for each language. */
export const GENERATORS = [typescript, python, go]
