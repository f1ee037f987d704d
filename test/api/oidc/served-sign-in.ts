/** The API with sign-in by OIDC on a real state database, set up as the settings of a process say; and browsers that sign in there. */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { IssuerUsers } from '../../../actors/resources/issuer-users.ts'
import { setupCodeOf, UserEdits } from '../../../actors/resources/user-edits.ts'
import { Issuer } from '../../../api/oidc/issuer.ts'
import { Tickets } from '../../../api/oidc/sign-in-ticket.ts'
import { startApi } from '../../../api/server.ts'
import { readSettings } from '../../../cli/settings.ts'
import { createLogger } from '../../../engine/logger.ts'
import { auditEntries, record } from '../../../engine/state/audit.ts'
import { ResourceStore } from '../../../engine/state/resource-store.ts'
import { Vault } from '../../../engine/state/secrets.ts'
import { openStore } from '../../../engine/state/store.ts'
import { saveToken } from '../../../engine/state/token-store.ts'
import { TokenMemory } from '../../../engine/state/token-memory.ts'
import { DESTINATIONS } from '../../../sinks/destination-types.ts'
import { CLIENT, type OidcIssuer } from '../../services/oidc-issuer.ts'
import { createState } from '../../services/postgres.ts'
import { checkedFetch } from '../checked-fetch.ts'
import { ScriptedEngine } from '../scripted-engine.ts'

/** Where browsers reach the service: a proxy with TLS, of which the tests play the part. */
export const PUBLIC_URL = 'https://tailrace.example'
export const TOKEN = 'a-token-of-an-admin'
export const PASSWORD = 'a-password-of-mine'
const VAULT_KEY = Buffer.alloc(32, 5)
export const SETUP_CODE = setupCodeOf(VAULT_KEY)

type Serving = Readonly<{ env?: Readonly<Record<string, string>>; wrongTokens?: number; timeoutMs?: number }>

/** @param serving.env settings beside those that an issuer needs @param accounts the first has TOKEN */
export async function serveSignIn(issuer: OidcIssuer, serving: Serving = {}, accounts: readonly string[] = ['shop']) {
  await using stack = new AsyncDisposableStack()
  const { connection } = stack.use(await createState())
  const store = stack.use(await openStore(connection, 4, () => undefined))
  const resources = new ResourceStore(new Vault(randomBytes(32)), { destinations: DESTINATIONS })
  const tokens = stack.use(new TokenMemory({ query: store.query, onError: () => undefined }))
  await store.transaction(async (query) => {
    const [own, ...others] = accounts
    for (const name of others) await resources.saveAccount(query, name)
    if (own !== undefined) await saveToken(query, await resources.saveAccount(query, own), { name: 'main', token: TOKEN })
  })
  await tokens.load()
  const lines: string[] = []
  const logger = createLogger({ level: 'info', format: 'json', destination: { write: (line: string) => void lines.push(line) } })

  const processes = stack.use(new AsyncDisposableStack())
  /** Starts a process of the service; all have the same state. */
  const start = async ({ env = {}, wrongTokens = Infinity, timeoutMs = 60_000 }: Serving = {}) => {
    const { oidc, hasPasswords } = readSettings({
      TAILRACE_OIDC_ISSUER: issuer.url,
      TAILRACE_OIDC_CLIENT_ID: CLIENT.id,
      TAILRACE_OIDC_CLIENT_SECRET: CLIENT.secret,
      TAILRACE_PUBLIC_URL: PUBLIC_URL,
      ...env,
    })
    assert.ok(oidc)
    const engine = new ScriptedEngine()
    const api = processes.use(
      await startApi({
        host: '127.0.0.1',
        port: 0,
        engine,
        resources: engine,
        edits: engine.resourceEdits,
        tokens,
        users: new UserEdits({ store, resources, vaultKey: VAULT_KEY }),
        hasPasswords,
        oidc: {
          issuer: new Issuer({ ...oidc.issuer, timeoutMs }),
          users: new IssuerUsers({ store, resources, policy: oidc.policy }),
          tickets: new Tickets(VAULT_KEY),
          publicUrl: oidc.issuer.publicUrl,
        },
        audit: {
          entries: (accountId, filter) => auditEntries(store.query, accountId, filter),
          note: (change) => record(store.query, [change]),
        },
        logger,
        limits: { wrongTokens },
        identity: { version: '0', nodeId: 'id-1', nodeName: 'test' },
      }),
    )
    return api.url
  }
  const url = await start(serving)
  const browser = () => new Browser(url)
  const call = async (method: string, path: string, body?: unknown) => {
    const sent = { authorization: `Bearer ${TOKEN}` }
    const answer = await checkedFetch(`${url}/api${path}`, {
      method,
      headers: sent,
      ...(body !== undefined && { body: JSON.stringify(body) }),
    })
    return (await answer.json()) as any // oxlint-disable-line typescript/no-explicit-any
  }
  /** Invites somebody. */
  const invite = (email: string, role: string) => call('POST', '/invitations', { email, role })
  const owned = stack.move()
  return { store, lines, start, url, browser, call, invite, [Symbol.asyncDispose]: () => owned.disposeAsync() }
}

export type Visited = Readonly<{
  status: number
  location: string | null
  cookies: readonly string[]
  body: any // oxlint-disable-line typescript/no-explicit-any
}>

/** A browser with its cookies. */
export class Browser {
  readonly cookies = new Map<string, string>()
  #service: string

  constructor(service: string) {
    this.#service = service
  }

  /** The load balancer in front of the service sends the requests to another process from now on. */
  moveTo(service: string): void {
    this.#service = service
  }

  /** @param to a path of the service, or an address below its public URL */
  async visit(to: string, { method = 'GET', body }: Readonly<{ method?: string; body?: unknown }> = {}): Promise<Visited> {
    const { pathname, search } = new URL(to, PUBLIC_URL)
    const cookie = [...this.cookies].map(([name, value]) => `${name}=${value}`).join('; ')
    const answer = await checkedFetch(`${this.#service}${pathname}${search}`, {
      method,
      redirect: 'manual',
      headers: { cookie, accept: 'text/html,*/*;q=0.8' },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    })
    const cookies = answer.headers.getSetCookie()
    for (const text of cookies) {
      const [, name = '', value = '', seconds] = /^([^=]+)=([^;]*);.*Max-Age=(\d+)/.exec(text) ?? []
      if (seconds === '0') this.cookies.delete(name)
      else this.cookies.set(name, value)
    }
    const text = await answer.text()
    return { status: answer.status, location: answer.headers.get('location'), cookies, body: text === '' ? undefined : JSON.parse(text) }
  }

  /** Begins a sign-in, and signs in at the issuer. @returns the address that the issuer sends the browser back to */
  async goToIssuer(to?: string): Promise<string> {
    const begun = await this.visit(`/api/session/oidc${to === undefined ? '' : `?to=${encodeURIComponent(to)}`}`)
    assert.equal(begun.status, 302, JSON.stringify(begun.body))
    const answer = await fetch(begun.location ?? '', { redirect: 'manual' })
    return answer.headers.get('location') ?? assert.fail(`the issuer answered ${answer.status}`)
  }

  /** Signs in from end to end. @returns the last answer of the service */
  async signIn(to?: string): Promise<Visited> {
    return this.visit(await this.goToIssuer(to))
  }

  /** Who has signed in; null: nobody. */
  async user() {
    return (await this.visit('/api/session')).body.user
  }
}

/** What an answer says of a sign-in that failed: status and code. */
export const refusalOf = ({ status, body }: Visited): [number, string] => [status, body?.code]
