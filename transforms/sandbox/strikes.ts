/**
 * Which functions have ended a sandbox, and at which messages. One message that does it counts against itself, however often it is
 * tried again: its function is switched off when three messages of three groups did it and it came to the end of none in between. Where
 * it has met one group only, three messages of that one are enough.
 */
import type { EndReason } from './sandbox.ts'

/** A message as people can find it, and its group. */
export type NamedMessage = Readonly<{ text: string; group: string }>
/** Faults of a function, by which it may be switched off. @property messages since it last came to the end of one */
export type Strikes = Readonly<{ reason: EndReason; messages: readonly string[]; isOff: boolean }>

const MOST = 3

type History = {
  reason: EndReason
  /** of each message its group: one of each group, and as many more as decide */
  readonly messages: Map<string, string>
  /** groups that it has met: as many as decide */
  readonly groups: Set<string>
}

/** Keeps which functions have ended a sandbox, by the key of their code. */
export class StrikeBook {
  readonly #byKey = new Map<string, History>()

  /** Tells what a function has done. */
  of(key: string): Strikes | undefined {
    const record = this.#byKey.get(key)
    if (!record) return undefined
    const { reason, messages, groups } = record
    const isOff = messages.size >= MOST && (groups.size === 1 || new Set(messages.values()).size >= MOST)
    return { reason, messages: [...messages.keys()], isOff }
  }

  /** Notes that a function ended its sandbox at a message. */
  ended(key: string, { text, group }: NamedMessage, reason: EndReason): void {
    const record = this.#byKey.get(key) ?? { reason, messages: new Map(), groups: new Set() }
    this.#byKey.set(key, record)
    record.reason = reason
    meet(record, group)
    const isNew = !record.messages.has(text) && ![...record.messages.values()].includes(group)
    if (isNew || record.messages.size < MOST) record.messages.set(text, group)
  }

  /** Notes that a function came to the end of a message. */
  passed(key: string, { group }: NamedMessage): void {
    const record = this.#byKey.get(key)
    if (!record) return
    meet(record, group)
    record.messages.clear()
  }

  forget(key: string): void {
    this.#byKey.delete(key)
  }
}

function meet({ groups }: History, group: string): void {
  if (groups.size < MOST) groups.add(group)
}
