/**
 * The sessions on which pages of one source are read. What a backfill has left is there for the next one for some seconds: of a thousand
 * small tables each would take longer to connect than to read.
 */
import type { Connection } from '../postgres/client-config.ts'
import { PageSession } from './page-session.ts'

const IDLE_MS = 5_000

type Idle = Readonly<{ session: PageSession; timer: NodeJS.Timeout }>

/** Lends out sessions. */
export class PageSessions implements Disposable {
  readonly #connection: Connection
  readonly #name: string
  readonly #idle: Idle[] = []
  #isEnded = false

  constructor(connection: Connection, name: string) {
    this.#connection = connection
    this.#name = name
  }

  /** @param timeoutMs of each of its queries. @throws EngineError of toSourceError */
  async take(timeoutMs: number): Promise<PageSession> {
    for (let at = this.#idle.findLastIndex(({ session }) => session.timeoutMs === timeoutMs); at >= 0;) {
      const [found] = this.#idle.splice(at, 1)
      clearTimeout(found?.timer)
      if (found?.session.isFresh) return found.session
      at = this.#idle.findLastIndex(({ session }) => session.timeoutMs === timeoutMs)
    }
    return PageSession.open(this.#connection, this.#name, timeoutMs)
  }

  /** Takes back a session on which nothing is under way. */
  give(session: PageSession): void {
    if (this.#isEnded || !session.isFresh) return session.close()
    const timer = setTimeout(() => {
      this.#idle.splice(this.#idle.indexOf(idle), 1)
      session.close()
    }, IDLE_MS)
    const idle = { session, timer: timer.unref() }
    this.#idle.push(idle)
  }

  [Symbol.dispose](): void {
    this.#isEnded = true
    for (const { session, timer } of this.#idle.splice(0)) {
      clearTimeout(timer)
      session.close()
    }
  }
}
