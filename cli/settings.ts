/**
 * The settings of a process: the one place that reads environment variables. Every variable is described once below;
 * the description is the JSON schema it is checked against and the text of the documentation. All wrong ones are told at
 * once; the result is frozen, and nothing else in the project looks at process.env.
 *
 * Names of the original (`SEQUIN_…`) are taken in beside ours; what has no effect here is accepted and listed in
 * `ignored`, so that the log can say so. An empty variable counts as unset, as container files write it.
 */
import type { ErrorObject } from 'ajv'
import { Type, type TSchema } from 'typebox'
import { MB } from '../engine/amounts.ts'
import type { BackfillLimits } from '../engine/backfill/backfill-limits.ts'
import { schemaCheck } from '../engine/schema-check.ts'
import { EngineError } from '../engine/errors.ts'
import type { LogFormat, LogLevel } from '../engine/logger.ts'
import { Egress, type EgressOptions } from '../engine/net/egress.ts'
import type { Connection } from '../engine/postgres/client-config.ts'
import { edgeSettings, LIMIT_VARIABLES, type EdgeSettings } from './edge-settings.ts'
import { oidcSettings, type OidcSettings } from './oidc-settings.ts'
import { kafkaSettings, SASL_MECHANISMS, type KafkaSettings } from './kafka-settings.ts'
import { OTLP_PROTOCOLS, SAMPLERS, telemetrySettings } from './telemetry-settings.ts'
import type { TelemetrySettings } from '../engine/telemetry/settings.ts'

type Reach = Pick<EgressOptions, 'mode'> & Readonly<{ allow: readonly string[] }>

/** The settings of a process, checked. */
export type Settings = Readonly<{
  server: Readonly<{ host: string; port: number }>
  edge: EdgeSettings
  log: Readonly<{ level: LogLevel; format: LogFormat }>
  /** what to stream, from a file or given whole; absent: what the state database holds */
  config: Readonly<{ path: string }> | Readonly<{ yaml: string }> | undefined
  /** the state database; absent: an embedded Postgres in the data folder */
  state: Readonly<{ connection: Connection; poolSize: number }> | undefined
  /** 32 bytes that encrypt secrets at rest; absent: made once and kept in the data folder */
  vaultKey: Buffer | undefined
  /** accepted beside it while the key is changed */
  otherVaultKey: Buffer | undefined
  dataFolder: string
  /** absent: the log is embedded, in the data folder */
  kafka: KafkaSettings | undefined
  /** port 0: no metrics server */
  metrics: Readonly<{ host: string; port: number; user: string | undefined; password: string | undefined }>
  /** absent: nothing is sent to a collector */
  telemetry: TelemetrySettings | undefined
  /** endpoints may get an address at a public test service */
  hasTestEndpoints: boolean
  /** 0: for ever */
  auditDays: number
  /** of an account, for commands that ask a running service */
  token: string | undefined
  /** where a running service listens that commands ask; absent: on this machine, at the port of `server` */
  url: string | undefined
  /** folder of what this user set commands to; absent: the usual one below the home */
  configHome: string | undefined
  /** where the other processes reach this one; absent: made of the address it listens on */
  nodeAddress: string | undefined
  /** bound of all read-ahead windows together; absent: by the machine's memory */
  functions: { threads: number | undefined; memoryMb: number }
  /** larger messages are not kept */
  maxMessageMb: number
  /** what backfills may ask of sources, where it is said */
  backfills: Partial<BackfillLimits>
  /** where sinks may send */
  egress: Reach
  databaseEgress: Reach
  /** absent: nobody signs in by OIDC */
  oidc: OidcSettings | undefined
  /** users sign in by passwords, too */
  hasPasswords: boolean
  /** variables that are set and known but have no effect here */
  ignored: readonly string[]
  /** variables that look like ours and are not known: most likely misspelt */
  unknown: readonly string[]
}>

type Variable = Readonly<{ schema: TSchema; secret?: boolean }>

const port = (takesNone: boolean) => Type.Integer({ minimum: takesNone ? 0 : 1, maximum: 65_535 })
const text = Type.String()
const variable = (schema: TSchema, description: string, secret = false): Variable => ({ schema: { ...schema, description }, secret })

