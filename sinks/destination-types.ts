/** Every type of destination: the client that asks, and those that messages are sent to. A new one is a line here. */
import { Type } from 'typebox'
import type { DestinationSchemas } from '../engine/state/destinations.ts'
import { changeRetention } from './change-retention.ts'
import { elasticsearch } from './elasticsearch.ts'
import { meilisearch } from './meilisearch.ts'
import { PullDestination } from './pull.ts'
import type { PushType } from './push.ts'
import { UNSUPPORTED_TYPES } from './unsupported-types.ts'
import { webhook } from './webhook.ts'

const SENT: readonly PushType[] = [webhook, elasticsearch, meilisearch]
const byType = (types: readonly PushType[]): ReadonlyMap<string, PushType> => new Map(types.map((type) => [type.type, type]))
const settingsOf = (types: readonly PushType[]) => types.map(({ type, settings }) => [type, settings] as const)

/** Those that messages are sent to, the tables of change retentions, and those that messages can't be sent to yet, by the value of `destination.type`. */
export const PUSH_TYPES: ReadonlyMap<string, PushType> = byType([...SENT, changeRetention, ...UNSUPPORTED_TYPES])

/** The settings of every type that a sink can have. */
export const DESTINATIONS: DestinationSchemas = new Map([['sequin_stream', PullDestination], ...settingsOf(SENT)])

/** The settings of every type that a configuration file may name. */
export const FILE_DESTINATIONS: DestinationSchemas = new Map([...DESTINATIONS, ...settingsOf(UNSUPPORTED_TYPES)])

/** The settings of every type that may be stored. */
export const STORED_DESTINATIONS: DestinationSchemas = new Map([...FILE_DESTINATIONS, ...settingsOf([changeRetention])])

/** A destination as it is shown. */
export const AnyDestination = Type.Union(
  [
    ...DESTINATIONS.values(),
    Type.Object(
      {
        type: Type.Union(
          UNSUPPORTED_TYPES.map(({ type }) => Type.Literal(type)),
          { description: 'not supported yet; the sink is paused' },
        ),
      },
      { additionalProperties: true, title: 'UnsupportedDestination' },
    ),
  ],
  { title: 'Destination' },
)

/** Whether a destination keeps one document per key. */
export const isKeyed = ({ type }: Readonly<{ type: string }>): boolean => PUSH_TYPES.get(type)?.keyed ?? false
