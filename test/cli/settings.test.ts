import assert from 'node:assert/strict'
import { test } from 'node:test'
import { readSettings, type Settings } from '../../cli/settings.ts'
import { EngineError } from '../../engine/errors.ts'

function refusal(env: Record<string, string | undefined>): EngineError {
  try {
    readSettings(env)
  } catch (error) {
    assert.ok(error instanceof EngineError)
    assert.equal(error.code, 'SETTING_INVALID')
    return error
  }
  return assert.fail(`accepted: ${JSON.stringify(env)}`)
}

test('with nothing set, everything has its default and the state database is the embedded one', () => {
  assert.deepEqual(readSettings({ PATH: '/bin', SERVER_PORT: '', PG_PASSWORD: '' }), {
    server: { host: '127.0.0.1', port: 7376 },
    edge: { tls: undefined, hasMetricsTls: false, peerCaFile: undefined, limits: {}, corsOrigins: [], trustedProxies: [] },
    log: { level: 'info', format: 'console' },
    config: undefined,
    state: undefined,
    vaultKey: undefined,
    otherVaultKey: undefined,
    dataFolder: './data',
    kafka: undefined,
    metrics: { host: '127.0.0.1', port: 8376, user: undefined, password: undefined },
    telemetry: undefined,
    nodeAddress: undefined,
    auditDays: 365,
    hasTestEndpoints: false,
    token: undefined,
    url: undefined,
    configHome: undefined,
    functions: { threads: undefined, memoryMb: 512 },
    maxMessageMb: 64,
    backfills: {},
    egress: { mode: 'private', allow: [] },
    databaseEgress: { mode: 'private', allow: [] },
    oidc: undefined,
    hasPasswords: true,
    ignored: [],
    unknown: [],
  } satisfies Settings)
})

test('every wrong variable is named at once, with what came and what it takes', () => {
  const { message, context } = refusal({
    SERVER_PORT: '70000',
    LOG_LEVEL: 'loud',
    PG_POOL_SIZE: '1.5',
    TAILRACE_METRICS_PORT: '0x10',
    TAILRACE_FUNCTION_MEMORY_MB: '1',
  })
  assert.match(message, /SERVER_PORT: "70000" came; takes a whole number from 0 to 65535/)
  assert.match(message, /LOG_LEVEL: "loud" came; takes one of fatal, error, warn/)
  assert.match(message, /PG_POOL_SIZE: "1\.5" came; takes a whole number from 1 to 1000/)
  assert.match(message, /TAILRACE_METRICS_PORT: "0x10"/)
  assert.match(message, /TAILRACE_FUNCTION_MEMORY_MB: "1" came; takes a whole number from 256 to 65536/)
  assert.equal(context['variables'], 'SERVER_PORT, LOG_LEVEL, PG_POOL_SIZE, TAILRACE_METRICS_PORT, TAILRACE_FUNCTION_MEMORY_MB')
})

test('no refusal repeats a secret', () => {
  for (const env of [
    { VAULT_KEY: 'hunter2X' },
    { PG_URL: 'mysql://u:hunter2X@h/d' },
    { PG_URL: 'postgres://u:hunter2X@h' },
    { PG_URL: 'postgres://u:hunter2X@h:1:2/d' },
    { PG_URL: 'postgres://u:%zz@h/hunter2X' },
    { PG_URL: 'postgres://u:hunter2X@h/d?sslmode=require', PG_SSL: 'verify-full' },
    { CONFIG_FILE_YAML: '::hunter2X::' },
    { PG_PASSWORD: 'hunter2X' },
    { OTEL_EXPORTER_OTLP_HEADERS: 'authorization=%zzhunter2X' },
    { OTEL_EXPORTER_OTLP_TRACES_HEADERS: 'a b=hunter2X' },
    { OTEL_EXPORTER_OTLP_HEADERS: 'authorization=hunter2X%0D%0A' },
  ]) {
    assert.doesNotMatch(refusal(env).message, /hunter2X/, JSON.stringify(env))
  }
})

