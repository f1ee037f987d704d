/**
 * A TCP proxy that does to connections what networks do: cuts them, lets them fall silent without a word (half-open:
 * no FIN, no RST, nothing passes), delays and throttles. It binds 127.0.0.1 and stops with its scope.
 */
import { once } from 'node:events'
import { connect, createServer, type Server, type Socket } from 'node:net'
import { pass } from '../waiting.ts'

export type Weather = Readonly<{
  /** added to each chunk on its way, either direction */
  delayMs: number
  /** both directions together; Infinity: as fast as it goes */
  bytesPerSecond: number
}>

export const CALM: Weather = { delayMs: 0, bytesPerSecond: Infinity }

type Line = { readonly near: Socket; readonly far: Socket; /** for good */ isSilent: boolean }

export class NetProxy implements AsyncDisposable {
  readonly #server: Server
  #target: Readonly<{ host: string; port: number }>
  readonly #lines = new Set<Line>()
  readonly #swallowed = new Set<Socket>()
  #state: 'open' | 'refusing' | 'silent' = 'open'
  #weather = CALM
  #budgetFrom = 0
  #connections = 0

  private constructor(target: Readonly<{ host: string; port: number }>) {
    this.#target = target
    this.#server = createServer({ allowHalfOpen: true }, (near) => this.#accept(near))
  }

  static async start(target: Readonly<{ host: string; port: number }>): Promise<NetProxy> {
    const proxy = new NetProxy(target)
    proxy.#server.listen(0, '127.0.0.1')
    await once(proxy.#server, 'listening')
    return proxy
  }

  get port(): number {
    const address = this.#server.address()
    if (address === null || typeof address === 'string') throw new Error('the proxy does not listen')
    return address.port
  }

  /** connections made through it so far */
  get connections(): number {
    return this.#connections
  }

  /** Where new connections go from now on. */
  set target(target: Readonly<{ host: string; port: number }>) {
    this.#target = target
  }

  /** Resets every connection; new ones are let through. */
  reset(): void {
    for (const { near, far } of this.#lines) {
      abort(near)
      abort(far)
    }
  }

  /** Resets every connection and refuses new ones until `heal`. */
  cut(): void {
    this.#state = 'refusing'
    this.reset()
  }

  /** Nothing passes any more, and nobody is told: neither those that are connected nor those that connect now. */
  fallSilent(): void {
    this.#state = 'silent'
    for (const line of this.#lines) {
      line.isSilent = true
      line.near.pause()
      line.far.pause()
    }
  }

  /** Connections that fell silent stay so, as behind a firewall that forgot them; new ones work. */
  heal(): void {
    this.#state = 'open'
  }

  set weather(weather: Weather) {
    this.#weather = weather
    this.#budgetFrom = performance.now()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of [...this.#swallowed, ...[...this.#lines].flatMap(({ near, far }) => [near, far])]) socket.destroy()
    this.#server.close()
    await once(this.#server, 'close')
  }

  #accept(near: Socket): void {
    near.on('error', () => {})
    if (this.#state === 'refusing') return abort(near)
    if (this.#state === 'silent') {
      this.#swallowed.add(near.pause())
      return
    }
    this.#connections++
    const far = connect({ ...this.#target, noDelay: true, allowHalfOpen: true })
    near.setNoDelay(true)
    const line = { near, far, isSilent: false }
    this.#lines.add(line)
    this.#pass(near, far, line)
    this.#pass(far, near, line)
  }

  #pass(from: Socket, to: Socket, line: Line): void {
    let last: Promise<void> = Promise.resolve()
    from.on('error', () => {})
    from.on('data', (chunk) => {
      if (line.isSilent) return
      const wait = this.#waitFor(chunk.length)
      if (wait === 0) {
        if (!to.write(chunk)) this.#untilDrained(from, to, line)
        return
      }
      from.pause()
      last = last.then(async () => {
        await pass(wait, 'the weather')
        if (line.isSilent || to.destroyed) return
        to.write(chunk)
        from.resume()
      })
    })
    from.on('end', () => void last.then(() => to.end()))
    from.on('close', () => {
      if (from.errored) abort(to)
      if (from.destroyed && to.destroyed) this.#lines.delete(line)
    })
  }

  #untilDrained(from: Socket, to: Socket, line: Line): void {
    from.pause()
    to.once('drain', () => {
      if (!line.isSilent) from.resume()
    })
  }

  /** @returns ms until a chunk of this length may go on */
  #waitFor(bytes: number): number {
    const { delayMs, bytesPerSecond } = this.#weather
    if (bytesPerSecond === Infinity) return delayMs
    const now = performance.now()
    this.#budgetFrom = Math.max(this.#budgetFrom, now) + (bytes * 1_000) / bytesPerSecond
    return delayMs + this.#budgetFrom - now
  }
}

/** Ends it with RST. Not once its own end is on the way: libuv refuses that, and the handle would spin at exit for ever. */
function abort(socket: Socket): void {
  if (socket.connecting || socket.writableEnded || socket.destroyed) socket.destroy()
  else socket.resetAndDestroy()
}
