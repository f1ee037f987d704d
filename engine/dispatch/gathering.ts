/** What one take gathers, within its bounds of messages and bytes. */
import type { MessageView } from '../log/message-view.ts'
import { emptyBatch, type Batch } from './batch.ts'
import type { Origin } from './parked/parked-group.ts'

export type TakeBytes = Readonly<{
  max: number
  /** what the answer adds to each body */
  overhead: number
  /** nothing is in the answer yet, so one message passes whatever its size */
  first: boolean
}>

/** One take: what it may give, and what it has gathered. */
export type Gathering = {
  readonly batch: Batch
  /** what it took of the window */
  readonly seqs: number[]
  readonly max: number
  readonly bytes: TakeBytes
  /** messages and bytes so far, those of other generations included */
  count: number
  taken: number
  full: boolean
}

/** Adds a message if it fits. @returns false: it doesn't, and the call is full */
export function put(call: Gathering, view: MessageView, place: number, offset: number, index: number, origin?: Origin): boolean {
  const { count } = call
  const size = view.bodyEnd(place) - view.bodyStart(place)
  const must = count === 0 && call.bytes.first
  if (count >= call.max || (!must && call.taken + size + (count + 1) * call.bytes.overhead > call.bytes.max)) {
    call.full = true
    return false
  }
  const batch = origin ? batchOf(call.batch, origin) : call.batch
  batch.views.push(view)
  batch.places.push(place)
  batch.offsets.push(offset)
  batch.indexes.push(index)
  batch.bytes += size
  call.taken += size
  call.count = count + 1
  if (count + 1 === call.max) call.full = true
  return true
}

/** The last of the others when it has this origin: what comes lowest first stays so. */
export function batchOf({ others, lease }: Batch, { generation, partition }: Origin): Batch {
  const last = others.at(-1)
  if (last?.generation === generation && last.partition === partition) return last
  const batch = emptyBatch(generation, partition, lease)
  others.push(batch)
  return batch
}