test('the state database comes from a URL, or from its parts', () => {
  const expected = { hostname: 'pg.internal', port: 6543, database: 'state db', username: 'cdc', password: 'a@b/c', ssl: 'require' }
  assert.deepEqual(readSettings({ PG_URL: 'postgresql://cdc:a%40b%2Fc@pg.internal:6543/state%20db?sslmode=require' }).state, {
    connection: expected,
    poolSize: 10,
  })
  const parts = {
    PG_HOSTNAME: 'pg.internal',
    PG_PORT: '6543',
    PG_DATABASE: 'state db',
    PG_USERNAME: 'cdc',
    PG_PASSWORD: 'a@b/c',
    PG_SSL: 'require',
  }
  assert.deepEqual(readSettings({ ...parts, PG_POOL_SIZE: '3' }).state, { connection: expected, poolSize: 3 })
  assert.equal(readSettings({ ...parts, PG_POOL_SIZE: '1' }).state?.poolSize, 2, 'with one session no database could be created')
  assert.deepEqual(readSettings({ PG_URL: 'postgres://[::1]/d' }).state?.connection, {
    hostname: '::1',
    port: 5432,
    database: 'd',
    username: 'postgres',
    password: '',
    ssl: false,
  })
  assert.equal(readSettings({ ...parts, PG_PASSWORD: ' spaced ' }).state?.connection.password, ' spaced ')
  assert.match(
    refusal({ PG_HOSTNAME: 'h', PG_SSL: 'maybe' }).message,
    /PG_SSL: "maybe" came.*\nPG_DATABASE: is missing.*\nPG_USERNAME: is missing/,
  )
  assert.match(refusal({ PG_URL: 'mysql://u@h' }).message, /^PG_URL: a value of another form came.*$/, 'told once')
  assert.match(refusal({ PG_URL: 'postgres://u@h/d', PG_HOSTNAME: 'other' }).message, /PG_HOSTNAME: is set beside PG_URL/)
  assert.match(refusal({ PG_URL: 'postgres://u@h/d?target_session_attrs=any' }).message, /parameter it does not take: target_session_attrs/)
})

test('the configuration file is a path or base64 of its text, not both', () => {
  assert.deepEqual(readSettings({ CONFIG_FILE_PATH: ' /etc/t.yaml ' }).config, { path: '/etc/t.yaml' })
  assert.deepEqual(readSettings({ CONFIG_FILE_YAML: Buffer.from('account:\n  name: Jürgen\n').toString('base64') }).config, {
    yaml: 'account:\n  name: Jürgen\n',
  })
  assert.match(refusal({ CONFIG_FILE_PATH: 'a', CONFIG_FILE_YAML: 'YQ==' }).message, /CONFIG_FILE_YAML: is set beside CONFIG_FILE_PATH/)
  assert.match(
    refusal({ CONFIG_FILE_YAML: Buffer.from([0xff, 0xfe]).toString('base64') }).message,
    /CONFIG_FILE_YAML: is not base64 of a text/,
  )
})

test('names of the original work, ours win, and what has no effect or is misspelt is told', () => {
  const settings = readSettings({
    SEQUIN_LOG_FORMAT: 'datadog_json',
    SEQUIN_METRICS_PORT: '9000',
    TAILRACE_METRICS_PORT: '0',
    SEQUIN_METRICS_PASSWORD: 'p',
    REDIS_URL: 'redis://r',
    SECRET_KEY_BASE: 'k',
    TAILRACE_DATAA: 'x',
  })
  assert.deepEqual([settings.log.format, settings.metrics], ['json', { host: '127.0.0.1', port: 0, user: undefined, password: 'p' }])
  assert.deepEqual([settings.ignored, settings.unknown], [['SECRET_KEY_BASE', 'REDIS_URL'], ['TAILRACE_DATAA']])
})

