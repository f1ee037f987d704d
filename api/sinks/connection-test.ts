/** The answer of a connection test: success, or the reason in the destination's own words. */
import type { FastifyReply } from 'fastify'
import { Type } from 'typebox'
import type { Operation } from '../http/operation.ts'

const NO = 422

export const TestOut: Operation['answer'] = {
  description: 'Somebody is there.',
  schema: Type.Object({ success: Type.Boolean(), reason: Type.Optional(Type.String()) }),
  negative: { status: NO, description: 'What is wrong, in the destination’s own words.' },
}

/** @param reason undefined: it works */
export function tested(reply: FastifyReply, reason: string | undefined): Readonly<{ success: boolean; reason?: string }> {
  if (reason === undefined) return { success: true }
  reply.status(NO)
  return { success: false, reason }
}
