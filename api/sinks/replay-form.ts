/** The form of a request for a replay, and of its answer. Nothing here does I/O. */
import { Type } from 'typebox'
import { fieldRefused } from '../../engine/errors.ts'
import { formatLsn, parseLsn, type Lsn } from '../../engine/lsn.ts'
import type { Sink } from '../../engine/state/resources.ts'
import type { Replayed } from '../../actors/sink/replays.ts'
import type { ReplayTarget } from '../../engine/dispatch/replay/replay-plan.ts'

/** The schema of a request for a replay. */
export const ReplayBody = Type.Object(
  {
    time: Type.Optional(
      Type.String({ format: 'date-time', description: 'what was committed then or later comes again; ISO 8601 with a time zone' }),
    ),
    lsn: Type.Optional(
      Type.Union([Type.String(), Type.Integer({ minimum: 0 })], {
        description: 'what was committed there or behind comes again: "16/B374D848", or the number that messages have as commit_lsn',
      }),
    ),
    offset: Type.Optional(Type.Integer({ minimum: 0, description: 'what stands in this record of a partition or behind comes again' })),
    partition: Type.Optional(Type.Integer({ minimum: 0, description: 'of the offset; may be left out when there is only one' })),
    generation: Type.Optional(Type.Integer({ minimum: 1, description: 'of the offset; left out: the one that is delivered' })),
  },
  { additionalProperties: false, description: 'one of time, lsn and offset' },
)

/** The schema of the answer to a replay. */
export const ReplayOut = Type.Object({
  partitions: Type.Integer({ description: 'that were set back' }),
  messages: Type.Integer({ description: 'about how many come again that had been finished; those that were waiting are not in it' }),
  from: Type.Union(
    [Type.Object({ lsn: Type.String(), commit_lsn: Type.Integer(), time: Type.String({ format: 'date-time' }) }), Type.Null()],
    { description: 'the commit of the first message that comes again; null: there is none' },
  ),
})

/** Writes what a replay has done as JSON; an LSN beyond 2^53 is not exact as a number, and stands beside it as a text. */
export const replayOut = ({ partitions, messages, from }: Replayed): Record<string, unknown> => ({
  partitions,
  messages,
  from: from ? { lsn: formatLsn(from.lsn), commit_lsn: Number(from.lsn), time: from.time } : null,
})

const WAYS = ['time', 'lsn', 'offset'] as const
const KNOWN = new Set<string>([...WAYS, 'partition', 'generation'])
const TIME = /^(\d{4}-\d\d-\d\dT\d\d:\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?(Z|[+-]\d\d:\d\d)$/i
const GREATEST_LSN = 2n ** 64n - 1n

/** Reads where a replay goes back to. @throws EngineError VALIDATION_FAILED: names each wrong field */
export function replayTarget(body: Readonly<Record<string, unknown>>, sink: Sink, now = Date.now()): ReplayTarget {
  for (const name of Object.keys(body)) if (!KNOWN.has(name)) throw fieldRefused(name.slice(0, 60), 'is not a field of a replay')
  const given = WAYS.filter((name) => body[name] !== undefined && body[name] !== null)
  if (given.length === 0) throw fieldRefused('time', 'is missing: give one of time, lsn and offset')
  const [first, second] = given
  if (second !== undefined) throw fieldRefused(second, `cannot be given beside ${first}`)
  const { time, lsn, offset, partition, generation } = body
  if (offset === undefined || offset === null) {
    for (const [name, value] of Object.entries({ partition, generation }))
      if (value !== undefined && value !== null) throw fieldRefused(name, 'can be given with offset only')
    return given[0] === 'time' ? { fromUs: microseconds(time, now) } : { lsn: lsnOf(lsn) }
  }
  if ((partition === undefined || partition === null) && sink.partitions > 1)
    throw fieldRefused('partition', 'is missing: the sink has several partitions')
  return {
    offset: whole('offset', offset, 0),
    partition: whole('partition', partition ?? 0, 0),
    ...(generation === undefined || generation === null ? {} : { generation: whole('generation', generation, 1) }),
  }
}

function microseconds(time: unknown, now: number): number {
  const [, minute, second = '00', fraction = '', zone = ''] = (typeof time === 'string' && TIME.exec(time)) || []
  const ms = Date.parse(`${minute}:${second}${zone.toUpperCase()}`)
  if (minute === undefined || Number.isNaN(ms))
    throw fieldRefused('time', 'must be a time in ISO 8601 with its zone, such as 2025-02-03T04:05:06Z')
  const us = ms * 1000 + Number(fraction.padEnd(6, '0').slice(0, 6))
  if (us > now * 1000) throw fieldRefused('time', 'must not be in the future')
  return us
}

function lsnOf(lsn: unknown): Lsn {
  const text = typeof lsn === 'string' ? lsn.trim() : lsn
  if (typeof text === 'number' && Number.isSafeInteger(text) && text >= 0) return BigInt(text)
  if (typeof text === 'string') {
    if (/^\d{1,20}$/.test(text) && BigInt(text) <= GREATEST_LSN) return BigInt(text)
    if (/^[0-9A-F]{1,8}\/[0-9A-F]{1,8}$/i.test(text)) return parseLsn(text)
  }
  throw fieldRefused('lsn', 'must be an LSN such as "16/B374D848", or a commit_lsn as a whole number')
}

function whole(name: string, value: unknown, least: number): number {
  if (typeof value === 'number' && Number.isSafeInteger(value) && value >= least) return value
  throw fieldRefused(name, `must be a whole number from ${least}`)
}
