/**
 * The HTTP server: makes routes of the operations, checks who asks, turns whatever is thrown into an answer, and stops
 * without cutting anyone off.
 *
 *  - A body is JSON whatever its content type says; a request must arrive whole in its time, but may wait for its answer
 *    as long as it asked to.
 *  - Stopping: no new connection, waiting receives are answered, what is under way is finished, connections that fall
 *    idle are closed; what is still open after the grace is cut.
 */
import Fastify, { type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify'
import type { Socket } from 'node:net'
import { Server as TlsServer } from 'node:tls'
import { Type } from 'typebox'
import { actAs } from '../engine/state/audit.ts'
import { fieldsOf, parseExact } from '../engine/json.ts'
import { codeOf, EngineError } from '../engine/errors.ts'
import { urlOf } from '../engine/net/http.ts'
import { clientNetwork } from '../engine/net/ip-address.ts'
import type { Logger } from '../engine/logger.ts'
import type { Metrics } from '../engine/metrics.ts'
import type { Account } from '../engine/state/resources.ts'
import { fieldChanges, plainly } from '../actors/resources/audited-changes.ts'
import { auditOperations, type AuditPort } from './audit-routes.ts'
import { actorOf, callerOf, hasToken, requireScope, tokenInvalid } from './http/auth.ts'
import type { Certificate } from './http/certificate.ts'
import { Cors } from './http/cors.ts'
import { TrustedProxies } from './http/proxies.ts'
import type { EngineVerbs } from '../actors/engine.ts'
import type { ResourceLookup } from '../engine/state/resource-cache.ts'
import type { TokenLookup } from '../engine/state/token-memory.ts'
import { answerTo, portUnavailable, rawAnswerTo, ROUTE_NOT_FOUND_BODY } from './http/error-answers.ts'
import { FailedRequests } from './http/failed-requests.ts'
import { withoutNulls } from '../actors/resources/form.ts'
import { configOperations, type ConfigPort } from './config-routes.ts'
import { databaseCheckOperations } from './databases/check-routes.ts'
import { databaseOperations, type DatabasePorts } from './databases/database-routes.ts'
import { sourceOperations } from './databases/source-routes.ts'
import { functionOperations, type FunctionPorts } from './function-routes.ts'
import { backfillOperations, type BackfillPorts } from './sinks/backfill-routes.ts'
import { endpointOperations } from './sinks/endpoint-routes.ts'
import { infoOperations } from './info-routes.ts'
import type { Identity } from './cluster/node-report.ts'
import { messageOperations } from './sinks/message-routes.ts'
import { openapiDocument } from './http/openapi.ts'
import { JSON_TYPE, pathParameter, type Operation } from './http/operation.ts'
import { addPeerRoutes, type ServedCluster } from './cluster/peer-routes.ts'
import { OpenReceives } from './cluster/receive-call.ts'
import type { ResourcePorts } from './http/resource-routes.ts'
import { tokenOperations, type TokenPort } from './token-routes.ts'
import { retentionOperations } from './sinks/retention-routes.ts'
import { sinkOperations } from './sinks/sink-routes.ts'
import { pullOperations } from './sinks/pull-routes.ts'
import { verifyOperations } from './sinks/verify-routes.ts'
import { tailOperations } from './sinks/tail-routes.ts'
import { Strangers } from './http/strangers.ts'
import { LIMITS, type Limits } from './limits.ts'
import { refuseForeignPage, sessionSecret } from './http/session.ts'
import { WrongTries } from './http/wrong-tries.ts'
import { ROLES } from '../engine/state/users.ts'
import { oidcOperations, type Oidc } from './oidc/oidc-routes.ts'
import { userOperations, type UserPort } from './user-routes.ts'

/** Says what the API serves, and where. */
export type ApiOptions = Readonly<{
  host: string
  /** 0: any free one */
  port: number
  engine: EngineVerbs
  resources: ResourceLookup
  /** whoever has one may ask what its scopes allow */
  tokens: TokenLookup
  /** absent: tokens can't be managed here */
  tokenEdits?: TokenPort
  /** absent: nothing that is done here goes on record but in the transactions of changes */
  audit?: AuditPort
  /** absent: nobody signs in here */
  users?: UserPort
  /** false: users sign in by OIDC alone; absent: by passwords, too */
  hasPasswords?: boolean
  /** absent: nobody signs in by OIDC */
  oidc?: Oidc
  edits: ResourcePorts['edits']
  /** absent: backfills can't be managed here */
  backfills?: BackfillPorts['backfills']
  /** absent: databases can't be managed here */
  databases?: DatabasePorts['databases']
  /** absent: functions can't be managed here */
  functions?: Pick<FunctionPorts, 'resources' | 'pool'>
  /** absent: there is no configuration as code here */
  config?: ConfigPort
  logger: Logger
  metrics?: Metrics
  identity: Identity
  /** makes an address at a public test service; absent: there is no such service here */
  makeTestUrl?: () => Promise<string>
  cluster?: ServedCluster
  limits?: Partial<Limits>
  /** absent: it speaks HTTP without TLS */
  certificate?: Certificate
  /** whose pages may read answers; absent: none of other origins */
  corsOrigins?: readonly string[]
  /** addresses and ranges; absent: nobody is believed who asked a proxy */
  trustedProxies?: readonly string[]
}>

/** An API server that listens. */
export interface ApiServer extends AsyncDisposable {
  /** such as "http://127.0.0.1:7376" */
  readonly url: string
  /** what it serves */
  readonly operations: readonly Operation[]
  /** @param graceMs for what is under way; 10 s when absent */
  stop(graceMs?: number): Promise<void>
}

const DEFAULT_BODY_BYTES = 65_536
const MAX_NAME_LENGTH = 1_000
const STOP_GRACE_MS = 10_000
/** The account of a request that needs no token. */
const NO_ACCOUNT: Account = Object.freeze({ id: '', name: '' })

/** Starts the API; it listens when this settles. @throws EngineError PORT_UNAVAILABLE */
export async function startApi(options: ApiOptions): Promise<ApiServer> {
  const { host, port } = options
  const receives = new OpenReceives()
  const limits = { ...LIMITS, ...options.limits }
  const strangers = new Strangers({ connections: limits.strangers, requests: limits.strangeRequests })
  const app = newServer(options, limits, strangers)
  const wrongPasswords = new WrongTries(options.logger, { what: 'somebody tries passwords that are wrong', free: limits.wrongTokens })
  const failedSignIns = new WrongTries(options.logger, { what: 'sign-ins by OIDC failed', free: limits.wrongTokens })
  const operations = operationsOf(options, { receives, wrongPasswords, failedSignIns })
  const wrongTokens = new WrongTries(options.logger, { what: 'requests came with API tokens that are not known', free: limits.wrongTokens })
  for (const operation of operations) addRoutes(app, operation, { ...options, wrongTokens, strangers })
  addOptions(app, operations)
  if (options.cluster) addPeerRoutes(app, { service: options.cluster.service, receives, strangers })
  try {
    await app.listen({ host, port })
  } catch (cause) {
    await app.close()
    throw portUnavailable('SERVER_PORT', host, port, cause)
  }
  const stop = stopOnce(app, receives, [wrongTokens, wrongPasswords, failedSignIns])
  return { url: urlOf(app.server), operations, stop, [Symbol.asyncDispose]: () => stop() }
}

/** Gathers the routes of everything that is served. */
function operationsOf(
  {
    engine,
    resources,
    tokens,
    tokenEdits,
    audit,
    users,
    hasPasswords = true,
    oidc,
    edits,
    backfills,
    databases,
    functions,
    config,
    identity,
    cluster,
    makeTestUrl,
  }: ApiOptions,
  { receives, wrongPasswords, failedSignIns }: Readonly<{ receives: OpenReceives; wrongPasswords: WrongTries; failedSignIns: WrongTries }>,
): Operation[] {
  const operations = [
    ...pullOperations({ engine, resources, tokens, receives }),
    ...retentionOperations({ engine, resources, edits }),
    ...sinkOperations({ engine, resources, edits, backfills }),
    ...(backfills ? backfillOperations({ engine, resources, backfills }) : []),
    ...messageOperations({ engine, resources }),
    ...tailOperations({ engine, resources, receives }),
    ...verifyOperations({ engine, resources, receives }),
    ...(functions ? functionOperations({ engine, edits, ...functions }) : []),
    ...(config ? configOperations(config) : []),
    ...endpointOperations({ engine, resources, edits, ...(makeTestUrl && { makeTestUrl }) }),
    ...(tokenEdits ? tokenOperations(tokenEdits) : []),
    ...(audit ? auditOperations(audit) : []),
    ...(users ? [...userOperations({ users, wrongPasswords, hasPasswords, oidc }), ...oidcOperations(oidc, failedSignIns)] : []),
    ...(databases ? databaseOperations({ engine, resources, databases }) : []),
    ...sourceOperations({ engine, resources }),
    ...databaseCheckOperations({ resources }),
    ...infoOperations({ engine, identity, ...(cluster && { nodes: cluster.nodes }) }),
  ]
  let document: Buffer | undefined
  operations.push({
    id: 'openapi',
    methods: ['GET'],
    paths: ['/api/openapi.json'],
    summary: 'This document',
    scope: 'open',
    answer: { description: 'OpenAPI 3.1.', schema: Type.Object({ openapi: Type.String() }, { additionalProperties: true }) },
    handle: (_request, reply) => {
      reply.header('content-type', JSON_TYPE)
      return (document ??= Buffer.from(JSON.stringify(openapiDocument(operations, identity.version)))) // anyone may ask: no work, and no copy
    },
  })
  return operations
}

function newServer(
  { logger, metrics, tokens, certificate, corsOrigins = [], trustedProxies = [] }: ApiOptions,
  { headersMs, requestMs, keepAliveMs, silenceMs, headerBytes, checkEveryMs, connections }: Limits,
  strangers: Strangers,
): FastifyInstance {
  const failed = new FailedRequests(logger)
  const cors = new Cors(corsOrigins)
  const proxies = new TrustedProxies(trustedProxies)
  const app = Fastify({
    logger: false, // a line for each request costs more than the request
    bodyLimit: DEFAULT_BODY_BYTES,
    return503OnClosing: false,
    forceCloseConnections: 'idle',
    requestTimeout: requestMs,
    keepAliveTimeout: keepAliveMs,
    connectionTimeout: silenceMs,
    [certificate ? 'https' : 'http']: {
      headersTimeout: headersMs,
      connectionsCheckingInterval: checkEveryMs,
      maxHeaderSize: headerBytes,
      ...(certificate && { ...certificate.options, handshakeTimeout: headersMs }),
    },
    ...(trustedProxies.length > 0 && { trustProxy: (address: string) => proxies.trusts(address) }),
    routerOptions: { maxParamLength: MAX_NAME_LENGTH, ignoreTrailingSlash: true },
    clientErrorHandler: onClientError,
    // a path that can't be decoded
    frameworkErrors: (error, request, reply) => {
      if (!isAdmitted(request, reply)) return
      cors.allow(request, reply)
      onError(error, request, reply)
    },
  })
  if (app.server instanceof TlsServer) certificate?.renew(app.server)
  app.server.maxConnections = connections
  app.server.on('connection', (socket) => proxies.trusts(socket.remoteAddress) || strangers.take(socket)) // a proxy has those of all clients
  app.decorateRequest('caller', null)
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', { parseAs: 'string' }, async (request: FastifyRequest, body: string) =>
    parsedBody(body, request.routeOptions.config.exactNumbers === true),
  )
  app.addHook('onRequest', (request, reply, done) => {
    request.raw.headers['content-type'] = undefined // the framework refuses those that it can't parse; ours are all JSON
    if (!isAdmitted(request, reply)) return
    if (cors.allow(request, reply) && !request.is404) return void reply.status(204).send()
    if (request.is404) return void reply.status(404).send(ROUTE_NOT_FOUND_BODY)
    done(
      takesJson(request.headers.accept)
        ? undefined
        : new EngineError('NOT_ACCEPTABLE', 'Answers are application/json, which the Accept header of the request excludes.'),
    )
  })
  app.setNotFoundHandler((_request, reply) => reply.status(404).send(ROUTE_NOT_FOUND_BODY))
  app.setErrorHandler(onError)
  return app

  /** Before anything is done for a request: who asks. @returns false: it gets no answer */
  function isAdmitted(request: FastifyRequest, reply: FastifyReply): boolean {
    const { socket, headers } = request.raw
    proxies.tidy(headers)
    request.caller = callerOf(headers.authorization, tokens) ?? null
    if (request.caller) strangers.know(socket)
    else if (!request.routeOptions.config.isPeer && !strangers.admit(socket, reply.raw, request.ip)) {
      reply.hijack()
      return false
    }
    return true
  }

  function onError(error: unknown, request: FastifyRequest, reply: FastifyReply): void {
    const { status, body } = answerTo(error)
    metrics?.errorAnswered(body.code)
    if (status >= 500) failed.add(error, body.code, { method: request.method, path: request.raw.url?.split('?')[0] })
    if (status === 429 || status === 503) reply.header('retry-after', '1')
    if (status === 401) reply.header('www-authenticate', 'Bearer')
    reply.header('content-type', JSON_TYPE)
    reply.status(status).send(body)
  }
}

