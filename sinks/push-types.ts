/** Every kind of sink that sends, by the value of its destination's type. */
import type { PushType } from './push.ts'
import { webhook } from './webhook.ts'

export const PUSH_TYPES: ReadonlyMap<string, PushType> = new Map([webhook].map((type) => [type.type, type]))