const LEVELS = ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'] as const
const FORMATS = ['console', 'json', 'datadog_json'] as const
const SSL_MODES = ['true', 'false', 'disable', 'require', 'verify-ca', 'verify-full'] as const
const KAFKA_TLS_MODES = ['true', 'false', 'unverified'] as const
const EGRESS_MODES = ['private', 'public'] as const
const OTLP_URL = Type.String({ pattern: '^https?://[^?#\\s@]+$' })
const oneOf = (values: readonly string[]) => Type.Union(values.map((value) => Type.Literal(value)))

type LimitName = keyof typeof LIMIT_VARIABLES
const limitVariables = () =>
  Object.fromEntries(
    Object.entries(LIMIT_VARIABLES).map(([name, { least, most, says }]) => [
      name,
      variable(Type.Integer({ minimum: least, maximum: most }), says),
    ]),
  ) as Readonly<Record<LimitName, Variable>>

/** Every variable that has an effect. `SEQUIN_…` twins are read when ours is unset. */
export const VARIABLES = {
  SERVER_PORT: variable(port(true), 'port of the API (7376); 0 takes any free one'),
  SERVER_HOST: variable(text, 'address to listen on (127.0.0.1)'),
  TAILRACE_TLS_CERT_FILE: variable(
    text,
    'PEM file of the certificate with which the API speaks TLS, and of those between it and its authority (none: HTTP); read again when it changes',
  ),
  TAILRACE_TLS_KEY_FILE: variable(text, 'PEM file of its key, without a passphrase'),
  ...limitVariables(),
  TAILRACE_CORS_ORIGINS: variable(
    text,
    'origins whose pages may ask the API in a browser with a token of their own, such as https://shop.example, with commas between; * is any (none)',
  ),
  TAILRACE_TRUSTED_PROXIES: variable(
    text,
    'addresses and ranges of proxies whose X-Forwarded-For and X-Forwarded-Proto count, with commas between (none)',
  ),
  LOG_LEVEL: variable(oneOf(LEVELS), 'least level that is logged (info)'),
  TAILRACE_LOG_FORMAT: variable(oneOf(FORMATS), 'console for people, json for machines (console); datadog_json means json'),
  SEQUIN_LOG_FORMAT: variable(oneOf(FORMATS), 'as TAILRACE_LOG_FORMAT'),
  CONFIG_FILE_PATH: variable(text, 'YAML file that says what to stream'),
  CONFIG_FILE_YAML: variable(Type.String({ pattern: '^[A-Za-z0-9+/\\s]+(?:={1,2}\\s*)?$' }), 'the same as base64 of its text', true),
  PG_URL: variable(Type.String({ pattern: '^postgres(ql)?://.+' }), 'state database, postgresql://user:password@host:port/database', true),
  PG_HOSTNAME: variable(text, 'state database, part by part: host'),
  PG_PORT: variable(port(false), 'its port (5432)'),
  PG_DATABASE: variable(text, 'its database'),
  PG_USERNAME: variable(text, 'its user'),
  PG_PASSWORD: variable(text, "the user's password", true),
  PG_SSL: variable(oneOf(SSL_MODES), 'TLS to the state database (false)'),
  PG_POOL_SIZE: variable(Type.Integer({ minimum: 1, maximum: 1_000 }), 'connections to the state database (10), two at least'),
  VAULT_KEY: variable(Type.String({ pattern: '^[A-Za-z0-9+/]{43}=$' }), 'encrypts secrets at rest: 32 bytes in base64', true),
  VAULT_KEY_OTHER: variable(
    Type.String({ pattern: '^[A-Za-z0-9+/]{43}=$' }),
    'a key that is accepted, too, while VAULT_KEY is changed: before tailrace vault rotate the new one, after it the former one',
    true,
  ),
  TAILRACE_NODE_ADDRESS: variable(
    Type.String({ pattern: '^https?://[^/?#\\s@]+/?$' }),
    'where the other processes of a cluster reach this one, http://host:port, with TLS https://host:port (the address it listens on; for 0.0.0.0 the first of the machine)',
  ),
  TAILRACE_PEER_CA_FILE: variable(
    text,
    'PEM file of the authority whose certificates the other processes of a cluster must have where their address says https (any that Node trusts); read again when it changes',
  ),
  TAILRACE_DATA: variable(text, 'data folder (./data)'),
  TAILRACE_METRICS_PORT: variable(port(true), 'port of /metrics (8376), 0 = none'),
  SEQUIN_METRICS_PORT: variable(port(true), 'as TAILRACE_METRICS_PORT'),
  TAILRACE_METRICS_HOST: variable(text, 'address that /metrics listens on (127.0.0.1, whatever SERVER_HOST says)'),
  TAILRACE_METRICS_TLS: variable(oneOf(['true', 'false'] as const), 'true: /metrics speaks TLS, with the certificate of the API (false)'),
  TAILRACE_METRICS_USER: variable(text, 'user of /metrics'),
  SEQUIN_METRICS_USER: variable(text, 'as TAILRACE_METRICS_USER'),
  TAILRACE_METRICS_PASSWORD: variable(text, 'password of /metrics', true),
  SEQUIN_METRICS_PASSWORD: variable(text, 'as TAILRACE_METRICS_PASSWORD', true),
  KAFKA_BROKERS: variable(text, 'brokers of a log in Kafka, host:port with commas between; without it the log is in the data folder'),
  KAFKA_TOPIC_PREFIX: variable(
    Type.String({ pattern: '^[A-Za-z0-9._-]{1,100}$' }),
    'in front of the names of its topics and groups (tailrace.)',
  ),
  KAFKA_REPLICATION_FACTOR: variable(Type.Integer({ minimum: 1, maximum: 99 }), 'copies of each partition (3, or as many as brokers)'),
  KAFKA_SESSION_TIMEOUT_MS: variable(
    Type.Integer({ minimum: 1_000, maximum: 300_000 }),
    'a process silent for so long loses its partitions, ms (6000)',
  ),
  KAFKA_TLS: variable(oneOf(KAFKA_TLS_MODES), 'TLS to the brokers (false; true when a file is named); unverified takes any certificate'),
  KAFKA_TLS_CA_FILE: variable(text, 'PEM file of the authority that signs their certificates'),
  KAFKA_TLS_CERT_FILE: variable(text, 'PEM file of our own certificate'),
  KAFKA_TLS_KEY_FILE: variable(text, 'PEM file of its key'),
  KAFKA_SASL_MECHANISM: variable(oneOf(SASL_MECHANISMS), 'how we log in at the brokers'),
  KAFKA_SASL_USERNAME: variable(text, 'user, for plain and scram'),
  KAFKA_SASL_PASSWORD: variable(text, "the user's password", true),
  KAFKA_SASL_OAUTH_URL: variable(text, 'token endpoint, for oauthbearer (client credentials)'),
  KAFKA_SASL_OAUTH_CLIENT_ID: variable(text, 'client there'),
  KAFKA_SASL_OAUTH_CLIENT_SECRET: variable(text, 'its secret', true),
  KAFKA_SASL_OAUTH_SCOPE: variable(text, 'scope that is asked for'),
  // a larger one could not be parked: the driver sends its bytes as text, twice as long, and a text ends at 512 MB
  MAX_MESSAGE_MB: variable(
    Type.Integer({ minimum: 1, maximum: 200 }),
    'a larger message is discarded, on record, and its source goes on (64); one takes several times its size in memory for a moment',
  ),
  BACKFILL_MAX_PENDING_MESSAGES: variable(
    Type.Integer({ minimum: 1_000, maximum: 1_000_000_000 }),
    'a backfill waits when so many messages wait before its sink, which is paused or delivers nothing (1000000), or a tenth of its max_backlog_mb',
  ),
  TAILRACE_BACKFILLS_PER_DATABASE: variable(
    Type.Integer({ minimum: 1, maximum: 100 }),
    'backfills of one database that read side by side (2), of tables of less than 1 MB four for each; the others queue, and one that waits holds up none',
  ),
  TAILRACE_BACKFILL_ROWS_PER_SECOND: variable(
    Type.Integer({ minimum: 1, maximum: 100_000_000 }),
    'rows a second that all backfills of one database read together (no bound)',
  ),
  TAILRACE_BACKFILL_STANDBY_LAG_MB: variable(
    Type.Integer({ minimum: 0, maximum: 1_000_000_000 }),
    'backfills wait while a standby of their source is further behind than this, where pg_stat_replication tells it (1024); 0: they never do',
  ),
  EGRESS: variable(
    oneOf(EGRESS_MODES),
    'where sinks may send: private = everywhere but to link-local and metadata addresses, public = to public addresses only (private)',
  ),
  EGRESS_ALLOW: variable(text, 'hosts, *.suffixes, addresses and ranges that both let through all the same, with commas between'),
  EGRESS_DATABASES: variable(oneOf(EGRESS_MODES), 'the same for the databases that sources read (as EGRESS)'),
  TAILRACE_TEST_ENDPOINTS: variable(
    oneOf(['true', 'false'] as const),
    'true: an endpoint with `webhook.site: true` gets an address at that public service, which then has the rows (false)',
  ),
  TAILRACE_AUDIT_DAYS: variable(
    Type.Integer({ minimum: 0, maximum: 36_500 }),
    'so many days the audit log keeps who changed what (365); 0: for ever',
  ),
  TAILRACE_PUBLIC_URL: variable(
    Type.String({ pattern: '^https?://[^/?#\\s@]+/?$' }),
    'where browsers reach this service, https://tailrace.example.com: the issuer sends them back there (none; sign-in by OIDC needs it)',
  ),
  TAILRACE_OIDC_ISSUER: variable(text, 'issuer by which users sign in, https://host/path as it calls itself (none: nobody does)'),
  TAILRACE_OIDC_CLIENT_ID: variable(text, 'id of this service as a client of the issuer'),
  TAILRACE_OIDC_CLIENT_SECRET: variable(text, 'secret of the client (none: a public client)', true),
  TAILRACE_OIDC_SCOPES: variable(text, 'scopes that are asked for, with blanks between (openid email profile)'),
  TAILRACE_OIDC_EMAIL_CLAIM: variable(text, 'claim that has the email address (email); a dot leads into an object'),
  TAILRACE_OIDC_NAME_CLAIM: variable(text, 'claim that has the name (name)'),
  TAILRACE_OIDC_GROUPS_CLAIM: variable(text, 'claim that has the groups, a list of texts or one text (groups)'),
  TAILRACE_OIDC_UNVERIFIED_EMAILS: variable(
    oneOf(['refuse', 'trust'] as const),
    'trust: an email address counts that the issuer does not call verified; for issuers at which nobody can choose an address of others (refuse)',
  ),
  TAILRACE_OIDC_DOMAINS: variable(text, 'domains of email addresses that may sign in, with commas between (any)'),
  TAILRACE_OIDC_GROUPS: variable(text, 'groups of which one is needed to sign in, with commas between (none is)'),
  TAILRACE_OIDC_ROLES: variable(text, 'roles that groups give, such as platform=admin,developers=editor (none); the highest counts'),
  TAILRACE_OIDC_DEFAULT_ROLE: variable(
    oneOf(['viewer', 'editor', 'admin', 'none'] as const),
    'role of whoever signs in for the first time, is not invited, and has no group with a role; none: nobody else may (none)',
  ),
  TAILRACE_OIDC_ACCOUNT: variable(text, 'account whose users sign in so, and that new ones belong to (the only one that there is)'),
  TAILRACE_PASSWORD_SIGN_IN: variable(
    oneOf(['true', 'false'] as const),
    'false: users sign in by OIDC alone (true); all passwords are kept, so true lets them in again',
  ),
  TAILRACE_TOKEN: variable(
    text,
    'API token for commands that ask a running service, as --token, which others see in the list of processes',
    true,
  ),
  TAILRACE_URL: variable(
    Type.String({ pattern: '^https?://[^?#\\s@]+$' }),
    'where the service listens that commands ask, as --url; http://127.0.0.1 with the port in SERVER_PORT',
  ),
  XDG_CONFIG_HOME: variable(text, 'folder in which commands keep their contexts, below tailrace/ (~/.config)'),
  OTEL_EXPORTER_OTLP_ENDPOINT: variable(
    OTLP_URL,
    'collector that gets metrics and traces as OTLP over HTTP, such as http://127.0.0.1:4318 (none); v1/metrics and v1/traces are appended',
  ),
  OTEL_EXPORTER_OTLP_METRICS_ENDPOINT: variable(OTLP_URL, 'where metrics go instead, with the whole path'),
  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: variable(OTLP_URL, 'where traces go instead, with the whole path'),
  OTEL_EXPORTER_OTLP_HEADERS: variable(text, 'headers for the collector, such as authorization=Bearer%20…, with commas between', true),
  OTEL_EXPORTER_OTLP_METRICS_HEADERS: variable(text, 'further ones for metrics', true),
  OTEL_EXPORTER_OTLP_TRACES_HEADERS: variable(text, 'further ones for traces', true),
  OTEL_EXPORTER_OTLP_PROTOCOL: variable(oneOf(OTLP_PROTOCOLS), 'form of what is sent (http/protobuf)'),
  OTEL_SERVICE_NAME: variable(text, 'service.name of what is sent (tailrace)'),
  OTEL_RESOURCE_ATTRIBUTES: variable(text, 'further attributes of the process, name=value, with commas between'),
  OTEL_TRACES_SAMPLER: variable(
    oneOf(SAMPLERS),
    'which messages are traced (parentbased_traceidratio): a share of them, and with parentbased those whose writer is traced',
  ),
  OTEL_TRACES_SAMPLER_ARG: variable(text, 'the share for traceidratio, from 0 to 1 (0.01)'),
  OTEL_METRIC_EXPORT_INTERVAL: variable(Type.Integer({ minimum: 100, maximum: 86_400_000 }), 'metrics are sent so often, ms (60000)'),
  OTEL_SDK_DISABLED: variable(oneOf(['true', 'false']), 'true: nothing is sent to a collector (false)'),
  TAILRACE_FUNCTION_THREADS: variable(
    Type.Integer({ minimum: 1, maximum: 64 }),
    'threads that run functions (as many as cores, from 3 to 8); one function has all of them but one at most',
  ),
  TAILRACE_FUNCTION_MEMORY_MB: variable(
    Type.Integer({ minimum: 256, maximum: 65_536 }),
    'memory of a process that runs functions, which is ended above it (512); there are two, and a third while one is replaced',
  ),
} as const satisfies Record<string, Variable>
type Name = keyof typeof VARIABLES
const isName = (name: string): name is Name => Object.hasOwn(VARIABLES, name)
const NAMES = Object.keys(VARIABLES).filter(isName)

