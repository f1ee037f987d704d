/** Messages as a sink's wire gets them, and the sink and database they belong to. */
import type { Batch } from '../../engine/dispatch/batch.ts'
import type { HttpEndpoint } from '../../engine/state/destinations.ts'
import type { Destination } from '../../engine/state/destinations.ts'
import type { Sink } from '../../engine/state/resources.ts'
import { Egress } from '../../engine/net/egress.ts'
import { PackBuilder } from '../../engine/log/pack-builder.ts'
import { ACTION, Pack, type ActionCode } from '../../engine/log/pack.ts'
import { PART, type Part } from '../../engine/position.ts'
import type { PushOptions, PushType, PushWire } from '../../sinks/push.ts'
import { DATABASE, SINK } from '../actors/sink-fixture.ts'

export type Row = Readonly<{
  key: readonly (string | null)[]
  record?: Record<string, unknown>
  action?: ActionCode
  part?: Part
  lsn?: bigint
  flags?: number
  /** hash of the message group; absent: one of its own */
  group?: number
  /** oid of its table */
  relation?: number
}>

/** One pack with a transaction, number 1, for each LSN. */
export function batchOf(rows: readonly Row[], history = 0, committedAtMs = 1_700_000_000_000): Batch {
  const builder = new PackBuilder({ history, term: 1, routing: 1 })
  let open: bigint | undefined
  for (const [
    idx,
    { key, record = { id: key[0] }, action = ACTION.insert, relation = 16_384, part = PART.row, lsn = 4096n, flags = 0, group = idx },
  ] of rows.entries()) {
    if (lsn !== open) builder.begin((open = lsn), 1, committedAtMs * 1000)
    const keyText = JSON.stringify(key)
    builder.bodies.copy(Buffer.from(keyText))
    const name = Object.entries(ACTION).find(([, code]) => code === action)?.[0]
    builder.bodies.copy(
      Buffer.from(
        `"record":${JSON.stringify(record)},"changes":null,"action":"${name}","metadata":{"table_schema":"public","table_name":"item","commit_lsn":${lsn},"commit_idx":${idx}`,
      ),
    )
    builder.add(idx, part, action, relation, flags, group, Buffer.byteLength(keyText), 0)
  }
  const pack = Pack.decode(builder.encode())
  return { generation: 1, partition: 0, messages: rows.map((_, i) => ({ view: pack, place: i, offset: 0, index: i })) }
}

/** Messages of which a function has made these; undefined: the default message goes out. */
export const madeInto = (batch: Batch, payloads: readonly (Buffer | undefined)[]): Batch => ({
  ...batch,
  messages: batch.messages.map((message, i) => {
    const text = payloads[i]
    return { ...message, payload: text && { text, start: 0, end: text.length } }
  }),
})

/** Messages with a row that enriches each; undefined: none does. */
export const enriched = (batch: Batch, rows: readonly (Buffer | undefined)[]): Batch => ({
  ...batch,
  messages: batch.messages.map((message, i) => ({ ...message, enrichment: rows[i] })),
})

export const keys = (...names: readonly string[]): Row[] => names.map((name) => ({ key: [name] }))

export function endpoint(url: string, options: Partial<HttpEndpoint> = {}): HttpEndpoint {
  return {
    id: '11111111-1111-4111-8111-111111111111',
    accountId: SINK.accountId,
    name: 'hooks',
    kind: 'external',
    url,
    headers: {},
    encryptedHeaders: {},
    ...options,
  }
}

/** @returns a wire that is closed with its scope */
export function wireOf(
  type: PushType,
  destination: Destination,
  settings: Partial<Sink> = {},
  options: Partial<PushOptions> = {},
): PushWire & AsyncDisposable {
  const wire = type.open({
    sink: { ...SINK, batch_size: 100, ...settings, destination },
    database: DATABASE,
    endpoint: undefined,
    egress: new Egress({ mode: 'private' }),
    concurrency: 2,
    warn: () => undefined,
    ...options,
  })
  return Object.assign(wire, { [Symbol.asyncDispose]: () => wire.close() })
}

export const NEVER = new AbortController().signal
