/** A parked message as a row of the state database: written column by column, and read back as a view of one message. */
import type { ActionCode } from '../../log/pack.ts'
import { formatLsn, parseLsn } from '../../lsn.ts'
import type { Part } from '../../position.ts'
import type { Row } from '../../postgres/query.ts'
import { ParkedMessage } from './parked-message.ts'
import type { Move } from './parking.ts'

/** The columns of rows to insert, each a list. */
export function columnsOf(moves: readonly Move[]): unknown[] {
  const columns: unknown[][] = Array.from({ length: 19 }, () => [])
  for (const { view, index, offset, deliveries, failed } of moves) {
    const { history, lsn, idx, part } = view.position(index)
    const text = (start: number, end: number) => view.buffer.toString('utf8', start, end)
    const row = [
      history,
      formatLsn(lsn),
      idx,
      part,
      offset,
      index,
      view.group(index),
      text(view.keyStart(index), view.keyEnd(index)),
      text(view.groupKeyStart(index), view.groupKeyEnd(index)),
      view.buffer.subarray(view.bodyStart(index), view.bodyEnd(index)),
      view.action(index),
      view.flags(index),
      view.relation(index),
      new Date(view.commitTimeUs(index) / 1000).toISOString(),
      deliveries,
      failed?.error ?? null,
      JSON.stringify(failed ? [failed.record] : []),
      failed?.retryInMs ?? null,
      view.xid(index),
    ]
    for (let c = 0; c < row.length; c++) (columns[c] as unknown[]).push(row[c])
  }
  return columns
}

/** The message of a whole row. */
export function toView(row: Row): ParkedMessage {
  return new ParkedMessage({
    position: { history: Number(row.history), lsn: parseLsn(String(row.lsn)), idx: Number(row.idx), part: Number(row.part) as Part },
    group: Number(row.group_hash),
    action: Number(row.action) as ActionCode,
    flags: Number(row.flags),
    relation: Number(row.relation),
    xid: Number(row.xid),
    commitTimeUs: (row.commit_time instanceof Date ? row.commit_time.getTime() : Date.parse(String(row.commit_time))) * 1000,
    key: Buffer.from(String(row.record_key)),
    groupKey: Buffer.from(String(row.group_key)),
    body: row.body as Buffer,
  })
}