/** Variables that the original knows and that have no effect here. */
// prettier-ignore
export const IGNORED = [
  'SERVER_CHECK_ORIGIN', 'SECRET_KEY_BASE', 'PG_IPV6', 'REDIS_URL', 'REDIS_TLS', 'REDIS_IPV6', 'REDIS_POOL_SIZE',
  'REDIS_TLS_CA_CERT_FILE', 'REDIS_TLS_CLIENT_CERT_FILE', 'REDIS_TLS_CLIENT_KEY_FILE', 'REDIS_TLS_VERIFY',
  'DEFAULT_WORKERS_PER_SINK', 'MAX_MEMORY_MB', 'MEMORY_BUFFER_PERCENT',
  'REPLICATION_FLUSH_MAX_ACCUMULATED_BYTES', 'REPLICATION_FLUSH_MAX_ACCUMULATED_MESSAGES', 'REPLICATION_FLUSH_MAX_ACCUMULATED_TIME_MS',
  'FEATURE_ACCOUNT_SELF_SIGNUP', 'FEATURE_PROVISION_DEFAULT_USER', 'SEQUIN_TELEMETRY_DISABLED', 'CRASH_REPORTING_DISABLED',
  'LONG_POLL_FALLBACK_MS', 'GITHUB_CLIENT_ID', 'GITHUB_CLIENT_SECRET', 'GITHUB_CLIENT_REDIRECT_URI', 'ADMIN_USER', 'ADMIN_PASSWORD',
  'HTTP_POOL_SIZE', 'HTTP_POOL_COUNT',
] as const

