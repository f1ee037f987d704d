/** What the services in Java are fetched and asked with. */
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { mkdir, rename, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/**
 * @param without what is missing where the program can't be run, and what to do instead
 * @returns what it printed
 * @throws Error it can't be run, or failed
 */
export function run(program: string, args: readonly string[], without: string): string {
  const { error, status, stdout, stderr } = spawnSync(program, args, { encoding: 'utf8' })
  if (error) throw new Error(`${program} can't be run (${error.message}); ${without}`)
  if (status !== 0) throw new Error(`${program} ${args.at(-1)}: ${stderr}${stdout}`)
  return `${stdout}${stderr}`
}

/**
 * Fetches by Maven what a pom depends on, the first time; several processes may ask at once.
 * @param name begins the name of the folder, in the machine's temporary one; the pom's digest ends it
 * @returns the folder with the jars
 * @throws Error Maven can't be run, or failed; `without` says what to do instead
 */
export async function jarFolder(pom: string, name: string, without: string): Promise<string> {
  const folder = join(tmpdir(), `${name}-${createHash('sha256').update(readFileSync(pom)).digest('hex').slice(0, 12)}`)
  if (existsSync(folder)) return folder
  const fetching = `${folder}.${process.pid}`
  await mkdir(fetching, { recursive: true })
  run('mvn', ['-B', '-q', '-f', pom, 'dependency:copy-dependencies', '-DincludeScope=runtime', `-DoutputDirectory=${fetching}`], without)
  await rename(fetching, folder).catch(() => rm(fetching, { recursive: true, force: true })) // another process was first
  return folder
}
