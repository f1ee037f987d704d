/**
 * The proxies whose word counts: what X-Forwarded-For and X-Forwarded-Proto say is taken from those that the settings name, and from nobody
 * else. With them `request.ip` is the client's address and `request.protocol` what the client speaks: for the audit log, for whoever is
 * slowed or counted by address, and for cookies. Nothing here does I/O.
 */
import type { IncomingHttpHeaders } from 'node:http'
import { BlockList, isIP } from 'node:net'
import { EngineError } from '../../engine/errors.ts'
import { addRange } from '../../engine/net/ip-address.ts'

const HEADER = 'x-forwarded-for'

/** Knows which addresses are proxies of ours. */
export class TrustedProxies {
  readonly #list = new BlockList()
  readonly #areSome: boolean

  /** @param ranges addresses and ranges of them @throws EngineError SETTING_INVALID: one is neither */
  constructor(ranges: readonly string[]) {
    this.#areSome = ranges.length > 0
    for (const range of ranges)
      if (!addRange(this.#list, range))
        throw new EngineError('SETTING_INVALID', `"${range.slice(0, 100)}" is not an address or range of addresses, such as 10.0.0.0/8`)
  }

  /** Tells whether an address is one of them. */
  trusts(address: string | undefined): boolean {
    if (!this.#areSome || address === undefined) return false
    const family = isIP(address)
    return family !== 0 && this.#list.check(address, family === 4 ? 'ipv4' : 'ipv6')
  }

  /** Leaves of X-Forwarded-For the addresses behind the last entry that is none: anybody may have written what stands before that. */
  tidy(headers: IncomingHttpHeaders): void {
    const said = headers[HEADER]
    if (!this.#areSome || said === undefined) return
    const addresses = String(said).split(',').map(bareAddress)
    const broken = addresses.lastIndexOf(undefined)
    const known = addresses.slice(broken + 1)
    if (known.length > 0) headers[HEADER] = known.join(', ')
    else delete headers[HEADER]
  }
}

/** Some proxies write the port, too. */
function bareAddress(entry: string): string | undefined {
  const text = entry.trim()
  const [, bracketed, dotted] = /^(?:\[([^\]]+)\](?::\d+)?|([\d.]+):\d+)$/.exec(text) ?? []
  const address = bracketed ?? dotted ?? text
  return isIP(address) === 0 ? undefined : address
}
