/**
 * Which group members this process is, in a file of its data folder: a process that is started after a crash leaves their
 * groups in their name, so that nobody waits for the end of their sessions. The folder belongs to one process at a time, so
 * who stands there is dead; should it live after all (a copied folder), it is told so by its next heartbeat and joins anew.
 */
import { readFileSync, renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

const FILE = 'kafka-members.json'

export class FormerMembers {
  readonly #file: string
  readonly #former: Readonly<Record<string, unknown>>
  readonly #now: Record<string, string> = {}

  constructor(folder: string) {
    this.#file = join(folder, FILE)
    this.#former = read(this.#file)
  }

  /** The member that a dead process with this folder was. */
  of(groupId: string): string | undefined {
    const memberId = this.#former[groupId]
    return typeof memberId === 'string' ? memberId : undefined
  }

  joined(groupId: string, memberId: string): void {
    if (this.#now[groupId] === memberId) return
    this.#now[groupId] = memberId
    this.#write()
  }

  left(groupId: string): void {
    delete this.#now[groupId]
    this.#write()
  }

  #write(): void {
    writeFileSync(`${this.#file}.new`, JSON.stringify(this.#now), { mode: 0o600 })
    renameSync(`${this.#file}.new`, this.#file)
  }
}

/** A file that is missing or damaged only means that sessions are waited for. */
function read(file: string): Readonly<Record<string, unknown>> {
  try {
    const members: unknown = JSON.parse(readFileSync(file, 'utf8'))
    return typeof members === 'object' && members !== null ? (members as Record<string, unknown>) : {}
  } catch {
    return {}
  }
}
