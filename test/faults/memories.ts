/**
 * The three memories of a service, and what can happen to two of them: its log and its state database are lost, swapped, or
 * set back to an older copy while it is down. (The third is the source's server: test/services/postgres.ts copies that.)
 */
import { cp, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { Client } from 'pg'
import { createDatabase, type TestDatabase } from '../services/postgres.ts'
import type { Service } from './service.ts'
import { until } from '../waiting.ts'

/** What a source says on its way to what it stops at. */
const PASSING = ['SOURCE_UNREACHABLE', 'STATE_UNAVAILABLE', 'STOPPING']

/** The embedded log of a service that is stopped. */
export class LogFolder {
  readonly #folder: string

  constructor(service: Service) {
    this.#folder = join(service.dataFolder, 'log')
  }

  /** Keeps a copy under this name. */
  keep(name: string): Promise<void> {
    return cp(this.#folder, `${this.#folder}.${name}`, { recursive: true })
  }

  /** The next start begins with an empty one. */
  lose(): Promise<void> {
    return rm(this.#folder, { recursive: true, force: true })
  }

  /** Puts a copy in its place. */
  async putBack(name: string): Promise<void> {
    await this.lose()
    await cp(`${this.#folder}.${name}`, this.#folder, { recursive: true })
  }
}

/** A state database that can be set back to what it was. */
export class StateCopies implements AsyncDisposable {
  /** for statements only: nobody may be connected to a database that is copied */
  readonly #admin: TestDatabase
  readonly #name: string
  readonly #copies: string[] = []
  readonly url: string

  private constructor(admin: TestDatabase, name: string, url: string) {
    this.#admin = admin
    this.#name = name
    this.url = url
  }

  static async create(): Promise<StateCopies> {
    const admin = await createDatabase()
    const name = `${admin.name}_state`
    await admin.query(`create database ${name} template template0`)
    return new StateCopies(admin, name, Object.assign(new URL(admin.url), { pathname: `/${name}` }).href)
  }

  /** Keeps a copy under this name; the service is stopped. */
  async keep(name: string): Promise<void> {
    const copy = `${this.#name}_${name}`
    await this.#admin.query(`create database ${copy} template ${this.#name}`)
    this.#copies.push(copy)
  }

  /** Runs statements on it. */
  async run(sql: string): Promise<void> {
    const client = new Client({ connectionString: this.url })
    await client.connect()
    try {
      await client.query(sql)
    } finally {
      await client.end()
    }
  }

  /** Puts a copy in its place; the service is stopped. */
  async putBack(name: string): Promise<void> {
    await this.#admin.query(`drop database ${this.#name} with (force)`)
    await this.#admin.query(`create database ${this.#name} template ${this.#name}_${name}`)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const name of [this.#name, ...this.#copies]) await this.#admin.query(`drop database if exists ${name} with (force)`)
    await this.#admin[Symbol.asyncDispose]()
  }
}

/** What the service's one source has stopped at. */
export async function untilRefused(service: Service): Promise<string> {
  const refusal = async () => {
    const { body } = await service.get('/health/ready').catch(() => ({ body: {} })) // not listening yet
    const { waiting = [] } = body as { waiting?: { code: string | null }[] }
    const code = waiting[0]?.code
    return code && !PASSING.includes(code) && code
  }
  return until('it says that the source is refused', refusal, { service })
}
