/**
 * Where this process may send to. A name is resolved once, its addresses are checked, and the connection is made to one
 * that was checked: a name server that changes its answer between check and connection changes nothing.
 *
 *   private  everything but link-local, metadata and meaningless addresses: a company's own network
 *   public   public addresses only: for those who let others say where to send
 *
 * What the allow list names (a host, `*.suffix`, an address or a range) is let through in either mode.
 */
import { lookup } from 'node:dns/promises'
import { BlockList, isIP, type LookupFunction } from 'node:net'
import { EngineError } from '../errors.ts'
import { addRange, innerAddress, withoutZone } from './ip-address.ts'

/** Says to which addresses this process may send. */
export type EgressMode = 'private' | 'public'
/** Holds an address of a host. @property family 4 or 6 */
export type Address = Readonly<{ address: string; family: number }>
/** All addresses of a name; rejects as `dns.lookup` does. */
type Resolve = (hostname: string) => Promise<readonly Address[]>

type Range = readonly [network: string, prefix: number]
/** Never a destination: the machine's own link, the clouds' metadata services, and what names no single host. */
// prettier-ignore
const NEVER: readonly Range[] = [
  ['0.0.0.0', 8], ['169.254.0.0', 16], ['224.0.0.0', 4], ['255.255.255.255', 32],
  ['100.100.100.200', 32], ['168.63.129.16', 32], ['192.0.0.192', 32], // metadata: Alibaba, Azure, Oracle
  ['::', 128], ['fe80::', 10], ['ff00::', 8],
  ['fd00:ec2::', 32], ['fd20:ce::254', 128], // metadata: AWS, Google
]
/** Not of the public internet. */
// prettier-ignore
const NOT_PUBLIC: readonly Range[] = [
  ['10.0.0.0', 8], ['100.64.0.0', 10], ['127.0.0.0', 8], ['172.16.0.0', 12], ['192.168.0.0', 16],
  ['192.0.0.0', 24], ['192.0.2.0', 24], ['192.88.99.0', 24], ['198.18.0.0', 15], ['198.51.100.0', 24],
  ['203.0.113.0', 24], ['240.0.0.0', 4],
  ['::1', 128], ['100::', 64], ['2001::', 23], ['2001:db8::', 32], ['3fff::', 20], ['5f00::', 16], ['fc00::', 7], ['fec0::', 10],
]

/** All of IPv6 that is given out for the public internet. */
const GLOBAL: readonly Range[] = [['2000::', 3]]

/** The settings of an egress guard. */
export type EgressOptions = Readonly<{
  mode: EgressMode
  /** hosts, `*.suffix`, addresses and ranges */ allow?: readonly string[]
  resolve?: Resolve
  /** the variable that set the mode, for its refusals */ setting?: string
}>

/** The guard of what leaves this process. */
export class Egress {
  readonly mode: EgressMode
  readonly #resolve: Resolve
  readonly #setting: string
  readonly #never = blockList(NEVER)
  readonly #notPublic = blockList(NOT_PUBLIC)
  readonly #global = blockList(GLOBAL)
  readonly #allowed = new BlockList()
  readonly #allowedNames: readonly string[]

  /** @throws EngineError SETTING_INVALID: an entry of the allow list is none of the four forms */
  constructor({ mode, allow = [], resolve = resolveAll, setting = 'EGRESS' }: EgressOptions) {
    this.#setting = setting
    this.mode = mode
    this.#resolve = resolve
    const names: string[] = []
    for (const entry of allow) {
      if (addRange(this.#allowed, entry)) continue
      if (/^(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?$/i.test(entry)) names.push(plainName(entry))
      else throw new EngineError('SETTING_INVALID', `"${entry.slice(0, 100)}" is not a host, *.suffix, address or range of addresses`)
    }
    this.#allowedNames = names
  }

  /**
   * The addresses of a host that may be connected to, in the order of the resolver.
   * @param hostname a name or an address, an IPv6 one with or without brackets
   * @throws EngineError EGRESS_REFUSED: none of them; whatever the resolver throws
   */
  async addressesOf(hostname: string): Promise<readonly Address[]> {
    const host = hostname.replace(/^\[(.*)\]$/, '$1')
    const family = isIP(host)
    const all = family === 0 ? await this.#resolve(host) : [{ address: host, family }]
    const allowed = this.#isAllowedName(host) ? all : all.filter((each) => this.#isAllowed(each))
    if (allowed.length > 0) return allowed
    throw new EngineError(
      'EGRESS_REFUSED',
      this.mode === 'public'
        ? `"${host.slice(0, 255)}" is not a public address, and ${this.#setting} is "public"`
        : `"${host.slice(0, 255)}" is a link-local, metadata or reserved address`,
      { host: host.slice(0, 255) },
    )
  }

  #isAllowedName(host: string): boolean {
    const name = plainName(host)
    return this.#allowedNames.some((entry) => (entry.startsWith('*.') ? name.endsWith(entry.slice(1)) : name === entry))
  }

  #isAllowed({ address, family }: Address): boolean {
    const inner = family === 6 ? innerAddress(address) : undefined
    if (inner) return this.#isAllowed({ address: inner, family: 4 })
    const kind = family === 4 ? 'ipv4' : 'ipv6'
    const plain = withoutZone(address)
    if (this.#allowed.check(plain, kind)) return true
    if (this.#never.check(plain, kind)) return false
    return this.mode === 'private' || (!this.#notPublic.check(plain, kind) && (family === 4 || this.#global.check(plain, kind)))
  }
}

const resolveAll: Resolve = (hostname) => lookup(hostname, { all: true })

const plainName = (name: string): string => name.toLowerCase().replace(/\.$/, '')

function blockList(ranges: readonly Range[]): BlockList {
  const list = new BlockList()
  for (const [network, prefix] of ranges) list.addSubnet(network, prefix, network.includes(':') ? 'ipv6' : 'ipv4') // isIP compiles a long expression for the first of them, 15 ms
  return list
}

/**
 * Looks names up through a guard, for sockets. It is half of the guard: Node looks up no host that is an address already, so whoever
 * connects to one asks `addressesOf` first, as `HttpPool` and `GuardedSocket` do.
 */
export const guardedLookup =
  (egress: () => Pick<Egress, 'addressesOf'>): LookupFunction =>
  (hostname, { all }, callback) => {
    egress()
      .addressesOf(hostname)
      .then(
        (addresses) => {
          const [first] = addresses
          if (all) callback(null, [...addresses])
          else callback(null, first?.address ?? '', first?.family)
        },
        (error: Error) => callback(error, ''),
      )
  }
