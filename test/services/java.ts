/** What the services in Java are fetched and asked with. */
import { spawnSync } from 'node:child_process'

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
