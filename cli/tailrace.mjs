#!/usr/bin/env node
// The command's first step, in plain JavaScript so that any Node can read it: see that Node 24 runs the rest. A
// checkout runs the TypeScript as it stands; a published package has its JavaScript in dist/, because Node strips no
// types below node_modules.
import { spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import module, { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { compileCacheFolder } from './compile-cache.mjs'

const NEEDED = 24
const LOOK_EVERY_MS = 500

endWithNpm()

if (Number(process.versions.node.split('.')[0]) >= NEEDED) {
  process.once('disconnect', () => process.kill(process.pid, 'SIGTERM')) // the older Node below was killed: nobody would end this one
  process.channel?.unref()
  const cache = compileCacheFolder()
  if (cache !== undefined) module.enableCompileCache?.(cache)
  const source = new URL('./main.ts', import.meta.url)
  const { main } = await import(existsSync(fileURLToPath(source)) ? source.href : new URL('../dist/cli/main.js', import.meta.url).href)
  await main(process.argv.slice(2))
} else {
  const node = installedNode()
  if (node === undefined) {
    process.stderr.write(
      `tailrace needs Node ${NEEDED} or later and runs on ${process.version}. Install it from https://nodejs.org, ` +
        `or install the optional dependency that brings it: npm install node@${NEEDED}\n`,
    )
    process.exitCode = 1
  } else {
    // All signals are passed on; a Ctrl-C that the terminal sends to both comes twice there, which is taken as one.
    const child = spawn(node, process.argv.slice(1), { stdio: ['inherit', 'inherit', 'inherit', 'ipc'] })
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => child.kill(signal))
    child.on('error', (error) => {
      process.stderr.write(`tailrace cannot run ${node}: ${error.message}\n`)
      process.exitCode = 1
    })
    child.on('exit', (code, signal) => {
      if (signal === null) process.exit(code)
      process.removeAllListeners(signal)
      process.kill(process.pid, signal) // ends as the child did
    })
  }
}

/** npm starts a script through a shell, which passes no signal on: when that one is gone, whoever ended it meant us. */
function endWithNpm() {
  // oxlint-disable-next-line no-process-env -- what reads the settings needs the newer Node
  if (process.env.npm_lifecycle_event === undefined) return
  const parent = process.ppid
  const timer = setInterval(() => {
    if (process.ppid === parent) return
    clearInterval(timer)
    process.kill(process.pid, 'SIGTERM')
  }, LOOK_EVERY_MS)
  timer.unref()
}

/** The binary of the optional dependency "node", when its install script has fetched it. */
function installedNode() {
  try {
    const folder = dirname(createRequire(import.meta.url).resolve('node/package.json'))
    const binary = join(folder, 'bin', process.platform === 'win32' ? 'node.exe' : 'node')
    return existsSync(binary) ? binary : undefined
  } catch {
    return undefined
  }
}
