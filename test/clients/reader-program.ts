/** A program that reads a sink by one of the clients, as a process of its own. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { TOKEN, type Service } from '../faults/service.ts'
import { PYTHON_PATH } from './python.ts'

/** How the program of each client is started. */
export const PROGRAMS = {
  TypeScript: [process.execPath, join(import.meta.dirname, 'reader.ts')],
  Python: ['python3', join(import.meta.dirname, 'reader.py')],
} as const

/** What a row's message says: its key, and which version of the row it has. */
export type Handled = Readonly<{ id: number; v: number }>

/** Runs a program that reads a sink. */
export class ReaderProgram implements AsyncDisposable {
  readonly #child: ReturnType<typeof spawn>
  readonly #ended: Promise<unknown[]>
  #said = ''

  /** @param handled gets a line for each message that it has worked on */
  constructor(
    program: readonly [string, ...string[]],
    service: Service,
    { sink, concurrency, workMs, handled }: Readonly<{ sink: string; concurrency: number; workMs: number; handled: Handled[] }>,
  ) {
    const [command, ...args] = program
    this.#child = spawn(command, args, {
      env: {
        ...process.env,
        PYTHONDONTWRITEBYTECODE: '1',
        PYTHONPATH: PYTHON_PATH,
        URL: service.origin,
        TOKEN,
        SINK: sink,
        CONCURRENCY: String(concurrency),
        WORK_MS: String(workMs),
      },
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    this.#ended = once(this.#child, 'close')
    createInterface(this.#child.stdout!).on('line', (line) => {
      const [id = 0, v = 0] = line.split(' ').map(Number)
      handled.push({ id, v })
    })
    this.#child.stderr!.setEncoding('utf8').on('data', (text: string) => (this.#said += text))
  }

  /** @returns how it ended, when all that it has printed was read */
  async end(signal: 'SIGTERM' | 'SIGKILL'): Promise<Readonly<{ code: number | null; said: string }>> {
    this.#child.kill(signal)
    const [code] = await this.#ended
    return { code: code as number | null, said: this.#said }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#child.exitCode === null && this.#child.signalCode === null) await this.end('SIGKILL')
  }
}
