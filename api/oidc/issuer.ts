/**
 * The OIDC issuer at which users sign in: the authorization code flow with PKCE, by openid-client, which is loaded with the first sign-in. What
 * the issuer offers is asked then, and again after an hour. Its keys are asked at each sign-in, for they change when it likes; so
 * the signature of an ID token is held against the keys of that moment.
 */
import { randomBytes } from 'node:crypto'
import type * as OpenidClient from 'openid-client'
import type { Person } from '../../actors/resources/issuer-rights.ts'
import { codeOf, EngineError, errorText } from '../../engine/errors.ts'
import { fieldsOf, isObject } from '../../engine/json.ts'

/** Says which issuer it is, how this service is known there, and what its claims mean. */
export type IssuerOptions = Readonly<{
  /** as it calls itself, such as "https://id.example.com/realms/main" */
  issuer: string
  clientId: string
  /** undefined: a public client, which has none */
  clientSecret: string | undefined
  /** with blanks between */
  scopes: string
  /** where browsers reach this service, such as "https://tailrace.example.com" */
  publicUrl: string
  /** names of claims; a dot leads into an object. @property groups undefined: nobody asks for them */
  claims: Readonly<{ email: string; name: string; groups: string | undefined }>
  /** every email that the issuer tells counts as verified */
  trustsEmails: boolean
  /** for each request to the issuer; absent: 10 s */
  timeoutMs?: number
}>

/** The secrets of a sign-in that was begun: its end is only accepted with the same ones. */
export type Begun = Readonly<{ state: string; nonce: string; verifier: string }>

/** Below the public URL: where the issuer sends browsers back to. */
export const CALLBACK_PATH = '/api/session/oidc/callback'
const TIMEOUT_MS = 10_000
const ASKED_AGAIN_MS = 3_600_000
const CLOCK_TOLERANCE_SECONDS = 60
const EMAIL = /^[^@\s]{1,64}@[^@\s]{1,190}$/
const MAX_NAME = 200

/** The issuer of the settings. */
export class Issuer {
  readonly #options: IssuerOptions
  readonly #redirectUri: string
  #metadata: Readonly<{ answer: Promise<OpenidClient.ServerMetadata>; at: number }> | undefined

  constructor(options: IssuerOptions) {
    this.#options = options
    this.#redirectUri = new URL(CALLBACK_PATH, options.publicUrl).href
  }

  /** Begins a sign-in. @returns the address at the issuer to send the browser to @throws EngineError OIDC_UNREACHABLE, OIDC_MISCONFIGURED */
  async begin(): Promise<Begun & Readonly<{ url: string }>> {
    const { client, configuration } = await this.#configuration()
    const [state, nonce, verifier] = [secret(), secret(), secret()]
    const parameters = {
      redirect_uri: this.#redirectUri,
      scope: this.#options.scopes,
      state,
      nonce,
      code_challenge: await client.calculatePKCECodeChallenge(verifier),
      code_challenge_method: 'S256',
    }
    try {
      return { state, nonce, verifier, url: client.buildAuthorizationUrl(configuration, parameters).href }
    } catch (error) {
      throw failureOf(error)
    }
  }

