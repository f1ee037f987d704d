/** Every type of destination: the client that asks, and those that messages are sent to. A new one is a line here. */
import { Type } from 'typebox'
import type { DestinationSchemas } from '../engine/state/destinations.ts'
import { elasticsearch } from './elasticsearch.ts'
import { meilisearch } from './meilisearch.ts'
import { PullDestination } from './pull.ts'
import type { PushType } from './push.ts'
import { webhook } from './webhook.ts'

/** Those that messages are sent to, by the value of `destination.type`. */
export const PUSH_TYPES: ReadonlyMap<string, PushType> = new Map([webhook, elasticsearch, meilisearch].map((type) => [type.type, type]))

/** The settings of every type. */
export const DESTINATIONS: DestinationSchemas = new Map([
  ['sequin_stream', PullDestination],
  ...[...PUSH_TYPES].map(([name, { settings }]) => [name, settings] as const),
])

/** A destination as it is shown. */
export const AnyDestination = Type.Union([...DESTINATIONS.values()])

/** Whether a destination keeps one document per key. */
export const isKeyed = ({ type }: Readonly<{ type: string }>): boolean => PUSH_TYPES.get(type)?.keyed ?? false
