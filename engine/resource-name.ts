/** The form of the names that users give to databases, sinks, endpoints and functions. */
import { Type } from 'typebox'

const NAME_EXPRESSION = /^[a-zA-Z0-9_.-]+$/
/** The form of a name in a schema. */
export const NAME_FORM = { pattern: NAME_EXPRESSION.source, maxLength: 255, description: 'letters, digits, "_", "." and "-"' } as const
/** Schema of a name. */
export const Name = Type.String(NAME_FORM)
/** Tells whether a text may be the name of a resource. */
export const isName = (text: string): boolean => text.length <= NAME_FORM.maxLength && NAME_EXPRESSION.test(text)
