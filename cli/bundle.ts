/**
 * A function and the libraries that it imports as one module, for sandboxes take modules without imports only. Libraries are
 * looked for beside the function, as its own package.json has them; what needs Node or a browser can't be had.
 */
import { existsSync, readFileSync, realpathSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join, resolve, sep } from 'node:path'
import type * as esbuild from 'esbuild'
import { EngineError } from '../engine/errors.ts'
import { isObject } from '../engine/json.ts'
import { BUNDLE_MARK, MAX_BUNDLE_BYTES } from '../transforms/compile.ts'

/** More of them say nothing new. */
const MAX_TOLD = 10

/**
 * Bundles a function and what it imports. @returns JavaScript without imports @throws EngineError VALIDATION_FAILED: what can't be
 * resolved or read, and where; it is too large
 */
export function bundled(
  file: string,
  { minify = false, outside = () => {} }: Readonly<{ minify?: boolean; outside?: ((files: readonly string[]) => void) | undefined }> = {},
): string {
  const code = built(file, { minify, sourcemap: 'inline', outside })
  const bytes = (text: string) => Buffer.byteLength(text)
  if (bytes(code) <= MAX_BUNDLE_BYTES) return code
  const bare = built(file, { minify, sourcemap: false, outside: () => {} }) // then failures tell places in the bundle
  if (bytes(bare) <= MAX_BUNDLE_BYTES) return bare
  throw wrong(`the bundle has ${bytes(bare)} bytes, more than ${MAX_BUNDLE_BYTES}${minify ? '' : '; --minify makes it smaller'}`)
}

/** @param options `sourcemap`: inline, so that failures tell places in the author's files */
function built(
  file: string,
  { outside, ...options }: Readonly<{ minify: boolean; sourcemap: 'inline' | false; outside: (files: readonly string[]) => void }>,
): string {
  const { buildSync }: typeof esbuild = createRequire(import.meta.url)('esbuild') // not loaded before it is needed
  const path = realpathSync(file)
  try {
    const { outputFiles, metafile } = buildSync({
      entryPoints: [path],
      absWorkingDir: dirname(path),
      write: false,
      logLevel: 'silent',
      bundle: true,
      metafile: true,
      ...options,
      format: 'esm',
      platform: 'neutral',
      mainFields: ['module', 'main'],
      conditions: ['module', 'import', 'default'],
      target: 'es2024',
      charset: 'utf8',
      legalComments: 'none',
      sourcesContent: false,
      banner: { js: BUNDLE_MARK },
      define: { 'process.env.NODE_ENV': '"production"' },
    })
    const folder = packageOf(path)
    const files = Object.keys(metafile.inputs).map((input) => resolve(dirname(path), input))
    const strangers = files.filter((one) => !one.startsWith(`${folder}${sep}`) && !one.includes(`${sep}node_modules${sep}`))
    if (strangers.length > 0) outside(strangers)
    return outputFiles.map(({ text }) => text).join('')
  } catch (error) {
    if (!isFailure(error)) throw error
    throw wrong(error.errors.slice(0, MAX_TOLD).map(inWords).join('\n'))
  }
}

/** The nearest folder above a file that has a package.json; its own, where none has. */
function packageOf(file: string): string {
  for (let folder = dirname(file); folder !== dirname(folder); folder = dirname(folder))
    if (existsSync(join(folder, 'package.json'))) return folder
  return dirname(file)
}

const isFailure = (error: unknown): error is esbuild.BuildFailure => isObject(error) && Array.isArray(error['errors'])

const inWords = ({ text, location }: esbuild.Message): string =>
  location ? `${location.file}:${location.line}:${location.column + 1}: ${text}` : text

const wrong = (text: string) => new EngineError('VALIDATION_FAILED', text, { code: text })

/** Warns whoever builds a bundle of files that its author may not have meant to give away. */
export const tellOutside = (files: readonly string[]): void =>
  void process.stderr.write(
    `files from outside of its package are in the bundle, with all that they hold:\n${files.map((one) => `  ${one}\n`).join('')}`,
  )

/**
 * Reads the file of a function as a sandbox gets it: bundled where it imports anything. @throws EngineError VALIDATION_FAILED; the
 * file can't be read
 */
export function functionText(file: string, outside?: (files: readonly string[]) => void): string {
  const source = readFileSync(file, 'utf8')
  return /\.[cm]?[jt]s$/.test(file) && hasImports(source) ? bundled(file, { outside }) : source
}

/** Tells whether code imports anything but types. */
export const hasImports = (code: string): boolean =>
  /^[^\S\r\n\u2028\u2029]*(?:import\s+(?!type\b)|export\s[^'"\n]*\bfrom\s*['"])/m.test(code)
