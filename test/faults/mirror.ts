/**
 * What a program that keeps a copy of a table makes of the messages of one sink: a fold by row, and what it finds wrong on the way. A
 * row's versions only grow, so a message that comes for the first time behind a newer one of its row is wrong, whoever sent it.
 */
import { canonical, type Row } from './json.ts'
import { PLACEHOLDER } from './journal.ts'

/** One message, as far as a copy needs it. */
export type Told = Readonly<{
  action: string
  key: string
  lsn: bigint
  idx: number
  record: Row
  changes: Row | null
}>

const REPORTED = 10

/** A copy of a table with the columns id and version. */
export class Mirror {
  /** messages by their place; a row of a page and a change are never at one */
  readonly #seen = new Map<string, Told>()
  readonly #newest = new Map<string, Told>()
  readonly violations: string[] = []
  reads = 0

  get size(): number {
    return this.#seen.size
  }

  get messages(): Iterable<Told> {
    return this.#seen.values()
  }

  take(message: Told): void {
    const name = `${message.lsn}:${message.idx}:${message.action}`
    const known = this.#seen.get(name)
    if (known) {
      if (canonical(known.record) !== canonical(message.record)) this.#report('came again with other content', message)
      return
    }
    this.#seen.set(name, message)
    if (message.action === 'read') this.reads++
    const newest = this.#newest.get(message.key)
    this.#newest.set(message.key, message)
    if (!newest) return
    if (isBehind(message, newest)) this.#report(`came first behind ${describe(newest)}`, message)
    const [before, now] = [versionOf(newest), versionOf(message)]
    if (before !== undefined && now !== undefined && now < before) this.#report(`is older than ${describe(newest)}`, message)
  }

  /** What the messages make of the table, in the order of their places; a value that was left alone is kept. */
  rows(): ReadonlyMap<string, Row> {
    const rows = new Map<string, Row>()
    for (const message of this.#inOrder()) {
      const { action, key, record } = message
      if (action === 'delete') {
        rows.delete(key)
        continue
      }
      const former = formerKey(message)
      const before = rows.get(former)
      if (former !== key) rows.delete(former)
      rows.set(
        key,
        Object.fromEntries(
          Object.entries(record).map(([name, value]) => [name, value === PLACEHOLDER ? (before?.[name] ?? value) : value]),
        ),
      )
    }
    return rows
  }

  /**
   * Compares, in the order of their places, with what went of the table while it was watched.
   * @param gone by key: the versions at which its row went
   * @returns in words: rows that came back older than they went, and those that did not go as often as they should have
   */
  revived(gone: ReadonlyMap<string, readonly bigint[]>): string[] {
    const found: string[] = []
    const went = new Map<string, number>()
    for (const message of this.#inOrder()) {
      const { action, key } = message
      const former = formerKey(message)
      if (action === 'delete' || former !== key) went.set(former, (went.get(former) ?? 0) + 1)
      const last = gone.get(key)?.[(went.get(key) ?? 0) - 1]
      const version = versionOf(message)
      if (last !== undefined && version !== undefined && version < last) found.push(`${describe(message)} came back: it went at ${last}`)
    }
    for (const key of new Set([...gone.keys(), ...went.keys()])) {
      const [is, wanted] = [went.get(key) ?? 0, gone.get(key)?.length ?? 0]
      if (is !== wanted) found.push(`row ${key} went ${is} times, and not ${wanted}`)
    }
    return found.slice(0, REPORTED)
  }

  #inOrder(): Told[] {
    return [...this.#seen.values()].sort((a, b) => (isBehind(a, b) ? -1 : 1))
  }

  #report(what: string, message: Told): void {
    if (this.violations.length < REPORTED) this.violations.push(`${describe(message)} ${what}`)
  }
}

/** @returns what differs from the table, in words */
export function differences(rows: ReadonlyMap<string, Row>, table: readonly Row[]): string[] {
  const left = new Map(rows)
  const found: string[] = []
  for (const row of table) {
    const key = String(row['id'])
    const held = left.get(key)
    left.delete(key)
    if (!held) found.push(`row ${key} is missing`)
    else if (canonical(held) !== canonical(row))
      found.push(`row ${key} is ${canonical(held).slice(0, 200)} and not ${canonical(row).slice(0, 200)}`)
  }
  for (const [key, row] of left) found.push(`row ${key} is gone from the table, and still there: ${canonical(row).slice(0, 100)}`)
  return found.length > REPORTED ? [...found.slice(0, REPORTED), `… and ${found.length - REPORTED} more`] : found
}

const isBehind = (a: Told, b: Told): boolean =>
  a.lsn === b.lsn ? a.idx < b.idx || (a.idx === b.idx && a.action === 'delete') : a.lsn < b.lsn

/** The key that the row of an update had before. */
const formerKey = ({ action, key, changes }: Told): string =>
  action === 'update' && changes && 'id' in changes ? String(changes['id']) : key

/** A delete has no version of its own: a row that comes after it has one that was never there before. */
function versionOf({ action, record }: Told): bigint | undefined {
  const { version } = record
  return action === 'delete' || (typeof version !== 'number' && typeof version !== 'bigint') ? undefined : BigInt(version)
}

const describe = (message: Told): string =>
  `${message.action} of ${message.key}, version ${versionOf(message)}, at ${message.lsn}:${message.idx}`
