/**
 * Connections to the databases of accounts, which whoever has a token may name: only to where the egress guard lets through, on the
 * addresses that it has checked, and never to a socket in a folder. The process has one guard for all of them, as it has one
 * network; the state database and the embedded server are named by its operator, and are reached without it.
 */
import { isIP, Socket } from 'node:net'
import { EngineError } from '../errors.ts'
import { Egress, guardedLookup } from '../net/egress.ts'

/** @property own the embedded server, whose demo is a database of an account too */
type Guard = Readonly<{ egress: Pick<Egress, 'addressesOf'>; own?: Readonly<{ hostname: string; port: number }> | undefined }>

let guard: Guard = { egress: new Egress({ mode: 'private' }) }

/** Sets the guard of all databases; called once, before the first connection. */
export function guardDatabases(guardOfAll: Guard): void {
  guard = guardOfAll
}

const lookup = guardedLookup(() => guard.egress)

/** A socket to the database of an account. */
export class GuardedSocket extends Socket {
  /** Connects, as pg asks it to: with port and host, or with the path of a socket. */
  override connect(...given: unknown[]): this {
    const [port, host] = given
    if (typeof port === 'number' && typeof host === 'string') this.#connectTo(host, port)
    else
      this.destroy(
        new EngineError('EGRESS_REFUSED', 'hostname must be a host name or an IP address: a folder with a Unix socket is not allowed'),
      )
    return this
  }

  #connectTo(host: string, port: number): void {
    const { egress, own } = guard
    const isOwn = own?.hostname === host && own.port === port
    if (isOwn || isIP(host) === 0) return void super.connect({ port, host, lookup })
    egress.addressesOf(host).then(
      // an address is not looked up
      () => this.destroyed || super.connect({ port, host }),
      (error: Error) => this.destroy(error),
    )
  }
}