test('the vault key is 32 bytes, and the settings can’t be changed afterwards', () => {
  const key = Buffer.alloc(32, 7)
  const settings = readSettings({ VAULT_KEY: key.toString('base64') })
  assert.deepEqual(settings.vaultKey, key)
  assert.match(refusal({ VAULT_KEY: Buffer.alloc(31).toString('base64') }).message, /VAULT_KEY/)
  assert.throws(() => Object.assign(settings.server, { port: 1 }), TypeError)
})

test('a cluster needs a vault key that its processes share; one process with everything embedded makes its own', () => {
  const cluster = { KAFKA_BROKERS: 'k1:9092, k2:9092', PG_URL: 'postgres://u:p@h/d' }
  assert.match(refusal(cluster).message, /^VAULT_KEY: is needed with KAFKA_BROKERS .* the same one/)
  assert.equal(refusal({ ...cluster, VAULT_KEY: 'short' }).message.match(/VAULT_KEY: /g)?.length, 1)
  const { kafka, vaultKey } = readSettings({ ...cluster, VAULT_KEY: Buffer.alloc(32).toString('base64') })
  assert.deepEqual([kafka?.brokers.map(({ host }) => host), vaultKey?.length], [['k1', 'k2'], 32])
  assert.equal(readSettings({ KAFKA_BROKERS: 'k1:9092' }).kafka?.brokers.length, 1)
})

test('a certificate and its key go together, and what needs them says so', () => {
  const files = { TAILRACE_TLS_CERT_FILE: '/tls.crt', TAILRACE_TLS_KEY_FILE: '/tls.key' }
  assert.deepEqual(readSettings({ ...files, TAILRACE_METRICS_TLS: 'true', TAILRACE_PEER_CA_FILE: '/ca.crt' }).edge, {
    tls: { certFile: '/tls.crt', keyFile: '/tls.key' },
    hasMetricsTls: true,
    peerCaFile: '/ca.crt',
    ...{ limits: {}, corsOrigins: [], trustedProxies: [] },
  })
  for (const [env, named] of [
    [{ TAILRACE_TLS_CERT_FILE: '/tls.crt' }, 'TAILRACE_TLS_KEY_FILE'],
    [{ TAILRACE_TLS_KEY_FILE: '/tls.key' }, 'TAILRACE_TLS_CERT_FILE'],
    [{ TAILRACE_METRICS_TLS: 'true' }, 'TAILRACE_METRICS_TLS'],
    [{ ...files, TAILRACE_NODE_ADDRESS: 'http://10.0.0.7:7376' }, 'TAILRACE_NODE_ADDRESS'],
  ] as const)
    assert.equal(refusal(env).context['variables'], named, JSON.stringify(env))
})

test('bounds of HTTP, origins and proxies are checked', () => {
  const { edge } = readSettings({
    ...{ TAILRACE_HTTP_HEADERS_MS: '5000', TAILRACE_HTTP_HEADER_BYTES: '32768', TAILRACE_HTTP_REQUESTS_WITHOUT_TOKEN: '7' },
    ...{ TAILRACE_CORS_ORIGINS: 'https://shop.example, http://localhost:5173', TAILRACE_TRUSTED_PROXIES: '10.0.0.0/8, ::1' },
  })
  assert.deepEqual(edge.limits, { headersMs: 5000, headerBytes: 32768, strangeRequests: 7 })
  assert.deepEqual(
    [edge.corsOrigins, edge.trustedProxies],
    [
      ['https://shop.example', 'http://localhost:5173'],
      ['10.0.0.0/8', '::1'],
    ],
  )
  for (const [env, named] of [
    [{ TAILRACE_HTTP_HEADERS_MS: '70000' }, 'TAILRACE_HTTP_REQUEST_MS'],
    [{ TAILRACE_HTTP_IDLE_MS: '60000' }, 'TAILRACE_HTTP_IDLE_MS'],
    [{ TAILRACE_CORS_ORIGINS: 'shop.example' }, 'TAILRACE_CORS_ORIGINS'],
    [{ TAILRACE_CORS_ORIGINS: 'https://shop.example/' }, 'TAILRACE_CORS_ORIGINS'],
    [{ TAILRACE_TRUSTED_PROXIES: 'proxy.internal' }, 'TAILRACE_TRUSTED_PROXIES'],
    [{ TAILRACE_TRUSTED_PROXIES: '10.0.0.0/33' }, 'TAILRACE_TRUSTED_PROXIES'],
  ] as const)
    assert.equal(refusal(env).context['variables'], named, JSON.stringify(env))
})

