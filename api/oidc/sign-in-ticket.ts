/**
 * A sign-in by OIDC is kept in a cookie of the browser until it ends, encrypted with the key of this service's processes. So any process can end
 * what another began, nothing is stored of sign-ins that are never ended, and a sign-in ends only in the browser that began it.
 */
import { createHmac } from 'node:crypto'
import { EngineError } from '../../engine/errors.ts'
import { Vault } from '../../engine/state/secrets.ts'
import type { Begun } from './issuer.ts'

/** A sign-in that was begun. @property to address where the browser goes in the end */
export type Ticket = Begun & Readonly<{ to: string; endsAt: number }>

/** So long a sign-in may take. */
export const TICKET_SECONDS = 600

/** Seals what a browser keeps, and opens it again. */
export class Tickets {
  readonly #vault: Vault

  /** @param vaultKey all processes have the same: the key of tickets is derived from it */
  constructor(vaultKey: Buffer) {
    this.#vault = new Vault(createHmac('sha256', vaultKey).update('tailrace sign-in ticket').digest())
  }

  seal(begun: Begun, to: string): string {
    const ticket: Ticket = { ...begun, to, endsAt: Date.now() + TICKET_SECONDS * 1_000 }
    return this.#vault.encrypt(JSON.stringify(ticket)).toString('base64url')
  }

  /** @param state that came back with the browser @throws EngineError OIDC_STATE_INVALID */
  open(sealed: string | undefined, state: unknown): Ticket {
    if (sealed === undefined) throw invalid('this browser has begun no sign-in, or takes no cookies')
    const ticket = this.#opened(sealed)
    if (ticket.endsAt < Date.now()) throw invalid('the sign-in took more than ten minutes')
    if (ticket.state !== state) throw invalid('this is not the sign-in that the browser began last')
    return ticket
  }

  #opened(sealed: string): Ticket {
    try {
      return JSON.parse(this.#vault.decrypt(Buffer.from(sealed, 'base64url'))) as Ticket // as it was sealed here
    } catch (error) {
      if (error instanceof EngineError && error.code === 'SECRET_UNREADABLE') throw invalid('the sign-in was begun elsewhere')
      throw error
    }
  }
}

const invalid = (message: string): EngineError => new EngineError('OIDC_STATE_INVALID', message)
