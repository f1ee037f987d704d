/** Where the other processes of a cluster reach this one, when nobody said it: the address it listens on, or, when that is
 *  all of them, the first that other machines can use. */
import { networkInterfaces, type NetworkInterfaceInfo } from 'node:os'

const ANY = new Set(['0.0.0.0', '::', '*'])

/**
 * Finds the address at which other processes reach this one. @param url where the API listens, such as "http://0.0.0.0:7376"
 * @returns such as "http://10.0.0.7:7376"
 */
export function nodeAddress(
  given: string | undefined,
  url: string,
  interfaces: Readonly<Record<string, readonly NetworkInterfaceInfo[] | undefined>> = networkInterfaces(),
): string {
  if (given !== undefined) return given.replace(/\/$/, '')
  const { protocol, hostname, port } = new URL(url)
  const host = hostname.replace(/^\[|\]$/g, '')
  if (!ANY.has(host)) return url
  const outward = Object.values(interfaces)
    .flatMap((addresses) => addresses ?? [])
    .filter(({ internal, scopeid }) => !internal && !scopeid) // a link-local address needs the interface's name beside it
  const first = outward.find(({ family }) => family === 'IPv4') ?? outward[0]
  if (!first) return `${protocol}//127.0.0.1:${port}`
  return `${protocol}//${first.family === 'IPv6' ? `[${first.address}]` : first.address}:${port}`
}