type Values = Partial<Record<Name, string | number>>
type Problem = Readonly<{ name: string; reason: string }>

/**
 * Reads the settings of a process. @param env variables by name @throws EngineError SETTING_INVALID: names every wrong variable,
 * what came (but for secrets) and what it takes
 */
export function readSettings(env: Readonly<Record<string, string | undefined>> = process.env): Settings {
  // a password may begin or end with a space
  const given = (name: string) => (name.endsWith('_PASSWORD') ? env[name] : env[name]?.trim()) || undefined
  const values: Values = {}
  for (const name of NAMES) {
    const value = given(name)
    if (value !== undefined) values[name] = takesInteger(name) && /^-?\d{1,15}$/.test(value) ? Number(value) : value
  }
  // of the few that are given: to compile the check of all took a tenth of the CPU time of a start
  const check = schemaCheck(
    Type.Object(Object.fromEntries(NAMES.filter((name) => name in values).map((name) => [name, VARIABLES[name].schema]))),
  )
  const problems: Problem[] = check(values) ? [] : wrongOnes(check.errors ?? [], values)
  const state = problems.some(({ name }) => name === 'PG_URL') ? undefined : stateDatabase(values, problems)
  const config = configFile(values, problems)
  const valueOf = (name: string) => (isName(name) ? values[name]?.toString() : undefined)
  const wrong = (name: string, reason: string) => void problems.push({ name, reason })
  const kafka = kafkaSettings(valueOf, wrong)
  const edge = edgeSettings(valueOf, wrong)
  const oidc = oidcSettings(valueOf, wrong)
  const telemetry = telemetrySettings(valueOf, wrong)
  const egress = egressOf(values, problems)
  if (kafka && state && values.VAULT_KEY === undefined) {
    const reason = `is needed with KAFKA_BROKERS and a state database of your own: all processes must have the same one ("openssl rand -base64 32" makes one)`
    problems.push({ name: 'VAULT_KEY', reason })
  }
  if (problems.length > 0) {
    throw new EngineError('SETTING_INVALID', problems.map(({ name, reason }) => `${name}: ${reason}`).join('\n'), {
      variables: [...new Set(problems.map(({ name }) => name))].join(', '),
    })
  }
  const string = (...names: Name[]) =>
    names
      .map((name) => values[name])
      .find((value) => value !== undefined)
      ?.toString()
  const integer = (...names: Name[]) => names.map((name) => values[name]).find((value) => typeof value === 'number')
  const keyOf = (name: 'VAULT_KEY' | 'VAULT_KEY_OTHER') => {
    const key = string(name)
    return key === undefined ? undefined : Buffer.from(key, 'base64')
  }
  return deepFreeze({
    server: { host: string('SERVER_HOST') ?? '127.0.0.1', port: integer('SERVER_PORT') ?? 7376 },
    edge,
    log: {
      level: LEVELS.find((level) => level === values.LOG_LEVEL) ?? 'info',
      format: (string('TAILRACE_LOG_FORMAT', 'SEQUIN_LOG_FORMAT') ?? 'console') === 'console' ? 'console' : 'json',
    },
    config,
    state,
    vaultKey: keyOf('VAULT_KEY'),
    otherVaultKey: keyOf('VAULT_KEY_OTHER'),
    dataFolder: string('TAILRACE_DATA') ?? './data',
    kafka,
    metrics: {
      host: string('TAILRACE_METRICS_HOST') ?? '127.0.0.1',
      port: integer('TAILRACE_METRICS_PORT', 'SEQUIN_METRICS_PORT') ?? 8376,
      user: string('TAILRACE_METRICS_USER', 'SEQUIN_METRICS_USER'),
      password: string('TAILRACE_METRICS_PASSWORD', 'SEQUIN_METRICS_PASSWORD'),
    },
    telemetry,
    nodeAddress: string('TAILRACE_NODE_ADDRESS'),
    hasTestEndpoints: string('TAILRACE_TEST_ENDPOINTS') === 'true',
    auditDays: integer('TAILRACE_AUDIT_DAYS') ?? 365,
    token: string('TAILRACE_TOKEN'),
    url: string('TAILRACE_URL'),
    configHome: string('XDG_CONFIG_HOME'),
    functions: { threads: integer('TAILRACE_FUNCTION_THREADS'), memoryMb: integer('TAILRACE_FUNCTION_MEMORY_MB') ?? 512 },
    maxMessageMb: integer('MAX_MESSAGE_MB') ?? 64,
    backfills: backfillLimits(values),
    egress,
    databaseEgress: { ...egress, mode: EGRESS_MODES.find((mode) => mode === values.EGRESS_DATABASES) ?? egress.mode },
    oidc,
    hasPasswords: string('TAILRACE_PASSWORD_SIGN_IN') !== 'false',
    ignored: IGNORED.filter((name) => given(name) !== undefined),
    unknown: Object.keys(env).filter(
      (name) => /^(?:TAILRACE|SEQUIN)_/.test(name) && !(name in VARIABLES) && !IGNORED.some((known) => known === name),
    ),
  })
}

