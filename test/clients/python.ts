/** The Python of this machine. Without one its tests are skipped, and say so; with CI set they fail. */
import { spawnSync } from 'node:child_process'
import { join } from 'node:path'

const LEAST = [3, 9]
const said = spawnSync('python3', ['-c', 'import sys; print(*sys.version_info[:2])'], { encoding: 'utf8' })
const [major = 0, minor = 0] = (said.status === 0 ? said.stdout : '').split(' ').map(Number)
const isThere = major === LEAST[0] && minor >= (LEAST[1] ?? 0)
const MISSING = `NO PYTHON: python3 of ${LEAST.join('.')} or later is needed to test clients/python`
if (!isThere && process.env.CI) throw new Error(MISSING)
if (!isThere) process.stderr.write(`\n${MISSING}\n\n`)

/** Why the tests of the Python client are left out; false: they are not. */
export const withoutPython: string | false = isThere ? false : MISSING

/** Where `import tailrace` finds the client. */
export const PYTHON_PATH = join(import.meta.dirname, '..', '..', 'clients', 'python')
