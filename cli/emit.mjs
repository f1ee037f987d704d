// What `npm pack` runs first: writes dist/ for the published package, JavaScript and declarations by the compiler, and
// beside them the files that the code reads at run time, which the compiler doesn't know.
import { execFileSync } from 'node:child_process'
import { cpSync, existsSync, rmSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, extname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const typescript = dirname(createRequire(import.meta.url).resolve('typescript/package.json'))
const FOLDERS = ['engine', 'actors', 'sinks', 'transforms', 'api']

rmSync(join(root, 'dist'), { recursive: true, force: true })
execFileSync(process.execPath, [join(typescript, 'bin', 'tsc'), '--project', 'tsconfig.build.json'], { cwd: root, stdio: 'inherit' })
for (const folder of FOLDERS.filter((name) => existsSync(join(root, name)))) {
  const isFolderOrAsset = (path) => !['.ts', '.mjs'].includes(extname(path))
  cpSync(join(root, folder), join(root, 'dist', folder), { recursive: true, filter: isFolderOrAsset })
}
