/** Every kind of sink that sends, by the value of its destination's type. */
import { elasticsearch } from './elasticsearch.ts'
import { meilisearch } from './meilisearch.ts'
import type { PushType } from './push.ts'
import { webhook } from './webhook.ts'

export const PUSH_TYPES: ReadonlyMap<string, PushType> = new Map([webhook, elasticsearch, meilisearch].map((type) => [type.type, type]))

/** Whether a destination keeps one document per key. */
export const isKeyed = ({ type }: Readonly<{ type: string }>): boolean => PUSH_TYPES.get(type)?.keyed ?? false
