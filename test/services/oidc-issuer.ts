/**
 * An OIDC issuer over HTTP that does what a test tells it to: it signs real ID tokens, checks its client and PKCE as issuers do, takes
 * another key, and fails. It binds 127.0.0.1 and stops with its scope.
 */
import { generateKeyPairSync, hash, randomBytes, randomUUID, sign, type KeyObject } from 'node:crypto'
import { HttpReceiver, type Received, type Reply } from './http-receiver.ts'

export const CLIENT = { id: 'tailrace', secret: 'a secret of the client: + and %' } as const
type Algorithm = 'RS256' | 'ES256'
type Key = Readonly<{ kid: string; alg: Algorithm; privateKey: KeyObject; publicKey: KeyObject }>
type Claims = Readonly<Record<string, unknown>>

/** Makes a key pair; one of RSA takes some tenths of a second, so it is made once. */
function newKey(alg: Algorithm): Key {
  const pair = alg === 'RS256' ? rsaPair() : generateKeyPairSync('ec', { namedCurve: 'P-256' })
  return { kid: randomUUID(), alg, ...pair }
}
let rsa: Readonly<{ privateKey: KeyObject; publicKey: KeyObject }> | undefined
const rsaPair = () => (rsa ??= generateKeyPairSync('rsa', { modulusLength: 2048 }))

export class OidcIssuer implements AsyncDisposable {
  /** what is told of who signs in */
  person: Claims = { sub: 'subject-1', email: 'ada@example.com', email_verified: true, name: 'Ada' }
  /** what is told at the userinfo endpoint, beside the subject */
  userInfo: Claims = {}
  /** of the ID token: what goes into its claims in the end, and the key that signs it */
  forged: (claims: Claims) => Claims = (claims) => claims
  signedBy: Key
  /** its ID tokens say that they have no signature, and have none */
  isUnsigned = false
  /** an error by which it sends browsers back */
  refusal: string | undefined
  /** a code is good more than once */
  takesCodesAgain = false
  /** what it offers beside the rest */
  offers: Claims
  /** answers in its place */
  fault: ((request: Received) => Reply | undefined) | undefined
  readonly #receiver: HttpReceiver
  readonly #codes = new Map<string, URLSearchParams>()
  #keys: readonly Key[]

  private constructor(receiver: HttpReceiver, key: Key) {
    this.#receiver = receiver
    this.#keys = [key]
    this.signedBy = key
    this.offers = { end_session_endpoint: `${receiver.url}/logout` }
    receiver.handler = (request) => this.fault?.(request) ?? this.#answer(request)
  }

  static async start(alg: Algorithm = 'ES256'): Promise<OidcIssuer> {
    return new OidcIssuer(await HttpReceiver.start(), newKey(alg))
  }

  get url(): string {
    return this.#receiver.url
  }
  /** The paths of all requests, without queries. */
  get asked(): string[] {
    return this.#receiver.requests.map(({ path }) => path.split('?')[0] ?? '')
  }

  /** Signs by a new key from now on, and offers no other. */
  rotate(alg: Algorithm): void {
    this.signedBy = newKey(alg)
    this.#keys = [this.signedBy]
  }
  /** Signs by a key that it does not offer, under the name of one that it does. */
  forgeSignature(): void {
    const { kid, alg } = this.signedBy
    this.signedBy = { ...newKey('ES256'), kid, alg }
  }
  /** Signs by the key that it offers, again. */
  repent(): void {
    this.forged = (claims) => claims
    const [key] = this.#keys
    if (key) this.signedBy = key
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#receiver[Symbol.asyncDispose]()
  }

  #answer(request: Received): Reply {
    const { pathname, searchParams } = new URL(request.path, this.url)
    if (pathname === '/.well-known/openid-configuration') return json(this.#document())
    if (pathname === '/jwks')
      return json({ keys: this.#keys.map(({ kid, alg, publicKey }) => ({ ...publicKey.export({ format: 'jwk' }), kid, alg, use: 'sig' })) })
    if (pathname === '/authorize') return this.#authorize(searchParams)
    if (pathname === '/token') return this.#token(request)
    if (pathname === '/userinfo') return json({ sub: this.person['sub'], ...this.userInfo })
    return { status: 404 }
  }

  #document(): Claims {
    return {
      issuer: this.url,
      authorization_endpoint: `${this.url}/authorize`,
      token_endpoint: `${this.url}/token`,
      userinfo_endpoint: `${this.url}/userinfo`,
      jwks_uri: `${this.url}/jwks`,
      response_types_supported: ['code'],
      subject_types_supported: ['public'],
      id_token_signing_alg_values_supported: ['RS256', 'ES256'],
      ...this.offers,
    }
  }

  /** Somebody has signed in here, and is sent back. */
  #authorize(asked: URLSearchParams): Reply {
    const back = new URL(asked.get('redirect_uri') ?? '')
    back.searchParams.set('state', asked.get('state') ?? '')
    if (this.refusal === undefined) {
      const code = randomBytes(16).toString('hex')
      this.#codes.set(code, asked)
      back.searchParams.set('code', code)
    } else back.searchParams.set('error', this.refusal)
    return { status: 302, headers: { location: back.href } }
  }

  #token({ headers, body }: Received): Reply {
    const [id = '', secret = ''] = Buffer.from(headers.authorization?.replace('Basic ', '') ?? '', 'base64')
      .toString()
      .split(':')
    if (unescaped(id) !== CLIENT.id || unescaped(secret) !== CLIENT.secret) return json({ error: 'invalid_client' }, 400)
    const given = new URLSearchParams(body.toString())
    const code = given.get('code') ?? ''
    const asked = this.#codes.get(code)
    const challenge = hash('sha256', given.get('code_verifier') ?? '', 'base64url')
    const isGood = asked?.get('code_challenge') === challenge && asked.get('code_challenge_method') === 'S256' && asked.get('redirect_uri') === given.get('redirect_uri') // prettier-ignore
    if (!isGood) return json({ error: 'invalid_grant' }, 400)
    if (!this.takesCodesAgain) this.#codes.delete(code)
    const now = Math.floor(Date.now() / 1_000)
    const claims = { iss: this.url, aud: CLIENT.id, iat: now, exp: now + 300, nonce: asked.get('nonce'), ...this.person }
    return json({
      access_token: 'an-access-token',
      token_type: 'Bearer',
      id_token: this.isUnsigned ? unsigned(this.forged(claims)) : signed(this.forged(claims), this.signedBy),
    })
  }
}

const unescaped = (text: string): string => decodeURIComponent(text.replaceAll('+', ' '))
const json = (value: unknown, status = 200): Reply => ({
  status,
  headers: { 'content-type': 'application/json' },
  body: JSON.stringify(value),
})

const joined = (...parts: readonly Claims[]): string =>
  parts.map((part) => Buffer.from(JSON.stringify(part)).toString('base64url')).join('.')
const unsigned = (claims: Claims): string => `${joined({ alg: 'none', typ: 'JWT' }, claims)}.`

function signed(claims: Claims, { kid, alg, privateKey }: Key): string {
  const text = joined({ alg, kid, typ: 'JWT' }, claims)
  const signature = sign('sha256', Buffer.from(text), alg === 'ES256' ? { key: privateKey, dsaEncoding: 'ieee-p1363' } : privateKey)
  return `${text}.${signature.toString('base64url')}`
}
