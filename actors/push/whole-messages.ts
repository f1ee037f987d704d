/**
 * Makes messages whole for destinations that keep documents: where an update left out a large value that it didn't touch,
 * the value is fetched from the source by the row's key. A row that is gone by now has it no more: its document is
 * delivered without the field, and what became of the row follows in the same group.
 *
 * A message that was given up, and is to be delivered after all, may be older than what was delivered meanwhile: a destination that
 * keeps no versions would put it over a newer document, and one that does forgets those of deleted documents. So it brings
 * the row as it is now, and nothing if the row is gone, or if it is a delete and the row is there again.
 */
import type { Message } from '../../engine/dispatch/batch.ts'
import { ParkedMessage } from '../../engine/dispatch/parked/parked-message.ts'
import { type MessageView, ACTION, MESSAGE_FLAG } from '../../engine/log/pack.ts'
import { PART } from '../../engine/position.ts'
import type { TimestampFormat } from '../../engine/wal/decode/render.ts'
import type { FoundRow, RowLookup, WantedRow } from '../../engine/wal/row-lookup.ts'
import { JsonMembers, type ByteSpan } from '../../sinks/json-members.ts'

type Member = Readonly<{ name: ByteSpan; value: ByteSpan }>

const OPEN = Buffer.from('"record":{')
const CLOSE = Buffer.from('}')
const COLON = Buffer.from(':')
const COMMA = Buffer.from(',')
/** The text that stands for a value that Postgres did not send. A column that really holds this text is fetched too, to the same effect. */
const LITERAL = Buffer.from('"unchanged_toast"')

const isDelete = ({ view, place }: Message): boolean => view.action(place) === ACTION.delete || view.part(place) === PART.tombstone
const isReopened = ({ view, place }: Message): boolean => (view.flags(place) & MESSAGE_FLAG.reopened) !== 0
const isWhole = (message: Message): boolean => {
  const { view, place } = message
  return !isReopened(message) && ((view.flags(place) & MESSAGE_FLAG.unchanged) === 0 || view.action(place) === ACTION.delete)
}

/** Tells whether all messages have all of their values, and none may be out of date. */
export const areWhole = (messages: readonly Message[]): boolean => messages.every(isWhole)

/** Tells what has become of messages that were to be made whole. */
export type Whole = Readonly<{
  /** that have all there is of them, in their order */
  whole: readonly Message[]
  /** those of them that lack values for ever, because there is no such row any more */
  gone: ReadonlySet<Message>
  /** that have nothing to say any more */
  outdated: readonly Message[]
  /** what was fetched became too much before these: they are left as they were */
  behind: readonly Message[]
  /** its row has more than a message may have; those in `behind` stand behind it */
  tooLarge: Message | undefined
}>

/**
 * At most so many bytes of fetched values are held at once, and a little more, because nothing is known of rows before they are
 * asked for.
 */
const MAX_FETCHED_BYTES = 32 * 1024 * 1024
const FIRST_ROWS = 16

/**
 * Fetches the values that messages lack, for as many of the first messages as the bound on values allows. @throws EngineError the
 * source can't be asked
 */
export async function wholeMessages(
  messages: readonly Message[],
  { lookup, format, signal }: Readonly<{ lookup: Pick<RowLookup, 'find'>; format: TimestampFormat; signal: AbortSignal }>,
): Promise<Whole> {
  const missing = messages.filter((message) => !isWhole(message))
  /** what each has become; undefined: it is outdated */
  const completed = new Map<Message, Message | undefined>()
  const gone = new Set<Message>()
  let fetchedBytes = 0
  let tooLarge: Message | undefined
  for (let rows = FIRST_ROWS; completed.size < missing.length && fetchedBytes <= MAX_FETCHED_BYTES && !tooLarge; rows *= 2) {
    const some = missing.slice(completed.size, completed.size + rows).map((message) => ({ message, record: recordOf(message) }))
    const found = await lookup.find(some.map(wantedOf), format, signal)
    if (found.length === 0) tooLarge = some[0]?.message
    for (const [n, { message, record }] of some.slice(0, found.length).entries()) {
      const row = found[n]
      const isOutdated = isReopened(message) && isDelete(message) === (row !== undefined)
      const whole = isDelete(message) ? message : completedOf(message, record, row)
      completed.set(message, isOutdated ? undefined : whole)
      if (!row && !isDelete(message)) gone.add(whole)
      for (const value of row?.values() ?? []) fetchedBytes += value.length
    }
  }
  const end = missing.at(completed.size)
  const count = end ? messages.indexOf(end) : messages.length
  const first = messages.slice(0, count)
  return {
    whole: first.flatMap((message) => (completed.has(message) ? (completed.get(message) ?? []) : message)),
    gone,
    outdated: first.filter((message) => completed.has(message) && !completed.get(message)),
    behind: messages.slice(tooLarge ? count + 1 : count),
    tooLarge,
  }
}

const wantedOf = ({ message, record }: Readonly<{ message: Message; record: readonly Member[] }>): WantedRow => {
  const { view, place } = message
  return {
    relation: view.relation(place),
    key: JSON.parse(view.buffer.toString('utf8', view.keyStart(place), view.keyEnd(place))) as (string | null)[],
    columns: record.flatMap((member) => (isReopened(message) || isMissing(view, member) ? [nameOf(view, member)] : [])),
    xid: view.xid(place),
  }
}

/** The columns of the record, which stands first in a message. */
function recordOf({ view, place }: Message): Member[] {
  const { buffer } = view
  const message = new JsonMembers(buffer, view.bodyStart(place))
  message.name()
  const record = JsonMembers.of(buffer, message.at)
  const members: Member[] = []
  if (!record) return members
  for (let name = record.name(); name; name = record.name()) members.push({ name, value: record.value() })
  return members
}

const isMissing = ({ buffer }: MessageView, { value }: Member): boolean => buffer.subarray(value.start, value.end).equals(LITERAL)
const nameOf = ({ buffer }: MessageView, { name }: Member): string => JSON.parse(buffer.toString('utf8', name.start, name.end)) as string

function completedOf(message: Message, members: readonly Member[], row: FoundRow | undefined): Message {
  const { view, place } = message
  const { buffer } = view
  const kept: Buffer[] = []
  for (const member of members) {
    const isAsked = isReopened(message) || isMissing(view, member)
    const value = isAsked ? row?.get(nameOf(view, member)) : buffer.subarray(member.value.start, member.value.end)
    if (value) kept.push(buffer.subarray(member.name.start, member.name.end), COLON, value, COMMA)
  }
  const rest = (members.at(-1)?.value.end ?? view.bodyStart(place)) + 1 // behind the record's brace
  const completed = new ParkedMessage({
    position: view.position(place),
    group: view.group(place),
    action: view.action(place),
    flags: view.flags(place) & ~(MESSAGE_FLAG.unchanged | MESSAGE_FLAG.reopened),
    relation: view.relation(place),
    xid: view.xid(place),
    commitTimeUs: view.commitTimeUs(place),
    key: buffer.subarray(view.keyStart(place), view.keyEnd(place)),
    groupKey: buffer.subarray(view.groupKeyStart(place), view.groupKeyEnd(place)),
    body: Buffer.concat([OPEN, ...kept.slice(0, -1), CLOSE, buffer.subarray(rest, view.bodyEnd(place))]),
  })
  return { ...message, view: completed, place: 0 }
}
