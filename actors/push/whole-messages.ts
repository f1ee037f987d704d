/**
 * Makes messages whole for destinations that keep documents: where an update left out a large value that it didn't touch,
 * the value is fetched from the source by the row's key. A row that is gone by now has it no more: its document is
 * delivered without the field, and what became of the row follows in the same group.
 *
 * A message that was given up, and is to be delivered after all, may be older than what was delivered meanwhile: a destination that
 * keeps no versions would put it over a newer document, and one that does forgets those of deleted documents. So it brings
 * the row as it is now, and nothing if the row is gone, or if it is a delete and the row is there again.
 */
import { ParkedMessage } from '../../engine/dispatch/parked/parked-message.ts'
import type { MessageView } from '../../engine/log/message-view.ts'
import { ACTION, MESSAGE_FLAG } from '../../engine/log/pack.ts'
import { PART } from '../../engine/position.ts'
import type { TimestampFormat } from '../../engine/wal/decode/render.ts'
import type { FoundRow, RowLookup, WantedRow } from '../../engine/wal/row-lookup.ts'
import { JsonMembers, type ByteSpan } from '../../sinks/json-members.ts'

type Messages = Readonly<{ views: readonly MessageView[]; places: readonly number[] }>
type Member = Readonly<{ name: ByteSpan; value: ByteSpan }>

const OPEN = Buffer.from('"record":{')
const CLOSE = Buffer.from('}')
const COLON = Buffer.from(':')
const COMMA = Buffer.from(',')
/** What stands for a value that was not sent; a text that reads so is fetched too, to the same effect. */
const LITERAL = Buffer.from('"unchanged_toast"')

const isIncomplete = (view: MessageView, place: number): boolean =>
  (view.flags(place) & MESSAGE_FLAG.unchanged) !== 0 && view.action(place) !== ACTION.delete
const isReopened = (view: MessageView, place: number): boolean => (view.flags(place) & MESSAGE_FLAG.reopened) !== 0
const isDelete = (view: MessageView, place: number): boolean => view.action(place) === ACTION.delete || view.part(place) === PART.tombstone
const wantsRow = (view: MessageView, place: number): boolean => isIncomplete(view, place) || isReopened(view, place)

/** Whether none of them lacks anything, or may be out of date. */
export const areWhole = ({ views, places }: Messages): boolean => !views.some((view, i) => wantsRow(view, places[i] as number))

/**
 * @property whole so many of them are, from the first; beyond, what was fetched became too much
 * @property outdated places of those that have nothing to say any more
 * @property tooLarge the message behind those that are whole: its row has more than a message may have
 * @property gone places of those that lack values for ever, because there is no such row any more
 */
export type Whole<T> = Readonly<{ messages: T; whole: number; outdated: readonly number[]; gone: readonly number[]; tooLarge?: number }>

/** Values of so many bytes are held at once, and a little more; of so many rows nothing is known when they are asked for. */
const MAX_FETCHED_BYTES = 32 * 1024 * 1024
const FIRST_ROWS = 16

/** @throws EngineError the source can't be asked */
export async function wholeMessages<T extends Messages>(
  messages: T,
  { lookup, format, signal }: Readonly<{ lookup: Pick<RowLookup, 'find'>; format: TimestampFormat; signal: AbortSignal }>,
): Promise<Whole<T>> {
  const views = [...messages.views]
  const places = [...messages.places]
  const missing = [...views.keys()].filter((i) => wantsRow(views[i] as MessageView, places[i] as number))
  const outdated: number[] = []
  const gone: number[] = []
  let fetchedBytes = 0
  for (let done = 0, rows = FIRST_ROWS; done < missing.length; rows *= 2) {
    if (fetchedBytes > MAX_FETCHED_BYTES)
      return { messages: { ...messages, views, places }, whole: missing[done] as number, outdated, gone }
    const some = missing.slice(done, done + rows)
    const records = some.map((i) => recordOf(views[i] as MessageView, places[i] as number))
    const wanted = some.map((i, n) => wantedOf(views[i] as MessageView, places[i] as number, records[n] as Member[]))
    const found = await lookup.find(wanted, format, signal)
    const [first] = some
    if (found.length === 0 && first !== undefined)
      return { messages: { ...messages, views, places }, whole: first, outdated, gone, tooLarge: first }
    for (const [n, row] of found.entries()) {
      const i = some[n] as number
      const view = views[i] as MessageView
      const place = places[i] as number
      const isDeleted = isDelete(view, place)
      if (isReopened(view, place) && isDeleted === (row !== undefined)) outdated.push(i)
      if (isDeleted) continue
      if (!row) gone.push(i)
      views[i] = completed(view, place, records[n] as Member[], row)
      places[i] = 0
      for (const value of row?.values() ?? []) fetchedBytes += value.length
    }
    done += found.length
  }
  return { messages: { ...messages, views, places }, whole: views.length, outdated, gone }
}

const wantedOf = (view: MessageView, place: number, record: readonly Member[]): WantedRow => ({
  relation: view.relation(place),
  key: JSON.parse(view.buffer.toString('utf8', view.keyStart(place), view.keyEnd(place))) as (string | null)[],
  columns: record.flatMap((member) => (isReopened(view, place) || isMissing(view, member) ? [nameOf(view, member)] : [])),
  xid: view.xid(place),
})

/** The columns of the record, which stands first in a message. */
function recordOf(view: MessageView, place: number): Member[] {
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

function completed(view: MessageView, place: number, members: readonly Member[], row: FoundRow | undefined): MessageView {
  const { buffer } = view
  const kept: Buffer[] = []
  for (const member of members) {
    const isAsked = isReopened(view, place) || isMissing(view, member)
    const value = isAsked ? row?.get(nameOf(view, member)) : buffer.subarray(member.value.start, member.value.end)
    if (value) kept.push(buffer.subarray(member.name.start, member.name.end), COLON, value, COMMA)
  }
  const rest = (members.at(-1)?.value.end ?? view.bodyStart(place)) + 1 // behind the record's brace
  return new ParkedMessage({
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
}
