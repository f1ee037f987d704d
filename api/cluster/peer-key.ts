/**
 * Lets the processes of a cluster know each other by a key derived from the VAULT_KEY that they share. A request carries a
 * signature over method, path, body, time, a number that is used once, and the node it is meant for: one that was overheard
 * is good for no other node and no other body, and the node that took it takes it no second time. The answer carries one over
 * the request's, its status, its body and the headers that count: it can't be changed on the way, and a program that listens
 * at the address of a node that is gone can't say yes in its place. The key itself never travels. What is sent can be read
 * on the way. Nothing here does I/O.
 */
import { createHmac, hash, hkdfSync, randomBytes, timingSafeEqual } from 'node:crypto'

/** The header that carries the signature of a request, and that of its answer. */
export const PEER_HEADER = 'x-tailrace-peer'
/** Clocks of the processes may differ by less than this. */
const MAX_AGE_MS = 5 * 60_000
const SIGNATURE = /^v2 ([\w-]{1,64}) (\d{1,16}) ([\w-]{22}) ([\w-]{43}) ([\w-]{43})$/
const NONCE_BYTES = 16

type PeerRequest = Readonly<{ method: string; path: string; to: string }>
/** Holds what is left to check of a request when its body has come. */
export type PeerClaim = Readonly<{ bodyHash: string; mac: string; timeMs: number }>
/** @property counts values of headers that are part of what is said; absent ones are empty */
type PeerAnswer = Readonly<{ status: number; body: string | Buffer; counts: readonly string[] }>
/** Signed by this cluster, but for another node: its sender has not heard yet that this process began anew. */
type MeantForAnother = Readonly<{ meantFor: string; mac: string }>

/** Signs what processes of a cluster say to each other, and checks it. */
export class PeerKey {
  readonly #key: Buffer
  /** those that others may sign by while the key is changed, and its own */
  readonly #accepted: readonly Buffer[]

  /** @param vaultKey 32 bytes, the same in all processes @param other one that is accepted too, while the key is changed */
  constructor(vaultKey: Buffer, other?: Buffer) {
    const derived = (key: Buffer) => Buffer.from(hkdfSync('sha256', key, '', 'tailrace peer requests v2', 32))
    this.#key = derived(vaultKey)
    this.#accepted = [this.#key, ...(other ? [derived(other)] : [])]
  }

  /** @returns the header's value, and the part of it that the answer is signed over */
  sign({ method, path, to }: PeerRequest, body: string | Buffer, nowMs = Date.now()): Readonly<{ header: string; mac: string }> {
    const bodyHash = hash('sha256', body, 'base64url')
    const nonce = randomBytes(NONCE_BYTES).toString('base64url')
    const mac = macOf(this.#key, 'request', to, String(nowMs), nonce, method, path, bodyHash)
    return { header: `v2 ${to} ${nowMs} ${nonce} ${bodyHash} ${mac}`, mac }
  }

  /** Checks what can be checked before the body is read. @returns undefined: not signed by this cluster, or too old */
  claim(header: unknown, { method, path, to }: PeerRequest, nowMs = Date.now()): PeerClaim | MeantForAnother | undefined {
    const [, meantFor, time, nonce, bodyHash, mac] = (typeof header === 'string' && SIGNATURE.exec(header)) || []
    if (meantFor === undefined || time === undefined || nonce === undefined || bodyHash === undefined || mac === undefined) return undefined
    const isSigned = this.#accepted.some((key) => equal(mac, macOf(key, 'request', meantFor, time, nonce, method, path, bodyHash)))
    if (!isSigned || Math.abs(nowMs - Number(time)) > MAX_AGE_MS) return undefined
    return meantFor === to ? { bodyHash, mac, timeMs: Number(time) } : { meantFor, mac }
  }

  isBody({ bodyHash }: PeerClaim, body: string | Buffer): boolean {
    return equal(bodyHash, hash('sha256', body, 'base64url'))
  }

  signAnswer(requestMac: string, answer: PeerAnswer): string {
    return answerMac(this.#key, requestMac, answer)
  }

  isAnswer(header: unknown, requestMac: string, answer: PeerAnswer): boolean {
    return typeof header === 'string' && this.#accepted.some((key) => equal(header, answerMac(key, requestMac, answer)))
  }
}

const answerMac = (key: Buffer, requestMac: string, { status, body, counts }: PeerAnswer): string =>
  macOf(key, 'answer', requestMac, String(status), ...counts, hash('sha256', body, 'base64url'))

const macOf = (key: Buffer, ...parts: readonly string[]): string => createHmac('sha256', key).update(parts.join('\n')).digest('base64url')

/** Compares in a time that doesn't tell how much of them is the same. */
function equal(a: string, b: string): boolean {
  const [left, right] = [Buffer.from(a), Buffer.from(b)]
  return left.length === right.length && timingSafeEqual(left, right)
}

/**
 * At most so many requests are remembered, in about 25 MB. With more than 650 requests a second these are the requests of less than
 * five minutes.
 */
const MAX_TAKEN = 200_000

/**
 * Remembers the requests that this process has taken, for as long as their time would let them pass again. Those of its former life name
 * another node. When there are too many, the oldest are forgotten; a request as old as those is refused from then on.
 */
export class TakenRequests {
  /** their times by their signatures, in the order they came */
  readonly #taken = new Map<string, number>()
  readonly #most: number
  #forgottenMs = -Infinity

  /** @param most only tests say another than the product's */
  constructor(most = MAX_TAKEN) {
    this.#most = most
  }

  /** @returns false: it was taken before, or may have been */
  take({ mac, timeMs }: PeerClaim, nowMs = Date.now()): boolean {
    if (timeMs <= this.#forgottenMs || this.#taken.has(mac)) return false
    this.#taken.set(mac, timeMs)
    for (const [old, oldMs] of this.#taken) {
      const isOver = oldMs + MAX_AGE_MS < nowMs
      if (!isOver && this.#taken.size <= this.#most) break
      if (!isOver) this.#forgottenMs = Math.max(this.#forgottenMs, oldMs)
      this.#taken.delete(old)
    }
    return true
  }
}