  /**
   * Ends a sign-in: finds out who it is. @param query with which the issuer sent the browser back, from its "?" on
   * @throws EngineError OIDC_REFUSED, OIDC_TOKEN_INVALID, OIDC_UNREACHABLE, OIDC_MISCONFIGURED
   */
  async complete(query: string, { state, nonce, verifier }: Begun): Promise<Readonly<{ person: Person; idToken: string }>> {
    const { client, configuration } = await this.#configuration()
    try {
      const tokens = await client.authorizationCodeGrant(configuration, new URL(query, this.#redirectUri), {
        pkceCodeVerifier: verifier,
        expectedState: state,
        expectedNonce: nonce,
        idTokenExpected: true,
      })
      const said = tokens.claims()
      if (!said || tokens.id_token === undefined) throw new EngineError('OIDC_TOKEN_INVALID', 'the issuer sent no ID token')
      const more = this.#isComplete(said) ? {} : await this.#userInfo({ client, configuration }, tokens.access_token, said.sub)
      return { person: this.#person(said, { ...more, ...said }), idToken: tokens.id_token }
    } catch (error) {
      const failure = failureOf(error)
      if (failure.code === 'OIDC_MISCONFIGURED') this.#metadata = undefined // it may offer something else by now
      throw failure
    }
  }

  /**
   * Gives the address at the issuer to which a browser goes to sign out there, too. @param idToken of the sign-in; undefined: it is not known
   * @returns undefined: the issuer has none, or can't be asked
   */
  async endSessionUrl(idToken: string | undefined): Promise<string | undefined> {
    try {
      const { client, configuration } = await this.#configuration()
      if (configuration.serverMetadata().end_session_endpoint === undefined) return undefined
      return client.buildEndSessionUrl(configuration, {
        post_logout_redirect_uri: new URL('/', this.#options.publicUrl).href,
        ...(idToken !== undefined && { id_token_hint: idToken }),
      }).href
    } catch {
      return undefined // the session here has ended all the same
    }
  }

  /** Makes what a sign-in needs: each has its own, which knows no keys yet. */
  async #configuration(): Promise<Readonly<{ client: typeof OpenidClient; configuration: OpenidClient.Configuration }>> {
    const client = await import('openid-client')
    if (!this.#metadata || performance.now() - this.#metadata.at > ASKED_AGAIN_MS) {
      const answer = this.#discover(client)
      this.#metadata = { answer, at: performance.now() }
      answer.catch(() => {
        if (this.#metadata?.answer === answer) this.#metadata = undefined // the next one asks again
      })
    }
    const metadata = await this.#metadata.answer
    const { clientId, clientSecret } = this.#options
    const known = { [client.clockTolerance]: CLOCK_TOLERANCE_SECONDS }
    const configuration = new client.Configuration(metadata, clientId, known, authentication(client, metadata, clientSecret))
    configuration.timeout = this.#timeoutMs / 1_000
    if (this.#isPlain) client.allowInsecureRequests(configuration)
    client.enableNonRepudiationChecks(configuration)
    return { client, configuration }
  }

  async #discover(client: typeof OpenidClient): Promise<OpenidClient.ServerMetadata> {
    const { issuer, clientId } = this.#options
    try {
      const found = await client.discovery(new URL(issuer), clientId, undefined, undefined, {
        timeout: this.#timeoutMs / 1_000,
        execute: this.#isPlain ? [client.allowInsecureRequests] : [],
      })
      const metadata = { ...found.serverMetadata() } // without what it adds to the document
      // the client takes any tenant of some issuers for the one that was asked
      if (new URL(metadata.issuer).href !== new URL(issuer).href)
        throw new EngineError('OIDC_MISCONFIGURED', `TAILRACE_OIDC_ISSUER calls itself ${metadata.issuer}`)
      return metadata
    } catch (error) {
      throw failureOf(error)
    }
  }

  async #userInfo(
    { client, configuration }: Readonly<{ client: typeof OpenidClient; configuration: OpenidClient.Configuration }>,
    accessToken: string,
    subject: string,
  ): Promise<Readonly<Record<string, unknown>>> {
    if (configuration.serverMetadata().userinfo_endpoint === undefined) return {}
    return client.fetchUserInfo(configuration, accessToken, subject)
  }

  /** Tells whether an ID token has all that is asked for: some issuers tell emails and groups at another address only. */
  #isComplete(said: Readonly<Record<string, unknown>>): boolean {
    const { email, groups } = this.#options.claims
    return claimOf(said, email) !== undefined && (groups === undefined || claimOf(said, groups) !== undefined)
  }

  #person({ iss: issuer, sub: subject }: OpenidClient.IDToken, claims: Readonly<Record<string, unknown>>): Person {
    const { claims: names, trustsEmails } = this.#options
    const email = claimOf(claims, names.email)
    const name = claimOf(claims, names.name)
    const isSaid = names.email === 'email' && (claims['email_verified'] === true || claims['email_verified'] === 'true')
    const groups = [(names.groups === undefined ? undefined : claimOf(claims, names.groups)) ?? []].flat()
    return {
      issuer,
      subject,
      email: typeof email === 'string' && EMAIL.test(email) ? email : undefined,
      isEmailVerified: trustsEmails || isSaid,
      name: typeof name === 'string' && name !== '' ? name.slice(0, MAX_NAME) : undefined,
      groups: groups.filter((group) => typeof group === 'string'),
    }
  }

  get #timeoutMs(): number {
    return this.#options.timeoutMs ?? TIMEOUT_MS
  }
  /** Whether the issuer is asked without TLS: the settings allow that on this machine only. */
  get #isPlain(): boolean {
    return this.#options.issuer.startsWith('http:')
  }
}

