/** Opens the log where the settings say it is: in Kafka, or in the data folder. */
import { mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { EngineError, errorText } from '../engine/errors.ts'
import { openEmbeddedLog } from '../engine/log/embedded.ts'
import type { KafkaConnection } from '../engine/log/kafka/connection.ts'
import { tokenFrom } from '../engine/log/kafka/oauth-token.ts'
import type { Log } from '../engine/log/log.ts'
import type { Logger } from '../engine/logger.ts'
import type { Store } from '../engine/state/store.ts'
import type { KafkaSettings } from './kafka-settings.ts'

/**
 * Opens the log that the settings name. @throws EngineError LOG_UNREACHABLE, LOG_REFUSED, LOG_TOO_NEW, SETTING_INVALID: a file
 * can't be read
 */
export async function openLog(
  of: Readonly<{ kafka: KafkaSettings | undefined; folder: string; store: Store; logger: Logger }>,
): Promise<Log> {
  const { kafka, folder, store, logger } = of
  if (kafka) {
    const { openKafkaLog } = await import('../engine/log/kafka/kafka-log.ts') // who keeps the log in the data folder does not wait for it
    return openKafkaLog({
      connection: connectionOf(kafka),
      prefix: kafka.prefix,
      replication: kafka.replication,
      sessionTimeoutMs: kafka.sessionTimeoutMs,
      folder,
      query: store.query,
      notice: (text, err) => logger.warn(err === undefined ? {} : { err }, text),
    })
  }
  mkdirSync(join(folder, 'log'), { recursive: true, mode: 0o700 })
  return openEmbeddedLog(join(folder, 'log'), {
    onFatal: (error) => {
      logger.fatal({ err: error }, error.message)
      process.exit(1) // nothing more may be answered: what the disk holds is unknown
    },
  })
}

function connectionOf({ brokers, tls, sasl }: KafkaSettings): KafkaConnection {
  return {
    brokers,
    clientId: 'tailrace',
    tls: tls && {
      ca: pem('KAFKA_TLS_CA_FILE', tls.caFile),
      cert: pem('KAFKA_TLS_CERT_FILE', tls.certFile),
      key: pem('KAFKA_TLS_KEY_FILE', tls.keyFile),
      verify: tls.verify,
    },
    sasl: sasl?.mechanism === 'oauthbearer' ? { mechanism: 'oauthbearer', token: tokenFrom(sasl) } : sasl,
  }
}

function pem(variable: string, file: string | undefined): string | undefined {
  if (file === undefined) return undefined
  try {
    return readFileSync(file, 'utf8')
  } catch (cause) {
    throw new EngineError('SETTING_INVALID', `${variable}: ${errorText(cause)}`, { variables: variable }, { cause })
  }
}
