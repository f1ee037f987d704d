/**
 * How the processes of a cluster know each other: by a key derived from the VAULT_KEY they share. A request carries a
 * signature over method, path, body, time and the node it is meant for, so that one that was overheard is good for no
 * other node, no other body and only for minutes. The answer carries one over the request's, so that whatever listens at
 * the address of a node that is gone can't say yes in its place. The key itself never travels. Nothing here does I/O.
 */
import { createHmac, hash, hkdfSync, timingSafeEqual } from 'node:crypto'

export const PEER_HEADER = 'x-tailrace-peer'
/** Clocks of the processes may differ by less than this. */
const MAX_AGE_MS = 5 * 60_000
const SIGNATURE = /^v1 ([\w-]{1,64}) (\d{1,16}) ([\w-]{43}) ([\w-]{43})$/

export type PeerRequest = Readonly<{ method: string; path: string; to: string }>
/** What is left to check of a request when its body has come. */
export type PeerClaim = Readonly<{ bodyHash: string; mac: string }>
/** Signed by this cluster, but for another node: its sender has not heard yet that this process began anew. */
export type MeantForAnother = Readonly<{ meantFor: string; mac: string }>

export class PeerKey {
  readonly #key: Buffer

  /** @param vaultKey 32 bytes, the same in all processes */
  constructor(vaultKey: Buffer) {
    this.#key = Buffer.from(hkdfSync('sha256', vaultKey, '', 'tailrace peer requests v1', 32))
  }

  /** @returns the header's value, and the part of it that the answer is signed over */
  sign({ method, path, to }: PeerRequest, body: string | Buffer, nowMs = Date.now()): Readonly<{ header: string; mac: string }> {
    const bodyHash = hash('sha256', body, 'base64url')
    const mac = this.#mac('request', to, String(nowMs), method, path, bodyHash)
    return { header: `v1 ${to} ${nowMs} ${bodyHash} ${mac}`, mac }
  }

  /** Checks what can be checked before the body is read. @returns undefined: not signed by this cluster, or too old */
  claim(header: unknown, { method, path, to }: PeerRequest, nowMs = Date.now()): PeerClaim | MeantForAnother | undefined {
    const [, meantFor, time, bodyHash, mac] = (typeof header === 'string' && SIGNATURE.exec(header)) || []
    if (meantFor === undefined || time === undefined || bodyHash === undefined || mac === undefined) return undefined
    const expected = this.#mac('request', meantFor, time, method, path, bodyHash)
    if (!equal(mac, expected) || Math.abs(nowMs - Number(time)) > MAX_AGE_MS) return undefined
    return meantFor === to ? { bodyHash, mac } : { meantFor, mac }
  }

  isBody({ bodyHash }: PeerClaim, body: string | Buffer): boolean {
    return equal(bodyHash, hash('sha256', body, 'base64url'))
  }

  signAnswer(requestMac: string, status: number): string {
    return this.#mac('answer', requestMac, String(status))
  }

  isAnswer(header: unknown, requestMac: string, status: number): boolean {
    return typeof header === 'string' && equal(header, this.signAnswer(requestMac, status))
  }

  #mac(...parts: readonly string[]): string {
    return createHmac('sha256', this.#key).update(parts.join('\n')).digest('base64url')
  }
}

/** Compares in a time that doesn't tell how much of them is the same. */
function equal(a: string, b: string): boolean {
  const [left, right] = [Buffer.from(a), Buffer.from(b)]
  return left.length === right.length && timingSafeEqual(left, right)
}
