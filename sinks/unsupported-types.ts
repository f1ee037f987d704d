/**
 * Types of destinations that a configuration file may name although this version can't send to them: a file of Sequin starts, its sinks
 * are stored as they were given and keep what comes for them, paused. A version that has the type finds them so.
 */
import { Type } from 'typebox'
import { EngineError } from '../engine/errors.ts'
import { SECRET, type Destination } from '../engine/state/destinations.ts'
import type { PushType } from './push.ts'

/** Of each type the settings that hold secrets, and how many messages go together where the sink doesn't say. */
const TYPES: Readonly<Record<string, Readonly<{ secrets: readonly string[]; batchSize: number }>>> = {
  kafka: { secrets: ['password', 'aws_access_key_id', 'aws_secret_access_key'], batchSize: 200 },
  redis_stream: { secrets: ['password'], batchSize: 50 },
  redis_string: { secrets: ['password'], batchSize: 10 },
  sqs: { secrets: ['access_key_id', 'secret_access_key'], batchSize: 10 },
  sns: { secrets: ['access_key_id', 'secret_access_key'], batchSize: 10 },
  kinesis: { secrets: ['access_key_id', 'secret_access_key'], batchSize: 100 },
  s2: { secrets: ['access_token'], batchSize: 10 },
  rabbitmq: { secrets: ['password'], batchSize: 1 },
  nats: { secrets: ['password', 'jwt', 'nkey_seed'], batchSize: 1 },
  gcp_pubsub: { secrets: ['credentials'], batchSize: 1 },
  azure_event_hub: { secrets: ['shared_access_key'], batchSize: 10 },
  typesense: { secrets: ['api_key'], batchSize: 1 },
  mysql: { secrets: ['password'], batchSize: 100 },
}

const secretText = Type.String({ ...SECRET })
/** Google's keys come as a JSON object, or as its text; what an export of Sequin shows in their place is none. */
const secretTexts = Type.Union([
  Type.String({ ...SECRET, pattern: '^(?!\\(credentials present\\))' }),
  Type.Record(Type.String(), Type.String()),
])

/** The types that are stored, and not sent to. */
export const UNSUPPORTED_TYPES: readonly PushType[] = Object.entries(TYPES).map(([type, { secrets, batchSize }]) => ({
  type,
  settings: Type.Object(
    {
      type: Type.Literal(type),
      ...Object.fromEntries(secrets.map((name) => [name, Type.Optional(name === 'credentials' ? secretTexts : secretText)])),
    },
    { additionalProperties: true },
  ),
  keyed: false,
  concurrency: 1,
  batchSize,
  open: () => {
    throw new EngineError('DESTINATION_UNSUPPORTED', unsupportedWords({ type }))
  },
}))

/** Tells whether this version can't send to destinations of a type, and stores them all the same. */
export const isUnsupported = ({ type }: Pick<Destination, 'type'>): boolean => Object.hasOwn(TYPES, type)

/** Says that a type of destination is not there yet. */
export const unsupportedWords = ({ type }: Pick<Destination, 'type'>): string => `destination.type is "${type}", which is not supported yet`
