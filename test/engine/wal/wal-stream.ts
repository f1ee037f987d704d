/** Changes of a real Postgres as messages: pgoutput bytes of a slot, read by plain SQL, through decoder and writer. */
import { Client } from 'pg'
import { ByteWriter } from '../../../engine/byte-writer.ts'
import { type AnnotationMark, readAnnotation } from '../../../engine/wal/decode/annotations.ts'
import { describeByMessage, describeRelation, needsLookup } from '../../../engine/wal/decode/catalog.ts'
import { Change, groupHash, type Side, writeGroupKey, writeKeys } from '../../../engine/wal/decode/change.ts'
import { Chunk } from '../../../engine/wal/decode/chunk.ts'
import { ChangeWriter } from '../../../engine/wal/decode/change-writer.ts'
import { decode, type PgoutputHandler } from '../../../engine/wal/decode/pgoutput.ts'
import { Relation, type RelationDescription } from '../../../engine/wal/decode/relation.ts'
import type { TimestampFormat } from '../../../engine/wal/decode/render.ts'
import { PINNED_OPTIONS } from '../../../engine/wal/connection/source-client.ts'
import { type Json, parseExact } from '../../faults/json.ts'
import type { TestDatabase } from '../../services/postgres.ts'

export type Message = Readonly<{
  json: Readonly<{ record: Record<string, Json>; changes: Record<string, Json> | null; action: string; metadata: Record<string, Json> }>
  text: string
  isTombstone: boolean
  /** a TOASTed value was not sent */
  hasUnchanged: boolean
  keys: string
  groupKey: string
  hash: number
}>

export class WalStream implements AsyncDisposable {
  readonly #client: Client
  readonly #relations = new Map<number, Relation>()
  /** sinks group by these instead of the primary key */
  groupColumns: readonly string[] | undefined
  format: TimestampFormat = 'iso8601'
  /** relation descriptions as they were made, newest last */
  readonly described: RelationDescription[] = []
  readonly annotationMarks: AnnotationMark[] = []
  readonly truncated: (readonly number[])[] = []

  private constructor(client: Client) {
    this.#client = client
  }

  /** Everything that is committed from here on. */
  static async open(db: TestDatabase, publish = 'for all tables'): Promise<WalStream> {
    await db.query(`create publication p ${publish} with (publish_via_partition_root = true)`)
    await db.query(`select pg_create_logical_replication_slot('s_' || current_database(), 'pgoutput')`)
    const client = new Client({ connectionString: db.url, options: PINNED_OPTIONS })
    await client.connect()
    return new WalStream(client)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#client.end()
  }

  /** A value as the pinned session prints it. */
  async text(sql: string): Promise<string> {
    const { rows } = await this.#client.query<{ text: string }>(`select (${sql})::text as text`)
    return rows[0]!.text
  }

  async messages(): Promise<Message[]> {
    const { rows } = await this.#client.query<{ data: Buffer }>(
      `select data from pg_logical_slot_get_binary_changes('s_' || current_database(), null, null, 'proto_version', '1', 'publication_names', 'p', 'messages', 'true')`,
    )
    const messages: Message[] = []
    const change = new Change()
    const writer = new ChangeWriter()
    let idx = 0
    let pending: Promise<void> | undefined
    const emit = (side: Side, isTombstone: boolean) => messages.push(this.#message(writer, change, side, isTombstone))
    const relation = (oid: number) => this.#relations.get(oid)!
    const handler: PgoutputHandler = {
      begin: (lsn, commitTimeUs) => {
        idx = 0
        writer.beginTransaction(lsn, commitTimeUs, 0)
      },
      commit: () => {},
      type: () => {},
      origin: () => {},
      unknown: (tag) => {
        throw new Error(`tag ${tag}`)
      },
      relation: (message) => {
        const query = (sql: string, params?: readonly unknown[]) => this.#client.query<Record<string, unknown>>(sql, params && [...params])
        const description = needsLookup(message) ? describeRelation(query, message) : Promise.resolve(describeByMessage(message))
        pending = description.then((d) => {
          this.described.push(d)
          this.#relations.set(message.oid, new Relation(message, JSON.parse(JSON.stringify(d)) as RelationDescription)) // as saved
        })
      },
      insert: (oid, chunk, newAt) => {
        change.readInsert(relation(oid), idx++, chunk, newAt)
        emit('new', false)
      },
      update: (oid, chunk, old, oldAt, newAt) => {
        change.readUpdate(relation(oid), idx++, chunk, old, oldAt, newAt)
        if (change.keyChanged) emit('old', true)
        emit('new', false)
      },
      delete: (oid, chunk, old, oldAt) => {
        change.readDelete(relation(oid), idx++, chunk, old, oldAt)
        emit('old', false)
      },
      truncate: (relations) => {
        idx++
        this.truncated.push(relations)
      },
      message: (transactional, _lsn, prefix, content) => {
        idx++
        const mark = readAnnotation(transactional, prefix, content)
        if (!mark) return
        this.annotationMarks.push(mark)
        if (mark.kind === 'set') writer.annotations(mark.json)
        else if (mark.kind === 'clear' || !mark.ignored) writer.annotations(null)
      },
    }
    for (const { data } of rows) {
      decode(Chunk.of(data), handler)
      await pending
      pending = undefined
    }
    return messages
  }

  #message(writer: ChangeWriter, change: Change, side: Side, isTombstone: boolean): Message {
    const body = new ByteWriter()
    let hasUnchanged = false
    if (isTombstone) writer.writeTombstone(body, change, this.format)
    else hasUnchanged = writer.write(body, change, this.format)
    const keys = new ByteWriter()
    writeKeys(keys, change, side)
    const groupKey = new ByteWriter()
    const columns = this.groupColumns ? change.relation.columnIndexes(this.groupColumns) : change.relation.key
    writeGroupKey(groupKey, change, columns, side)
    const text = `{${new TextDecoder('utf-8', { fatal: true }).decode(body.view())}}}`
    return {
      json: parseExact(text) as Message['json'],
      text,
      isTombstone,
      hasUnchanged,
      keys: keys.view().toString(),
      groupKey: groupKey.view().toString(),
      hash: groupHash(change, columns, side),
    }
  }
}