const takesInteger = (name: Name): boolean => 'type' in VARIABLES[name].schema && VARIABLES[name].schema.type === 'integer'

/** ajv's errors as one sentence for each variable: what came, what it takes. */
function wrongOnes(errors: readonly ErrorObject[], values: Values): Problem[] {
  const names = new Set(errors.map((error) => error.instancePath.slice(1)).filter(isName))
  return [...names].map((name) => {
    const { schema, secret }: Variable = VARIABLES[name]
    const came = secret ? 'a value of another form' : `"${String(values[name]).slice(0, 100)}"`
    return { name, reason: `${came} came; takes ${takes(schema)} (${(schema as { description?: string }).description})` }
  })
}

function takes(schema: TSchema): string {
  const { anyOf, type, minimum, maximum, pattern } = schema as Partial<Record<'type' | 'pattern', string>> &
    Partial<Record<'minimum' | 'maximum', number>> & { anyOf?: { const: string }[] }
  if (anyOf) return `one of ${anyOf.map((option) => option.const).join(', ')}`
  if (type === 'integer') return maximum === undefined ? `a whole number from ${minimum}` : `a whole number from ${minimum} to ${maximum}`
  return pattern === undefined ? 'a text' : `a text like ${pattern}`
}

/** A database that is created holds one session until another one has stored it. */
const LEAST_POOL_SIZE = 2
const PG_PARTS = ['PG_HOSTNAME', 'PG_PORT', 'PG_DATABASE', 'PG_USERNAME', 'PG_PASSWORD'] as const

