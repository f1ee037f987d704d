/** The variables of Kafka, checked against each other: which belong together, and what each way of logging in needs. */
import { parseBroker, type BrokerAddress } from '../engine/log/kafka/connection.ts'

type KafkaLogin =
  | Readonly<{ mechanism: 'plain' | 'scram-sha-256' | 'scram-sha-512'; username: string; password: string }>
  | Readonly<{ mechanism: 'oauthbearer'; url: string; clientId: string; clientSecret: string; scope: string | undefined }>

/** Says where the log in Kafka is, and how it is reached. */
export type KafkaSettings = Readonly<{
  brokers: readonly BrokerAddress[]
  /** in front of the names of topics and groups */
  prefix: string
  /** absent: 3, or as many as there are brokers */
  replication: number | undefined
  sessionTimeoutMs: number
  /** files in PEM */
  tls: Readonly<{ caFile: string | undefined; certFile: string | undefined; keyFile: string | undefined; verify: boolean }> | undefined
  sasl: KafkaLogin | undefined
}>

/** The ways to log in at brokers. */
export const SASL_MECHANISMS = ['plain', 'scram-sha-256', 'scram-sha-512', 'oauthbearer'] as const
const TLS_FILES = ['KAFKA_TLS_CA_FILE', 'KAFKA_TLS_CERT_FILE', 'KAFKA_TLS_KEY_FILE'] as const
const PASSWORD = ['KAFKA_SASL_USERNAME', 'KAFKA_SASL_PASSWORD'] as const
const OAUTH = ['KAFKA_SASL_OAUTH_URL', 'KAFKA_SASL_OAUTH_CLIENT_ID', 'KAFKA_SASL_OAUTH_CLIENT_SECRET'] as const
const OTHERS = ['KAFKA_TOPIC_PREFIX', 'KAFKA_REPLICATION_FACTOR', 'KAFKA_SESSION_TIMEOUT_MS', 'KAFKA_TLS', 'KAFKA_SASL_MECHANISM'] as const
const DEFAULT_PREFIX = 'tailrace.'
/** The least that brokers allow by default (group.min.session.timeout.ms). */
const SESSION_TIMEOUT_MS = 6_000

/**
 * Reads the settings of a log in Kafka. @param value of a variable; undefined: not set
 * @param wrong told of each wrong variable
 * @returns undefined: the log is the embedded one
 */
export function kafkaSettings(
  value: (name: string) => string | undefined,
  wrong: (name: string, reason: string) => void,
): KafkaSettings | undefined {
  const named = value('KAFKA_BROKERS')
  if (named === undefined) {
    for (const name of [...OTHERS, ...TLS_FILES, ...PASSWORD, ...OAUTH, 'KAFKA_SASL_OAUTH_SCOPE'])
      if (value(name) !== undefined) wrong(name, 'is set without KAFKA_BROKERS, which says that the log is in Kafka')
    return undefined
  }
  const brokers = named.split(',').flatMap((text) => {
    const address = parseBroker(text.trim())
    if (!address) wrong('KAFKA_BROKERS', `"${text.trim()}" is no broker; takes host:port, several with commas between`)
    return address ? [address] : []
  })
  const replication = value('KAFKA_REPLICATION_FACTOR')
  return {
    brokers,
    prefix: value('KAFKA_TOPIC_PREFIX') ?? DEFAULT_PREFIX,
    replication: replication === undefined ? undefined : Number(replication),
    sessionTimeoutMs: Number(value('KAFKA_SESSION_TIMEOUT_MS') ?? SESSION_TIMEOUT_MS),
    tls: tls(value, wrong),
    sasl: login(value, wrong),
  }
}

function tls(value: (name: string) => string | undefined, wrong: (name: string, reason: string) => void): KafkaSettings['tls'] {
  const [caFile, certFile, keyFile] = TLS_FILES.map((name) => value(name))
  const mode = value('KAFKA_TLS') ?? ((caFile ?? certFile ?? keyFile) ? 'true' : 'false')
  if (mode === 'false') {
    for (const name of TLS_FILES) if (value(name) !== undefined) wrong(name, 'is set although KAFKA_TLS is false')
    return undefined
  }
  if ((certFile === undefined) !== (keyFile === undefined))
    wrong(certFile === undefined ? 'KAFKA_TLS_CERT_FILE' : 'KAFKA_TLS_KEY_FILE', 'is missing; a certificate and its key go together')
  return { caFile, certFile, keyFile, verify: mode !== 'unverified' }
}

function login(value: (name: string) => string | undefined, wrong: (name: string, reason: string) => void): KafkaLogin | undefined {
  const mechanism = value('KAFKA_SASL_MECHANISM')
  const needed = mechanism === undefined ? [] : mechanism === 'oauthbearer' ? OAUTH : PASSWORD
  const unneeded = mechanism === undefined ? [...PASSWORD, ...OAUTH] : mechanism === 'oauthbearer' ? PASSWORD : OAUTH
  for (const name of needed) if (value(name) === undefined) wrong(name, `is missing; KAFKA_SASL_MECHANISM=${mechanism} needs it`)
  for (const name of unneeded)
    if (value(name) !== undefined)
      wrong(name, mechanism === undefined ? 'is set without KAFKA_SASL_MECHANISM' : `has no meaning with KAFKA_SASL_MECHANISM=${mechanism}`)
  const text = (name: string) => value(name) ?? ''
  if (mechanism === undefined) return undefined
  if (mechanism !== 'oauthbearer') {
    const known = SASL_MECHANISMS.find((one) => one === mechanism)
    if (known === undefined || known === 'oauthbearer') return undefined // the problem is noted already
    return { mechanism: known, username: text('KAFKA_SASL_USERNAME'), password: text('KAFKA_SASL_PASSWORD') }
  }
  const url = text('KAFKA_SASL_OAUTH_URL')
  if (url !== '' && !/^https?:$/.test(URL.canParse(url) ? new URL(url).protocol : ''))
    wrong('KAFKA_SASL_OAUTH_URL', 'is not a URL; takes https://host/path of the token endpoint')
  const [clientId, clientSecret] = [text('KAFKA_SASL_OAUTH_CLIENT_ID'), text('KAFKA_SASL_OAUTH_CLIENT_SECRET')]
  return { mechanism, url, clientId, clientSecret, scope: value('KAFKA_SASL_OAUTH_SCOPE') }
}