test('the address for peers is an origin of http or https, without a path or credentials', () => {
  for (const address of ['http://10.0.0.7:7376', 'https://node-1.internal'])
    assert.equal(readSettings({ TAILRACE_NODE_ADDRESS: address }).nodeAddress, address)
  for (const address of ['10.0.0.7:7376', 'http://u:p@h:1', 'http://h/path', 'ftp://h'])
    assert.match(refusal({ TAILRACE_NODE_ADDRESS: address }).message, /TAILRACE_NODE_ADDRESS/)
})

test('with KAFKA_BROKERS the log is in Kafka; what belongs to it is checked together', () => {
  const { kafka } = readSettings({
    ...{ KAFKA_BROKERS: 'a:9093, [::1]:9094,b', KAFKA_TOPIC_PREFIX: 'shop-', KAFKA_TLS_CA_FILE: '/ca.pem' },
    ...{ KAFKA_SASL_MECHANISM: 'scram-sha-512', KAFKA_SASL_USERNAME: 'u', KAFKA_SASL_PASSWORD: ' p ' },
  })
  assert.deepEqual(kafka, {
    brokers: [
      { host: 'a', port: 9093 },
      { host: '::1', port: 9094 },
      { host: 'b', port: 9092 },
    ],
    prefix: 'shop-',
    replication: undefined,
    sessionTimeoutMs: 6000,
    tls: { caFile: '/ca.pem', certFile: undefined, keyFile: undefined, verify: true },
    sasl: { mechanism: 'scram-sha-512', username: 'u', password: ' p ' },
  })
  for (const [env, named] of [
    [{ KAFKA_TLS: 'true' }, 'KAFKA_TLS'],
    [{ KAFKA_BROKERS: 'a:0' }, 'KAFKA_BROKERS'],
    [{ KAFKA_BROKERS: 'kafka://a:9092' }, 'KAFKA_BROKERS'],
    [{ KAFKA_BROKERS: 'a', KAFKA_TOPIC_PREFIX: 'ö' }, 'KAFKA_TOPIC_PREFIX'],
    [{ KAFKA_BROKERS: 'a', KAFKA_TLS: 'false', KAFKA_TLS_CA_FILE: 'x' }, 'KAFKA_TLS_CA_FILE'],
    [{ KAFKA_BROKERS: 'a', KAFKA_TLS_CERT_FILE: 'x' }, 'KAFKA_TLS_KEY_FILE'],
    [{ KAFKA_BROKERS: 'a', KAFKA_SASL_MECHANISM: 'plain', KAFKA_SASL_USERNAME: 'u' }, 'KAFKA_SASL_PASSWORD'],
    [{ KAFKA_BROKERS: 'a', KAFKA_SASL_USERNAME: 'u' }, 'KAFKA_SASL_USERNAME'],
    [
      { KAFKA_BROKERS: 'a', KAFKA_SASL_MECHANISM: 'oauthbearer', KAFKA_SASL_OAUTH_URL: 'x' },
      'KAFKA_SASL_OAUTH_CLIENT_ID, KAFKA_SASL_OAUTH_CLIENT_SECRET, KAFKA_SASL_OAUTH_URL',
    ],
  ] as const)
    assert.equal(refusal(env).context['variables'], named, JSON.stringify(env))
  assert.doesNotMatch(refusal({ KAFKA_SASL_PASSWORD: 'hunter2X' }).message, /hunter2X/)
})

