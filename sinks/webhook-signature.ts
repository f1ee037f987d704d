/**
 * Signatures of requests in the Standard Webhooks form, which public libraries verify: HMAC-SHA256 over id, time and body,
 * once with each secret, so that a secret can be changed while both are valid.
 * @see https://www.standardwebhooks.com
 */
import { createHash, createHmac } from 'node:crypto'
import type { Message } from '../engine/dispatch/batch.ts'
import { positionName } from './messages.ts'

const PREFIX = 'whsec_'

/** Signs the requests of one sink. */
export class Signer {
  readonly #keys: readonly Buffer[]

  /** @param secrets `whsec_` and the key in base64 */
  constructor(secrets: readonly string[]) {
    this.#keys = secrets.map((secret) => Buffer.from(secret.slice(PREFIX.length), 'base64'))
  }

  /**
   * The three headers of a request, as name, value, name, value, …
   * @param body as it is sent, before compression
   */
  headers(id: string, body: Uint8Array, now = Date.now()): string[] {
    const seconds = Math.floor(now / 1000)
    const signatures = this.#keys.map((key) => `v1,${createHmac('sha256', key).update(`${id}.${seconds}.`).update(body).digest('base64')}`)
    return ['webhook-id', id, 'webhook-timestamp', String(seconds), 'webhook-signature', signatures.join(' ')]
  }
}

/** Names what a request brings: the same messages sent again have the same name, others another. */
export function webhookId(messages: readonly Message[]): string {
  const names = messages.map((message) => positionName(message).replaceAll(/[:/]/g, '-'))
  if (names.length === 1) return `msg_${names[0]}`
  return `msg_${createHash('sha256').update(names.join(' ')).digest('base64url')}`
}
