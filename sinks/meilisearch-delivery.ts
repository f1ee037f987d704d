/**
 * Brings the documents of one batch into an index, or out of it, until it is known of each whether it is there.
 *
 * A request becomes a task, and a task does everything or nothing. When one fails for what is in it, its documents are
 * sent again in two halves, and so on, until only those fail that Meilisearch will not have.
 *
 *  I1. Of one identifier only the last message is sent, and all its messages are in one request: no older one can come after it.
 *  I2. A task that failed with the code `internal` may have been spoilt by a neighbour: Meilisearch does several tasks at a time,
 *      and such a failure is one of all of them. It is sent again alone; only what fails so by itself is to blame.
 *  I3. What Meilisearch most likely refuses goes in a request of its own, for its words, beside the others.
 *  I4. A failure that isn't about documents ends it for all of them: what was done will be done again, to the same effect.
 */
import type { Message } from '../engine/dispatch/batch.ts'
import type { Refusal } from './http-service.ts'
import { endOf, type Ended } from './keyed-documents.ts'
import { blameOfCode, JSON_TYPE, NDJSON_TYPE, type MeilisearchApi, type TakenTask } from './meilisearch-api.ts'
import type { Item, MeilisearchDocuments } from './meilisearch-documents.ts'
import type { MeilisearchTasks, TaskEnd } from './meilisearch-tasks.ts'
import type { Failure } from './push.ts'
import type { QueueGate } from './queue-gate.ts'

type Delivery = Readonly<{
  api: MeilisearchApi
  tasks: MeilisearchTasks
  gate: QueueGate
  documents: MeilisearchDocuments
  index: string
  primaryKey: string
  signal: AbortSignal
}>

/** By message: why not; a message that is not in it is delivered. */
type Delivered = Readonly<{ kind: 'judged'; failures: ReadonlyMap<Message, Failure> }> | Ended

/** What one request holds: all messages of some identifiers, the last of each of one kind. */
type Part = Readonly<{ items: readonly Item[]; isAlone: boolean; tries: number }>
type PartEnd =
  | Readonly<{ kind: 'delivered' }>
  | Ended
  /** it is what was sent; internal: or something beside it */
  | Readonly<{ kind: 'judged'; failure: Failure; isInternal: boolean }>

/** So many parts without one that was taken: it can't be only some documents. */
const HOPELESS_PARTS = 8
/** A document alone that fails as `internal`: perhaps by what another client sent. */
const INTERNAL_TRIES = 2

/** Delivers documents, and finds those that Meilisearch will not have. */
export async function deliver(delivery: Delivery, items: readonly Item[]): Promise<Delivered> {
  const failures = new Map<Message, Failure>()
  let delivered = 0
  let parts = partsOf(items, false)
  while (parts.length > 0) {
    const ends = await sendAll(delivery, parts)
    const next: Part[] = []
    let refused: Failure | undefined
    let refusals = 0
    for (const [part, end] of ends) {
      if (end.kind === 'aborted' || end.kind === 'failed') return end
      if (end.kind === 'delivered') {
        delivered += part.items.length
        continue
      }
      refused = end.failure
      refusals++
      next.push(...further(part, end, failures))
    }
    if (refused && delivered === 0 && refusals >= HOPELESS_PARTS) return { kind: 'failed', failure: refused }
    parts = next
  }
  return { kind: 'judged', failures }
}

/** What is sent again of a part that failed. A message that is found to be at fault is noted instead. */
function further(part: Part, end: Extract<PartEnd, { kind: 'judged' }>, failures: Map<Message, Failure>): readonly Part[] {
  const { items, isAlone, tries } = part
  if (end.isInternal && !isAlone) return [{ ...part, isAlone: true }]
  const ids = [...new Set(items.map(({ id }) => id))]
  if (ids.length > 1) {
    const first = new Set(ids.slice(0, Math.ceil(ids.length / 2)))
    return [true, false].map((isFirst) => ({ items: items.filter(({ id }) => first.has(id) === isFirst), isAlone, tries: 0 }))
  }
  if (end.isInternal && tries + 1 < INTERNAL_TRIES) return [{ ...part, tries: tries + 1 }]
  const last = items.at(-1)
  if (last) failures.set(last.message, end.failure)
  return partsOf(items.slice(0, -1), isAlone)
}

/** By what is to be done with each identifier in the end. */
function partsOf(items: readonly Item[], isAlone: boolean): Part[] {
  const last = new Map(items.map((item) => [item.id, item.isOdd ? 'odd' : item.kind]))
  return ['index', 'delete', 'odd'].flatMap((wanted) => {
    const some = items.filter(({ id }) => last.get(id) === wanted)
    return some.length > 0 ? [{ items: some, isAlone, tries: 0 }] : []
  })
}

/** @returns an end for each part */
async function sendAll(delivery: Delivery, parts: readonly Part[]): Promise<ReadonlyMap<Part, PartEnd>> {
  const ends = new Map<Part, PartEnd>(parts.map((part) => [part, { kind: 'aborted' }]))
  const shared = parts.filter(({ isAlone }) => !isAlone)
  const alone = parts.filter(({ isAlone }) => isAlone)
  for (const group of [...(shared.length > 0 ? [shared] : []), ...alone.map((one) => [one])]) {
    const leave = await delivery.gate.enter(group !== shared, delivery.signal)
    if (!leave) return ends
    try {
      const waits: Promise<void>[] = []
      for (const part of group) {
        const { uid, refusal } = await enqueue(delivery, part)
        if (refusal) ends.set(part, refusedEnd(refusal))
        else waits.push(delivery.tasks.wait(uid, delivery.signal).then((end) => void ends.set(part, partEnd(delivery, part, uid, end))))
      }
      await Promise.all(waits) // also of what follows a refusal: whoever wants to be alone has to be
    } finally {
      leave()
    }
  }
  return ends
}

function enqueue({ api, documents, index, primaryKey, signal }: Delivery, { items }: Part): Promise<TakenTask> {
  const last = [...new Map(items.map((item) => [item.id, item])).values()]
  if (last[0]?.kind === 'delete') {
    const body = Buffer.from(`[${last.map(({ idJson }) => idJson).join(',')}]`)
    return api.write(index, '/delete-batch', body, { type: JSON_TYPE, signal })
  }
  const query = `?primaryKey=${encodeURIComponent(primaryKey)}`
  return api.write(index, query, documents.ndjson(last), { type: NDJSON_TYPE, signal })
}

const refusedEnd = (refusal: Refusal): PartEnd =>
  refusal.code === 'malformed_payload' ? { kind: 'judged', failure: refusal.failure, isInternal: false } : endOf(refusal)

function partEnd({ api }: Delivery, { items }: Part, uid: number, end: TaskEnd): PartEnd {
  switch (end.kind) {
    case 'succeeded':
      return { kind: 'delivered' }
    case 'aborted':
      return end
    case 'unanswered':
      return { kind: 'failed', failure: end.failure }
    case 'gone':
      return { kind: 'failed', failure: api.verbatim.about('unavailable', 404, `task ${uid} was deleted before its end was seen`) }
    case 'canceled':
      return { kind: 'failed', failure: api.taskFailure('unavailable', end.task) }
  }
  const { code = '' } = end.task.error ?? {}
  if (code === 'index_not_found' && items.at(-1)?.kind === 'delete') return { kind: 'delivered' } // gone with its index
  const blame = blameOfCode(code)
  if (blame) return { kind: 'failed', failure: api.taskFailure(blame, end.task) }
  return { kind: 'judged', failure: api.taskFailure('rejected', end.task), isInternal: code === 'internal' }
}