/** @throws EngineError REQUEST_UNPARSABLE */
function parsedBody(text: string, exactNumbers: boolean): unknown {
  if (text === '') return undefined
  const parse: (json: string) => unknown = exactNumbers ? parseExact : JSON.parse
  try {
    return parse(text.charCodeAt(0) === 0xfeff ? text.slice(1) : text)
  } catch {
    // the parser's own message repeats parts of the body
    throw new EngineError('REQUEST_UNPARSABLE', 'The body is not valid JSON.')
  }
}

function addRoutes(
  app: FastifyInstance,
  operation: Operation,
  {
    resources,
    audit,
    users,
    wrongTokens,
    strangers,
  }: Pick<ApiOptions, 'resources' | 'audit' | 'users'> & Readonly<{ wrongTokens: WrongTries; strangers: Strangers }>,
): void {
  const { methods, paths, scope, body, answer, maxBodyBytes, exactNumbers, head, noted, handle } = operation
  /** Puts on record what is about to be done, unless it is of something that is not there. */
  const note = async (request: FastifyRequest, { id: accountId }: Account) => {
    const named = noted && resources.find(noted.kind, accountId, pathParameter(request, 'id_or_name'))
    if (noted && named)
      await audit?.note({
        accountId,
        ...noted,
        name: named.name,
        changes: fieldChanges(undefined, plainly({ ...fieldsOf(request.params), ...fieldsOf(request.body) })),
      })
  }
  /** Finds who asks by the session of the request. */
  const knowUser = async (request: FastifyRequest, secret: string) => {
    const user = await users?.userOf(secret)
    if (!user) {
      await wrongTokens.slow(clientNetwork(request.ip)) // each is looked up in the state database
      throw new EngineError('TOKEN_INVALID', 'The session has ended; sign in again.')
    }
    if (scope !== 'read' || request.method !== 'GET') refuseForeignPage(request)
    const { id, account, email: name, role } = user
    request.caller = { kind: 'user', id, name, account, scopes: ROLES[role], sinks: [] }
    strangers.know(request.raw.socket)
  }
  for (const path of paths) {
    app.route({
      method: [...methods],
      url: path.replaceAll(/\{(\w+)\}/g, ':$1'),
      exposeHeadRoute: head !== false,
      config: { exactNumbers },
      ...(maxBodyBytes && { bodyLimit: maxBodyBytes }),
      // before the body is read, so that a stranger can't make us read it
      ...(scope !== 'open' && {
        onRequest: (request, _reply, done) => {
          const { caller, headers, ip } = request
          const secret = caller || !users ? undefined : sessionSecret(request)
          if (caller || (secret === undefined && !hasToken(headers.authorization))) {
            requireScope(request, scope)
            done()
          } else if (secret !== undefined && headers.authorization === undefined) {
            knowUser(request, secret)
              .then(() => requireScope(request, scope))
              .then(() => done(), done)
          } else void wrongTokens.slow(clientNetwork(ip)).then(() => done(tokenInvalid(headers.authorization)))
        },
      }),
      handler: (request, reply) => {
        if (body) request.body = withoutNulls(body, request.body)
        if (answer.status) reply.status(answer.status)
        const account = request.caller?.account ?? NO_ACCOUNT
        if (scope !== 'manage' && scope !== 'admin') return handle(request, reply, account) // it changes nothing that goes on record
        return actAs(actorOf(request), async () => {
          await note(request, account)
          return handle(request, reply, account)
        })
      },
    })
  }
}

