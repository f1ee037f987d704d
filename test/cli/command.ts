/** The command `tailrace` in a process of its own, away from any data folder. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { COMMAND } from '../services/bundled-command.ts'

export async function tailrace(...args: string[]): Promise<{ code: number; out: string; err: string }> {
  const env = { ...process.env, TAILRACE_DATA: join(tmpdir(), 'tailrace-no-such-folder') }
  const child = spawn(process.execPath, [COMMAND, ...args], { stdio: ['ignore', 'pipe', 'pipe'], env })
  const [[code], out, err] = await Promise.all([once(child, 'close') as Promise<[number]>, text(child.stdout), text(child.stderr)])
  return { code, out, err }
}

/** Reads what a command printed as JSON, in the shape that its caller expects: where it has another one, the assertions on it fail. */
export const printed = <T>({ out }: Readonly<{ out: string }>): T => JSON.parse(out) as T

/** A list, as commands print it with `--json`. */
export type Listed<T> = Readonly<{ data: readonly T[] }>
