/** Makes errors of the engine of what kafkajs and the brokers fail with. Chosen by the protocol's codes, never by text. */
import { EngineError, type ErrorCode, type ErrorContext } from '../../errors.ts'
import type { KafkaFailure } from './kafkajs.ts'

/** The error codes of the protocol that mean something of their own here; all others can be tried again. */
const CODES: Readonly<Record<string, ErrorCode>> = {
  UNKNOWN_TOPIC_OR_PARTITION: 'LOG_TOPIC_UNKNOWN',
  INVALID_TOPIC_EXCEPTION: 'LOG_REFUSED',
  TOPIC_AUTHORIZATION_FAILED: 'LOG_REFUSED',
  GROUP_AUTHORIZATION_FAILED: 'LOG_REFUSED',
  CLUSTER_AUTHORIZATION_FAILED: 'LOG_REFUSED',
  UNSUPPORTED_SASL_MECHANISM: 'LOG_REFUSED',
  SASL_AUTHENTICATION_FAILED: 'LOG_REFUSED',
  UNSUPPORTED_VERSION: 'LOG_REFUSED',
  SECURITY_DISABLED: 'LOG_REFUSED',
  POLICY_VIOLATION: 'LOG_REFUSED',
  INVALID_CONFIG: 'LOG_REFUSED',
  INVALID_PARTITIONS: 'LOG_REFUSED',
  INVALID_REPLICATION_FACTOR: 'LOG_REFUSED',
  INVALID_SESSION_TIMEOUT: 'LOG_REFUSED',
  INVALID_GROUP_ID: 'LOG_REFUSED',
  INCONSISTENT_GROUP_PROTOCOL: 'LOG_REFUSED',
  GROUP_MAX_SIZE_REACHED: 'LOG_REFUSED',
  MESSAGE_TOO_LARGE: 'LOG_RECORD_TOO_LARGE',
  RECORD_LIST_TOO_LARGE: 'LOG_RECORD_TOO_LARGE',
  OFFSET_OUT_OF_RANGE: 'LOG_TRUNCATED',
  ILLEGAL_GENERATION: 'PARTITION_FENCED',
  UNKNOWN_MEMBER_ID: 'PARTITION_FENCED',
  REBALANCE_IN_PROGRESS: 'PARTITION_FENCED',
  FENCED_INSTANCE_ID: 'PARTITION_FENCED',
}

/** Gives the protocol's name of the error that an engine's error was made of. */
export const kafkaCode = (error: unknown): string | undefined =>
  error instanceof EngineError && typeof error.context.kafka === 'string' ? error.context.kafka : undefined

/**
 * Makes an error of the engine of whatever failed.
 * @returns the error itself if it is the engine's; LOG_UNREACHABLE for connections, time limits and all that passes by
 * itself; LOG_REFUSED for what an operator must mend; others as in CODES
 */
export function toLogError(error: unknown, context: ErrorContext = {}): EngineError {
  if (error instanceof EngineError) return error
  const failure = innermost(error instanceof Error ? error : new Error(String(error)))
  const { type } = failure
  const code = type === undefined ? codeOf(failure) : (CODES[type] ?? 'LOG_UNREACHABLE')
  const where = typeof context.broker === 'string' ? ` (${context.broker})` : ''
  const text = `Kafka: ${failure.message}${where}`
  return new EngineError(code, text, type === undefined ? context : { ...context, kafka: type }, { cause: error })
}

function codeOf({ name, code }: KafkaFailure): ErrorCode {
  if (name === 'KafkaJSSASLAuthenticationError') return 'LOG_REFUSED'
  const text = String(code)
  if (/^(CERT_|DEPTH_ZERO|SELF_SIGNED|UNABLE_TO_|ERR_TLS|ERR_SSL|ERR_OSSL|HOSTNAME_MISMATCH)/.test(text)) return 'LOG_REFUSED'
  return name.startsWith('KafkaJS') ? 'LOG_UNREACHABLE' : 'INTERNAL'
}

/** kafkajs wraps: several topics' errors in one, a cause in a retry. */
function innermost(failure: KafkaFailure): KafkaFailure {
  const inner = failure.errors?.[0] ?? (failure.type === undefined && failure.cause instanceof Error ? failure.cause : undefined)
  return inner ? innermost(inner) : failure
}