test('EGRESS says where sinks may send, EGRESS_ALLOW what is let through all the same', () => {
  const { egress } = readSettings({ EGRESS: 'public', EGRESS_ALLOW: ' hooks.internal, 10.0.0.0/8 ,,*.svc.local' })
  assert.deepEqual(egress, { mode: 'public', allow: ['hooks.internal', '10.0.0.0/8', '*.svc.local'] })
  const modes = ({ egress: sinks, databaseEgress: databases }: Settings) => [sinks.mode, databases.mode]
  assert.deepEqual(modes(readSettings({ EGRESS: 'public' })), ['public', 'public'])
  assert.deepEqual(modes(readSettings({ EGRESS: 'public', EGRESS_DATABASES: 'private' })), ['public', 'private'])
  assert.throws(() => readSettings({ EGRESS: 'everywhere' }), /EGRESS: "everywhere" came; takes one of private, public/)
  assert.throws(() => readSettings({ EGRESS_ALLOW: 'http://x/' }), /EGRESS_ALLOW/)
})

test('metrics stay on this machine unless they are told where to listen, and no test service gets rows unless it may', () => {
  const open = readSettings({ SERVER_HOST: '0.0.0.0' })
  assert.deepEqual([open.server.host, open.metrics.host, open.hasTestEndpoints], ['0.0.0.0', '127.0.0.1', false])
  const told = readSettings({ TAILRACE_METRICS_HOST: '10.0.0.1', TAILRACE_TEST_ENDPOINTS: 'true' })
  assert.deepEqual([told.metrics.host, told.hasTestEndpoints], ['10.0.0.1', true])
})

test('an OIDC issuer needs a client and the public URL; what belongs to it is checked together', () => {
  const least = { TAILRACE_OIDC_ISSUER: 'https://id.example', TAILRACE_OIDC_CLIENT_ID: 'c', TAILRACE_PUBLIC_URL: 'https://t.example' }
  const { oidc, hasPasswords } = readSettings(least)
  assert.deepEqual([oidc?.policy, hasPasswords], [{ domains: [], groups: [], roles: [], defaultRole: undefined, account: undefined }, true])
  assert.deepEqual(oidc?.issuer, {
    issuer: 'https://id.example',
    clientId: 'c',
    clientSecret: undefined,
    scopes: 'openid email profile',
    publicUrl: 'https://t.example',
    claims: { email: 'email', name: 'name', groups: undefined },
    trustsEmails: false,
  })
  const whole = readSettings({
    ...least,
    ...{ TAILRACE_OIDC_ROLES: ' a=b = admin, c=viewer', TAILRACE_OIDC_GROUPS: 'c , d', TAILRACE_OIDC_DOMAINS: '@Example.com,example.org' },
    ...{ TAILRACE_OIDC_DEFAULT_ROLE: 'none', TAILRACE_OIDC_ACCOUNT: 'shop', TAILRACE_PASSWORD_SIGN_IN: 'false' },
  })
  assert.deepEqual(whole.oidc?.policy, {
    domains: ['example.com', 'example.org'],
    groups: ['c', 'd'],
    roles: [{ group: 'a=b', role: 'admin' }, { group: 'c', role: 'viewer' }], // prettier-ignore
    defaultRole: undefined,
    account: 'shop',
  })
  assert.deepEqual([whole.oidc?.issuer.claims.groups, whole.hasPasswords], ['groups', false])
  for (const [env, told] of [
    [{ TAILRACE_OIDC_ISSUER: 'https://id.example' }, /CLIENT_ID: is missing.*\nTAILRACE_PUBLIC_URL: is missing/],
    [{ ...least, TAILRACE_OIDC_ISSUER: 'http://id.example' }, /TAILRACE_OIDC_ISSUER: is no issuer/],
    [{ ...least, TAILRACE_OIDC_ISSUER: 'https://user:hunter2X@id.example' }, /TAILRACE_OIDC_ISSUER: is no issuer/],
    [{ ...least, TAILRACE_PUBLIC_URL: 'https://t.example/path' }, /TAILRACE_PUBLIC_URL: "https:\/\/t\.example\/path" came/],
    [{ ...least, TAILRACE_OIDC_SCOPES: 'email' }, /TAILRACE_OIDC_SCOPES: lacks openid/],
    [{ ...least, TAILRACE_OIDC_ROLES: 'a=king' }, /TAILRACE_OIDC_ROLES: "a=king" is no group with a role/],
    [{ ...least, TAILRACE_OIDC_GROUPS_CLAIM: 'roles' }, /TAILRACE_OIDC_GROUPS_CLAIM: has no meaning without/],
    [{ TAILRACE_PUBLIC_URL: 'https://t.example' }, /TAILRACE_PUBLIC_URL: is set without TAILRACE_OIDC_ISSUER/],
    [{ TAILRACE_OIDC_DOMAINS: 'a' }, /TAILRACE_OIDC_DOMAINS: is set without TAILRACE_OIDC_ISSUER/],
    [{ TAILRACE_PASSWORD_SIGN_IN: 'false' }, /TAILRACE_PASSWORD_SIGN_IN: is false without TAILRACE_OIDC_ISSUER: nobody could sign in/],
  ] as const) {
    const { message } = refusal(env)
    assert.match(message, told)
    assert.doesNotMatch(message, /hunter2X/)
  }
})

