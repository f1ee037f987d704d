import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Type as TypeBox, type TSchema } from 'typebox'
import { Type } from '../../engine/schema.ts'

/** One schema of each builder, with options and without, in each other. */
function schemasOf(type: typeof Type): TSchema[] {
  const name = type.String({ minLength: 1, description: 'of a thing' })
  const fields = {
    name,
    also: type.Optional(name),
    kind: type.Union([type.Literal('a'), type.Literal(2), type.Literal(true, { title: 'yes' }), type.Null()], { default: null }),
    counts: type.Optional(type.Array(type.Integer({ minimum: 0 }), { maxItems: 3 })),
    flags: type.Record(type.String(), type.Boolean({ default: false }), { maxProperties: 9 }),
    rest: type.Unknown(),
  }
  const strict = type.Object(fields, { additionalProperties: false })
  return [
    strict,
    type.Partial(strict),
    type.Partial(strict, { additionalProperties: false }),
    type.Object({ none: type.Optional(type.Unknown({ description: 'any' })) }),
    type.Object({ ...strict.properties, also: type.Null() }),
    type.Object({ again: type.Optional(strict.properties.also), anew: { ...strict.properties.also, title: 'required' } }),
    type.Record(type.String(), strict),
    type.Array(type.Null()),
    type.Boolean(),
    type.Integer(),
    strict.properties.counts,
  ]
}

test('schemas are those of TypeBox, whose types they have, to the order of their keywords', () => {
  assert.equal(JSON.stringify(schemasOf(Type), null, 1), JSON.stringify(schemasOf(TypeBox), null, 1))
})