const secret = (): string => randomBytes(32).toString('base64url')

/** Says how this service proves to the issuer who it is: as the issuer asks for, or else as the standard says. */
function authentication(
  client: typeof OpenidClient,
  { token_endpoint_auth_methods_supported: methods = ['client_secret_basic'] }: OpenidClient.ServerMetadata,
  clientSecret: string | undefined,
): OpenidClient.ClientAuth {
  if (clientSecret === undefined) return client.None()
  return methods.includes('client_secret_basic') ? client.ClientSecretBasic(clientSecret) : client.ClientSecretPost(clientSecret)
}

/** Finds a claim by its name, or by the path to it. */
function claimOf(claims: Readonly<Record<string, unknown>>, name: string): unknown {
  if (Object.hasOwn(claims, name)) return claims[name]
  return name.split('.').reduce<unknown>((at, part) => (isObject(at) && Object.hasOwn(at, part) ? at[part] : undefined), claims)
}

/** Gives our code for each error code of openid-client. */
const FAILURES: Readonly<Record<string, EngineError['code']>> = {
  OAUTH_TIMEOUT: 'OIDC_UNREACHABLE',
  OAUTH_PARSE_ERROR: 'OIDC_UNREACHABLE',
  OAUTH_RESPONSE_IS_NOT_JSON: 'OIDC_MISCONFIGURED',
  OAUTH_MISSING_SERVER_METADATA: 'OIDC_MISCONFIGURED',
  OAUTH_INVALID_SERVER_METADATA: 'OIDC_MISCONFIGURED',
  OAUTH_HTTP_REQUEST_FORBIDDEN: 'OIDC_MISCONFIGURED',
  OAUTH_REQUEST_PROTOCOL_FORBIDDEN: 'OIDC_MISCONFIGURED',
  OAUTH_JSON_ATTRIBUTE_COMPARISON_FAILED: 'OIDC_MISCONFIGURED',
  OAUTH_WWW_AUTHENTICATE_CHALLENGE: 'OIDC_MISCONFIGURED',
  OAUTH_AUTHORIZATION_RESPONSE_ERROR: 'OIDC_REFUSED',
  OAUTH_INVALID_RESPONSE: 'OIDC_TOKEN_INVALID',
  OAUTH_JWT_CLAIM_COMPARISON_FAILED: 'OIDC_TOKEN_INVALID',
  OAUTH_JWT_TIMESTAMP_CHECK_FAILED: 'OIDC_TOKEN_INVALID',
  OAUTH_KEY_SELECTION_FAILED: 'OIDC_TOKEN_INVALID',
  OAUTH_UNSUPPORTED_OPERATION: 'OIDC_TOKEN_INVALID',
}

/** Says of a failure of openid-client, or of a request, what it means here. @returns an error that is none of theirs as it is */
function failureOf(error: unknown): EngineError {
  if (error instanceof EngineError) return error
  const code = codeOf(error)
  const status = Number(fieldsOf(error)['status'] ?? fieldsOf(fieldsOf(error)['cause'])['status'] ?? 0)
  const said = String(fieldsOf(error)['error'] ?? '')
  const ours =
    code === 'OAUTH_RESPONSE_BODY_ERROR' || code === 'OAUTH_RESPONSE_IS_NOT_CONFORM'
      ? codeOfAnswer(status, said)
      : code === undefined && error instanceof TypeError // of fetch
        ? 'OIDC_UNREACHABLE'
        : FAILURES[code ?? '']
  if (ours === undefined) throw error
  const reason = error instanceof Error && error.cause instanceof Error ? error.cause : error // what is around it says less
  const details = [...(/^[\w.-]{1,50}$/.test(said) ? [said] : []), ...(status > 0 ? [`status ${status}`] : [])]
  const text = `the issuer: ${errorText(reason)}${details.length > 0 ? ` (${details.join(', ')})` : ''}`
  return new EngineError(ours, text, {}, { cause: error })
}

/** Gives our code for an error answer of the issuer. @param said its `error`, as OAuth names it */
function codeOfAnswer(status: number, said: string): EngineError['code'] {
  if (status >= 500 || status === 429 || said === 'temporarily_unavailable' || said === 'server_error') return 'OIDC_UNREACHABLE'
  return said === 'invalid_grant' ? 'OIDC_REFUSED' : 'OIDC_MISCONFIGURED'
}