function stateDatabase(values: Values, problems: Problem[]): Settings['state'] {
  const poolSize = Math.max(LEAST_POOL_SIZE, Number(values.PG_POOL_SIZE ?? 10))
  const ssl = values.PG_SSL === undefined ? undefined : sslOf(String(values.PG_SSL))
  if (values.PG_URL !== undefined) {
    const both = PG_PARTS.filter((name) => values[name] !== undefined)
    for (const name of both) problems.push({ name, reason: 'is set beside PG_URL, which says it too; keep one of the two' })
    const connection = connectionOfUrl(String(values.PG_URL), ssl, problems)
    return connection && { connection, poolSize }
  }
  if (PG_PARTS.every((name) => values[name] === undefined)) return undefined
  for (const name of ['PG_HOSTNAME', 'PG_DATABASE', 'PG_USERNAME'] as const) {
    if (values[name] === undefined)
      problems.push({ name, reason: 'is missing; the state database needs it when its other parts are given' })
  }
  const connection: Connection = {
    hostname: String(values.PG_HOSTNAME),
    port: Number(values.PG_PORT ?? 5432),
    database: String(values.PG_DATABASE),
    username: String(values.PG_USERNAME),
    password: String(values.PG_PASSWORD ?? ''),
    ssl: ssl ?? false,
  }
  return { connection, poolSize }
}

