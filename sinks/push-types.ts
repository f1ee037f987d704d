/** Every kind of sink that sends, by the value of its destination's type. */
import { meilisearch } from './meilisearch.ts'
import type { PushType } from './push.ts'
import { webhook } from './webhook.ts'

export const PUSH_TYPES: ReadonlyMap<string, PushType> = new Map([webhook, meilisearch].map((type) => [type.type, type]))
