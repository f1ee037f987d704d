/** Reads the text of an IP address. Nothing here does I/O. */
import { isIP, isIPv6, type BlockList } from 'node:net'

/** Leaves out the zone of an address. */
export function withoutZone(address: string): string {
  const [bare = address] = address.split('%', 1)
  return bare
}

/** Adds an address, or a range of them such as 10.0.0.0/8, to a list. @returns false: the text is neither */
export function addRange(list: BlockList, text: string): boolean {
  const [network = '', prefix, ...rest] = text.split('/')
  const family = isIP(network)
  const bits = family === 4 ? 32 : 128
  if (family === 0 || rest.length > 0 || (prefix !== undefined && (!/^\d{1,3}$/.test(prefix) || Number(prefix) > bits))) return false
  list.addSubnet(network, prefix === undefined ? bits : Number(prefix), family === 4 ? 'ipv4' : 'ipv6')
  return true
}

/** The eight words of an IPv6 address. */
function wordsOf(address: string): number[] | undefined {
  const dotted = /^(.*:)(\d+)\.(\d+)\.(\d+)\.(\d+)$/.exec(withoutZone(address))
  const plain = dotted
    ? `${dotted[1]}${((Number(dotted[2]) << 8) | Number(dotted[3])).toString(16)}:${((Number(dotted[4]) << 8) | Number(dotted[5])).toString(16)}`
    : withoutZone(address)
  const [head = '', tail] = plain.split('::')
  const parts = (text: string) => (text === '' ? [] : text.split(':').map((word) => Number.parseInt(word, 16)))
  const front = parts(head)
  const back = tail === undefined ? [] : parts(tail)
  const words = tail === undefined ? front : [...front, ...Array.from({ length: 8 - front.length - back.length }, () => 0), ...back]
  return words.length === 8 && words.every((word) => word >= 0 && word <= 0xffff) ? words : undefined
}

/** The IPv4 address that two words of an IPv6 one are. */
const dottedAt = (words: readonly number[], at: number): string =>
  words
    .slice(at, at + 2)
    .map((word) => `${word >> 8}.${word & 255}`)
    .join('.')

const hasZeros = (words: readonly number[], count: number): boolean => words.slice(0, count).every((word) => word === 0)
const isMapped = (words: readonly number[]): boolean => hasZeros(words, 5) && words[5] === 0xffff

/** Finds the IPv4 address that an IPv6 one stands for: mapped, compatible, translated (NAT64) or tunnelled (6to4, ISATAP). */
export function innerAddress(address: string): string | undefined {
  const words = wordsOf(address)
  if (!words) return undefined
  const [a = 0, b = 0, c = 0] = words
  if (isMapped(words)) return dottedAt(words, 6)
  if (hasZeros(words, 4) && words[4] === 0xffff && words[5] === 0) return dottedAt(words, 6)
  const [high = 0, low = 0] = words.slice(6)
  if (hasZeros(words, 6) && (high !== 0 || low > 1)) return dottedAt(words, 6)
  if (a === 0x64 && b === 0xff9b && (c === 1 || words.slice(2, 6).every((word) => word === 0))) return dottedAt(words, 6)
  if (a === 0x2002) return dottedAt(words, 1)
  if (words[5] === 0x5efe && (words[4] === 0 || words[4] === 0x200)) return dottedAt(words, 6)
  return undefined
}

/**
 * Gives what tells one client from others: an IPv4 address, whether it is mapped or not, and of an IPv6 one the first half, for
 * whoever has one address of a /64 has all of them.
 */
export function clientNetwork(address: string): string {
  const words = isIPv6(address) ? wordsOf(address) : undefined
  if (!words) return address
  return isMapped(words) ? dottedAt(words, 6) : words.slice(0, 4).map((word) => word.toString(16)).join(':') // prettier-ignore
}