/** OPTIONS says which methods a path has. */
function addOptions(app: FastifyInstance, operations: readonly Operation[]): void {
  const methodsOf = new Map<string, Set<string>>()
  for (const { paths, methods, head } of operations) {
    for (const path of paths) {
      const all = methodsOf.get(path) ?? new Set(['OPTIONS'])
      for (const method of methods) all.add(method)
      if (methods.includes('GET') && head !== false) all.add('HEAD')
      methodsOf.set(path, all)
    }
  }
  for (const [path, methods] of methodsOf) {
    const allow = [...methods].toSorted().join(', ')
    app.options(path.replaceAll(/\{(\w+)\}/g, ':$1'), (_request, reply) => reply.status(204).header('allow', allow).send())
  }
}

function onClientError(error: Error, socket: Socket): void {
  const code = codeOf(error) ?? ''
  // who has not ended the handshake of TLS can read no answer
  if (!socket.writable || code === 'ECONNRESET' || /^ERR_(?:SSL|TLS)_/.test(code)) return void socket.destroy()
  socket.end(rawAnswerTo(error))
}

/** A missing header takes everything; otherwise a range that covers JSON must be there, and not with q=0. */
function takesJson(accept: string | undefined): boolean {
  if (accept === undefined || accept === '' || accept === '*/*' || accept === 'application/json') return true
  return accept.split(',').some((range) => {
    const [type = '', ...parameters] = range.split(';').map((part) => part.trim().toLowerCase())
    if (type !== '*/*' && type !== 'application/*' && !/^application\/(?:[\w.-]+\+)?json$/.test(type)) return false
    return !parameters.some((parameter) => /^q\s*=\s*0(?:\.0*)?$/.test(parameter))
  })
}

function stopOnce(app: FastifyInstance, receives: OpenReceives, slowed: readonly WrongTries[]): (graceMs?: number) => Promise<void> {
  let stopped: Promise<void> | undefined
  return (graceMs = STOP_GRACE_MS) =>
    (stopped ??= (async () => {
      const closed = app.close()
      receives.stop()
      for (const tries of slowed) tries[Symbol.dispose]()
      // a connection that was busy when the server closed keeps alive afterwards
      const sweep = setInterval(() => app.server.closeIdleConnections(), 20)
      const cut = setTimeout(() => app.server.closeAllConnections(), graceMs)
      await closed
      clearInterval(sweep)
      clearTimeout(cut)
    })())
}