function sslOf(value: string): Connection['ssl'] {
  const mode = SSL_MODES.find((one) => one === value) ?? 'false'
  return mode === 'true' || mode === 'false' ? mode === 'true' : mode
}

function connectionOfUrl(value: string, ssl: Connection['ssl'] | undefined, problems: Problem[]): Connection | undefined {
  const wrong = (reason: string): undefined => void problems.push({ name: 'PG_URL', reason })
  if (!URL.canParse(value))
    return wrong('is not a URL; takes postgresql://user:password@host:port/database, with special characters %-encoded')
  const url = new URL(value)
  const unknown = [...url.searchParams.keys()].filter((name) => name !== 'sslmode')
  if (unknown.length > 0) return wrong(`has a parameter it does not take: ${unknown.join(', ')}; takes sslmode`)
  const mode = url.searchParams.get('sslmode')
  if (mode !== null && !SSL_MODES.slice(2).some((one) => one === mode))
    return wrong(`has sslmode "${mode}"; takes ${SSL_MODES.slice(2).join(', ')}`)
  if (mode !== null && ssl !== undefined && sslOf(mode) !== ssl) return wrong('has an sslmode that contradicts PG_SSL; keep one of the two')
  if (url.hostname === '') return wrong('names no host')
  try {
    const database = decodeURIComponent(url.pathname.slice(1))
    const username = decodeURIComponent(url.username)
    if (database === '') return wrong('names no database')
    return {
      hostname: decodeURIComponent(url.hostname.replace(/^\[(.*)\]$/, '$1')),
      port: url.port === '' ? 5432 : Number(url.port),
      database,
      username: username === '' ? 'postgres' : username,
      password: decodeURIComponent(url.password),
      ssl: mode === null ? (ssl ?? false) : sslOf(mode),
    }
  } catch {
    return wrong('has a "%" that is not followed by two hexadecimal digits')
  }
}