test('a collector is where the standard variables of OpenTelemetry say', () => {
  const read = (env: Record<string, string>) => readSettings(env).telemetry
  assert.deepEqual(
    read({
      OTEL_EXPORTER_OTLP_ENDPOINT: 'https://otel.example/base/',
      OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: 'http://tempo:4318/v1/traces',
      OTEL_EXPORTER_OTLP_HEADERS: 'authorization=Bearer%20abc, x-scope=shop',
      OTEL_EXPORTER_OTLP_METRICS_HEADERS: 'x-scope=metrics',
      OTEL_SERVICE_NAME: 'shop-cdc',
      OTEL_RESOURCE_ATTRIBUTES: 'service.name=other,deployment.environment.name=test%2C1',
      OTEL_METRIC_EXPORT_INTERVAL: '5000',
    }),
    {
      protocol: 'http/protobuf',
      resource: { 'service.name': 'shop-cdc', 'deployment.environment.name': 'test,1' },
      metrics: {
        url: 'https://otel.example/base/v1/metrics',
        headers: { authorization: 'Bearer abc', 'x-scope': 'metrics' },
        everyMs: 5_000,
      },
      traces: {
        url: 'http://tempo:4318/v1/traces',
        headers: { authorization: 'Bearer abc', 'x-scope': 'shop' },
        sampling: { ratio: 0.01, byParent: true },
      },
    },
  )
  const sampling = (sampler: string, arg = '0.5') =>
    read({ OTEL_EXPORTER_OTLP_ENDPOINT: 'http://h', OTEL_TRACES_SAMPLER: sampler, OTEL_TRACES_SAMPLER_ARG: arg })?.traces?.sampling
  assert.deepEqual(sampling('always_on'), { ratio: 1, byParent: false })
  assert.equal(sampling('always_off'), undefined)
  assert.equal(sampling('traceidratio', '0'), undefined)
  assert.deepEqual(sampling('traceidratio'), { ratio: 0.5, byParent: false })
  assert.deepEqual(sampling('parentbased_always_off'), { ratio: 0, byParent: true })
  assert.equal(read({ OTEL_EXPORTER_OTLP_ENDPOINT: 'http://h', OTEL_SDK_DISABLED: 'true' }), undefined)
  assert.equal(read({ OTEL_SERVICE_NAME: 'x' }), undefined)
  for (const [name, value] of [
    ['OTEL_EXPORTER_OTLP_ENDPOINT', 'collector:4317'],
    ['OTEL_EXPORTER_OTLP_PROTOCOL', 'grpc'],
    ['OTEL_TRACES_SAMPLER', 'sometimes'],
    ['OTEL_TRACES_SAMPLER_ARG', '2'],
    ['OTEL_RESOURCE_ATTRIBUTES', 'team'],
  ] as const)
    assert.equal(refusal({ [name]: value }).context['variables'], name)
})
