/**
 * Lets test files that need nothing but the code share a few processes: to start one and to load what they test takes longer than
 * the tests of most. A file that has hooks at its top, which would be everybody's, or that touches its process or the clock, runs
 * alone. Tests of a process run one after another, and must not depend on which come before.
 */
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'

/** More of them would be late at the end, when one process has much to do and the others nothing. */
const FILES_OF_ONE = 24
const NEEDS_ITS_OWN = /^(before|after|beforeEach|afterEach)\(|\bprocess\.|\bmock\.|node:child_process|node:v8/m

/**
 * @param files below root
 * @param folder for the files that are made
 * @returns files to run in their place: made ones, which import those that share a process, and behind them all others
 */
export function together(files: readonly string[], root: string, folder: string): string[] {
  const [shared, alone] = [files.filter((file) => mayShare(file, root)), files.filter((file) => !mayShare(file, root))]
  if (shared.length < 2) return [...files]
  const processes = Math.ceil(shared.length / FILES_OF_ONE)
  const made = Array.from({ length: processes }, (_, n) => {
    const path = join(folder, `together-${n + 1}.test.ts`)
    const urls = shared.filter((_file, at) => at % processes === n).map((file) => pathToFileURL(join(root, file)).href)
    writeFileSync(path, urls.map((url) => `import ${JSON.stringify(url)}\n`).join(''))
    return path
  })
  return [...made, ...alone]
}

const mayShare = (file: string, root: string): boolean =>
  /^test\/(actors|api|engine|sinks|transforms)\//.test(file) &&
  !/\.(pg|kafka|search)\.test\.ts$/.test(file) &&
  !NEEDS_ITS_OWN.test(readFileSync(join(root, file), 'utf8'))