function backfillLimits(values: Values): Settings['backfills'] {
  const number = (name: Name): number | undefined => (typeof values[name] === 'number' ? values[name] : undefined)
  const atOnce = number('TAILRACE_BACKFILLS_PER_DATABASE')
  const rowsPerSecond = number('TAILRACE_BACKFILL_ROWS_PER_SECOND')
  const maxPending = number('BACKFILL_MAX_PENDING_MESSAGES')
  const lagMb = number('TAILRACE_BACKFILL_STANDBY_LAG_MB')
  return {
    ...(atOnce !== undefined && { atOnce }),
    ...(rowsPerSecond !== undefined && { rowsPerSecond }),
    ...(maxPending !== undefined && { maxPending }),
    ...(lagMb !== undefined && { maxStandbyLagBytes: lagMb === 0 ? Infinity : lagMb * MB }),
  }
}

function egressOf({ EGRESS = 'private', EGRESS_ALLOW = '' }: Values, problems: Problem[]): Settings['egress'] {
  const allow = String(EGRESS_ALLOW)
    .split(',')
    .map((entry) => entry.trim())
    .filter((entry) => entry !== '')
  const egress = { mode: EGRESS_MODES.find((mode) => mode === EGRESS) ?? 'private', allow }
  try {
    new Egress(egress)
  } catch (error) {
    if (!(error instanceof EngineError)) throw error
    problems.push({ name: 'EGRESS_ALLOW', reason: error.message })
  }
  return egress
}

function configFile(values: Values, problems: Problem[]): Settings['config'] {
  const { CONFIG_FILE_PATH: path, CONFIG_FILE_YAML: encoded } = values
  if (path !== undefined && encoded !== undefined) {
    problems.push({ name: 'CONFIG_FILE_YAML', reason: 'is set beside CONFIG_FILE_PATH; keep one of the two' })
    return undefined
  }
  if (path !== undefined) return { path: String(path) }
  if (encoded === undefined) return undefined
  try {
    return { yaml: new TextDecoder('utf-8', { fatal: true }).decode(Buffer.from(String(encoded), 'base64')) }
  } catch {
    problems.push({ name: 'CONFIG_FILE_YAML', reason: 'is not base64 of a text in UTF-8' })
    return undefined
  }
}

function deepFreeze<T extends object>(value: T): T {
  for (const item of Object.values(value)) if (typeof item === 'object' && item !== null && !ArrayBuffer.isView(item)) deepFreeze(item)
  return Object.freeze(value)
}

/** Gives the variables that `${VAR}` in a configuration file may name. */
export const configVariables = (): Readonly<Record<string, string | undefined>> => process.env
