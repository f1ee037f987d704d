/**
 * What destinations have in common that keep a document for each row: an insert or update puts a whole document into an index,
 * a delete takes it out, and the row's primary key names it both times.
 */
import { Type, type TString } from 'typebox'
import type { Batch, Message } from '../engine/dispatch/batch.ts'
import { fieldsOf, parseExact } from '../engine/json.ts'
import { ACTION, MESSAGE_FLAG } from '../engine/log/pack.ts'
import type { Reason } from '../engine/schema-reasons.ts'
import type { HttpService, Refusal } from './http-service.ts'
import type { Blame, Failure, Outcome, SinkForm } from './push.ts'

/** Where a search server listens. */
export const EndpointUrl = Type.String({
  pattern: '^[hH][tT][tT][pP][sS]?://[^/?#@\\s]+(?:/[^?#\\s]*)?$',
  maxLength: 4096,
  description: 'address of the server, http or https, without query',
})
/** The index that a sink writes to, if it names one. */
export const indexName = (name: TString) =>
  Type.Optional(Type.Union([name, Type.Null()], { description: 'index that gets the documents; a routing function may name another' }))
/** How many documents go in one request. */
export const BatchSize = Type.Integer({ minimum: 1, maximum: 10_000, default: 100, description: 'most documents of one request' })
/** The authority of a server whose certificate no common one has signed. */
export const CaCert = Type.Optional(
  Type.Union(
    [Type.String({ pattern: '-----BEGIN CERTIFICATE-----', maxLength: 65_536, description: 'a certificate in PEM' }), Type.Null()],
    {
      description: 'authority in PEM that signs the server’s certificate, if not a common one',
    },
  ),
)

/** Far below the servers' own limits, which can be lower than their default of 100 MB; a smaller one is learnt. */
export const MAX_BODY_BYTES = 16 * 1024 * 1024

/** Why a message becomes no document. */
export type Refused = Readonly<{ refusal: string }>

/** Refuses a sink where neither it nor a routing function names an index. */
export const indexMissing = ({ destination, routing }: SinkForm): readonly Reason[] =>
  (destination['index_name'] ?? '') === '' && (routing ?? null) === null
    ? [['destination.index_name', 'is missing: neither the sink nor a routing function names the index']]
    : []

/** What is said of a function’s result that is no document. */
export const NO_OBJECT = 'the function returned no object: a document must be an object'

/** Whether a message leaves an old key behind, whose document goes whatever a function says. */
export const isTombstone = ({ view, place }: Message): boolean => (view.flags(place) & MESSAGE_FLAG.tombstone) !== 0

/** Says whether a message puts its document into the index or takes it out, unless a function decides. */
export const effectOf = (message: Message): 'index' | 'delete' =>
  isTombstone(message) || message.view.action(message.place) === ACTION.delete ? 'delete' : 'index'

/** The values of the primary key of a message's row; none: its table has no primary key. */
export function keyValues({ view, place }: Message): readonly (string | null)[] {
  return JSON.parse(view.buffer.toString('utf8', view.keyStart(place), view.keyEnd(place))) // a list, as the log has it
}

/** Names the document of a row with this key. */
export const documentName = (values: readonly (string | null)[]): string => values.join('-')

/**
 * What a document is compared by: all that a function made of the row, or else the row alone, for when and how it came differs.
 * @returns parsed; payload undefined: no function made it
 */
export function comparedOf({ payload, view, place }: Message): Readonly<{ payload?: unknown; row?: unknown }> {
  if (payload) return { payload: parseExact(payload.text.toString('utf8', payload.start, payload.end)) }
  const body = view.buffer.toString('utf8', view.bodyStart(place), view.bodyEnd(place)) // its metadata is left open
  return { row: fieldsOf(parseExact(`{${body}}}`))['record'] }
}

/** The row that a document says it is of, in its metadata: those that no function made have it. */
export function rowNamedBy(document: unknown): Readonly<{ key: readonly string[] | undefined; table: string | undefined }> {
  const { table_schema: schema, table_name: name, record_pks: key } = fieldsOf(fieldsOf(document)['metadata'])
  const isNamed = typeof schema === 'string' && typeof name === 'string'
  return { key: Array.isArray(key) ? key.map(String) : undefined, table: isNamed ? `${schema}.${name}` : undefined }
}

/** Says something about the settings that a user should know, the first time only. */
export function once(warn: (text: string) => void): (text: string) => void {
  let isSaid = false
  return (text) => {
    if (!isSaid) warn(text)
    isSaid = true
  }
}

/** A request that ended for all of its messages alike. */
export type Ended = Extract<Outcome, { kind: 'failed' | 'aborted' }>

/** The end of the messages of a call that failed as a whole. */
export const endOf = ({ phase, failure }: Refusal): Ended => (phase === 'aborted' ? { kind: 'aborted' } : { kind: 'failed', failure })

/** The outcome of a batch by the failures of its messages: most often there are none. */
export function outcomeOf({ messages }: Batch, failures: ReadonlyMap<Message, Failure>, status: number): Outcome {
  if (failures.size === 0) return { kind: 'delivered', status }
  return { kind: 'each', status, failures: messages.map((message) => failures.get(message)) }
}

/** Makes of each message what is sent for it. @param failures gets those of messages that can't be sent */
export function itemsOf<Item extends object>(
  messages: readonly Message[],
  { verbatim }: HttpService,
  failures: Map<Message, Failure>,
  make: (message: Message) => Item | Refused,
): Item[] {
  const items: Item[] = []
  for (const message of messages) {
    const item = make(message)
    if ('refusal' in item) failures.set(message, verbatim.undeliverable(item.refusal))
    else items.push(item)
  }
  return items
}

/** Delivers a batch to the index that its route names, else to the sink's. @param deliver index undefined: neither names one */
export async function deliverTo(
  { index_name: own }: Readonly<{ index_name?: string | null }>,
  { route }: Batch,
  deliver: (index: string | undefined) => Promise<Outcome>,
): Promise<Outcome> {
  const routed = route?.['index_name']
  return typeof routed === 'string' ? ofOneIndex(await deliver(routed)) : deliver(own ?? undefined)
}

/**
 * The outcome of messages that went to an index of their own, named by a function or a table. An index that takes nothing is the
 * matter of those that go there, perhaps a few: others go on, and none is given up. A login that is refused is everybody's.
 */
export function ofOneIndex(outcome: Outcome): Outcome {
  const isOurs = ({ blame, answer }: Failure) => blame === 'refused' && answer.status !== 401
  const ofPlace = (failure: Failure, blame: Blame): Failure => ({ ...failure, blame, isOfPlace: true })
  if (outcome.kind === 'failed' && isOurs(outcome.failure)) return { kind: 'failed', failure: ofPlace(outcome.failure, 'rejected') }
  if (outcome.kind !== 'each') return outcome
  return { ...outcome, failures: outcome.failures.map((failure) => (failure && isOurs(failure) ? ofPlace(failure, 'message') : failure)) }
}
