/**
 * From pgoutput messages to messages in packs: counts positions, renders each change once, and gives it to the pack of
 * its partition for every sink that takes it. A pure function of the log, the routing and the relations' descriptions, so
 * that every run over the same log makes the same messages (docs/rules.md, rule 6; but for what full sinks shed, see routing/shedding.ts).
 * What needs I/O (a look-up in the catalogue, a routing version) is returned as a wait, and the caller hands in no further
 * chunk until it is over.
 *
 * Two places for backfills, both of no cost while unused: a handler of a mark's prefix may add rows at the mark's
 * position, and a watcher sees changes before any sink's filter.
 */
import { ByteWriter, WriterFull } from '../byte-writer.ts'
import { EngineError } from '../errors.ts'
import { ACTION, type ActionCode, MESSAGE_FLAG } from '../log/pack.ts'
import type { TopicName, Topic } from '../log/log.ts'
import type { Lsn } from '../lsn.ts'
import { PART, type Part, type Position } from '../position.ts'
import { readAnnotation } from './decode/annotations.ts'
import type { Wait } from './chunk-queue.ts'
import type { Definitions, Described } from './definitions.ts'
import { Change, groupHash, hashGroup, type Side, writeGroupKey, writeKeys } from './decode/change.ts'
import type { Chunk } from './decode/chunk.ts'
import { ChangeWriter } from './decode/change-writer.ts'
import type { Cursor } from './cursor.ts'
import type { KnownRelations } from './decode/known-relations.ts'
import type { Packing } from './packing.ts'
import type { OldKind, PgoutputHandler, RelationMessage } from './decode/pgoutput.ts'
import type { Relation } from './decode/relation.ts'
import { ACTION_BIT, actionBits, INTERNAL_SCHEMA, parseRoutingMark, ROUTING_MARK, type Target } from './routing/routing.ts'
import type { RelationTarget, RoutingState } from './routing/routing-state.ts'
import type { TimestampFormat } from './decode/render.ts'
import { textBytes } from './decode/tuple.ts'
import type { Shedding } from './routing/shedding.ts'
import type { SourceObserver } from './source-settings.ts'

/** Holds a row that is added at a mark: a row of a backfill's page. It has an index of its own in its position, above those added before it. */
export type AddedRow = Readonly<{
  topic: TopicName
  partition: number
  idx: number
  relation: number
  flags: number
  group: number
  /** primary key as JSON array text, group key when it differs, message without the place of its commit */
  bytes: ByteWriter
  start: number
  /** where in `bytes` the place belongs that it gets (@see ChangeWriter.writePlace) */
  place: number
  end: number
  keyLength: number
  groupKeyLength: number
}>
/** Describes a logical message of a prefix that somebody handles: rows may be added at its position. */
export type Mark = Readonly<{
  position: Position
  xid: number
  commitTimeUs: number
  /** copied from the message: may be kept */
  content: Buffer
  /** appended behind all before the mark and ahead of all after it; only during the call */
  add: (row: AddedRow) => void
  /** The stream that a sink has alone at this place, as it takes the table's rows; undefined: it has none, or does not take them. */
  ownStream: (sinkId: string, relation: Relation) => OwnStream | undefined
}>
/** The stream that a sink has alone. @property actions bits of what the sink takes of it. @property isShed whether its changes are dropped now */
export type OwnStream = RelationTarget & Readonly<{ actions: number; isShed: () => boolean }>
/** Called for each mark of its prefix that the log does not have yet. */
export type MarkHandler = (mark: Mark) => void

/** Where a change stands, and what sinks get of it. */
export type ChangePlace = Readonly<{
  /** of its transaction */
  lsn: Lsn
  /** bits of what a sink gets of the table's changes here */
  actionsOf: (sinkId: string, relation: Relation) => number
}>

/** Sees changes before any sink's filter. */
export interface ChangeWatcher {
  /** whether this table's changes are wanted now */
  watches(relation: number): boolean
  /**
   * A change that the log has already comes again where it was not confirmed.
   * @param change valid during the call; @param action its bit of ACTION_BIT; 0: Postgres did not send all values of the row
   */
  changed(change: Change, action: number, place: ChangePlace): void
  truncated(relation: number): void
  /** the transaction was streamed: its rows are visible soon (docs/rules.md, rule 30) */
  committed(xid: number): void
}

type ChangePackerOptions = Readonly<{
  /** id of the database */
  source: string
  /** a change whose message would be larger is not kept: a message that says so stands for it */
  maxMessageBytes: number
  cursor: Cursor
  routing: RoutingState
  packing: Packing
  definitions: Pick<Definitions, 'describe' | 'place'>
  /** of tables, each from a position on */
  known: KnownRelations
  shedding: Shedding | undefined
  marks: ReadonlyMap<string, MarkHandler> | undefined
  watcher: ChangeWatcher | undefined
  observer: Pick<SourceObserver, 'notice' | 'relationWarnings' | 'routed' | 'truncated'>
}>

/** Says what a message of the stream asks of the run: to wait before the next one, or to note that a transaction has ended. */
export type Said = Wait | 'committed' | undefined

/**
 * A change of this share of the largest message is looked at before it is rendered: escapes make it six times as long at most, and
 * then there are the names.
 */
const LARGE_SHARE = 1 / 16

/** Holds a message as it was rendered for all sinks that take it. */
type Rendered = Readonly<{ body: ByteWriter; isUnchanged: boolean; isDiscarded?: boolean }>

/** Turns the messages of a stream into those of the packs: the handler of `decode`. */
export class ChangePacker implements PgoutputHandler<Said> {
  readonly #options: ChangePackerOptions
  readonly #packing: Packing
  readonly #cursor: Cursor
  readonly #routing: RoutingState
  readonly #shedding: Shedding | undefined
  readonly #writer = new ChangeWriter()
  readonly #change = new Change()
  readonly #relations = new Map<number, Relation | 'internal'>()
  /** the tables of which this transaction has brought changes, and the last of them: mostly the next change is of that one too */
  readonly #met = new Set<number>()
  #lastMet = -1
  /** index in the transaction of the next message at which a former run found something of a table */
  #knownIdx = Infinity
  /** where a change of several sinks is rendered once */
  readonly #scratch = new ByteWriter()
  readonly #positionBytes = Buffer.alloc(13)
  /** row changes seen, and their size as Postgres sent them; they grow for ever */
  rows = 0
  rowBytes = 0
  /** messages of changes, without rows that were added at marks; it grows for ever */
  streamed = 0
  /** of the transaction that ended last: the position behind its commit, and its time */
  committedEnd: Lsn = 0n
  committedUs = 0
  /** of the change that is being handled, as Postgres sent it */
  #chunkBytes = 0
  /** of the change that is being handled */
  readonly #place: ChangePlace

  constructor(options: ChangePackerOptions) {
    this.#options = options
    this.#cursor = options.cursor
    this.#routing = options.routing
    this.#shedding = options.shedding
    this.#packing = options.packing
    const { cursor } = options
    this.#place = {
      get lsn() {
        return cursor.transaction.lsn
      },
      actionsOf: (sinkId, relation) => this.#actionsOf(sinkId, relation),
    }
  }

  begin(lsn: Lsn, commitTimeUs: number, xid: number): undefined {
    const cursor = this.#cursor
    cursor.begin(lsn, xid, commitTimeUs)
    const { position, isDurable } = cursor // before its first message
    const left = this.#routing.begin(cursor.history, lsn)
    const late = isDurable ? [] : this.#routing.markLate(position)
    this.#enter(late.length === 0 ? left : [...left, ...late])
    this.#writer.beginTransaction(lsn, commitTimeUs, cursor.history)
    if (this.#met.size > 0) this.#met.clear()
    this.#lastMet = -1
    this.#knownIdx = this.#options.known.nextIdx(position)
  }

  commit(_lsn: Lsn, end: Lsn, commitTimeUs: number): Said {
    this.#options.watcher?.committed(this.#cursor.transaction.xid)
    this.#cursor.commit()
    this.committedEnd = end
    this.committedUs = commitTimeUs
    return 'committed'
  }

  relation(message: RelationMessage): Said {
    if (message.schema === INTERNAL_SCHEMA) return void this.#relations.set(message.oid, 'internal')
    const met = this.#met.has(message.oid) ? this.#relations.get(message.oid) : undefined
    return this.#describe(message, met === 'internal' ? undefined : met)
  }

  insert(oid: number, chunk: Chunk, newAt: number): undefined {
    const relation = this.#relationOf(oid, chunk)
    if (relation !== undefined)
      this.#emit(this.#change.readInsert(relation, this.#cursor.idx, chunk, newAt), ACTION.insert, ACTION_BIT.insert)
    this.#cursor.complete()
  }

  update(oid: number, chunk: Chunk, old: OldKind, oldAt: number, newAt: number): undefined {
    const relation = this.#relationOf(oid, chunk)
    if (relation !== undefined)
      this.#emit(this.#change.readUpdate(relation, this.#cursor.idx, chunk, old, oldAt, newAt), ACTION.update, ACTION_BIT.update)
    this.#cursor.complete()
  }

  delete(oid: number, chunk: Chunk, old: OldKind, oldAt: number): undefined {
    const relation = this.#relationOf(oid, chunk)
    if (relation !== undefined)
      this.#emit(this.#change.readDelete(relation, this.#cursor.idx, chunk, old, oldAt), ACTION.delete, ACTION_BIT.delete)
    this.#cursor.complete()
  }

  truncate(relations: readonly number[]): undefined {
    if (this.#cursor.idx >= this.#knownIdx) this.#announceKnown()
    for (const oid of relations) {
      if (this.#options.watcher?.watches(oid)) this.#options.watcher.truncated(oid)
      const relation = this.#relations.get(oid)
      if (relation === undefined || relation === 'internal' || this.#cursor.isDurable) continue // durable: it was said by the run that appended it
      const { schema, table } = relation.message
      const topics = new Set(this.#routing.targets(relation).map(({ target }) => target.topic))
      const readers = this.#routing.active.readers.filter(({ topic }) => topics.has(topic))
      this.#options.observer.truncated?.(
        `${schema}.${table}`,
        readers.map(({ sinkId }) => sinkId),
      )
    }
    this.#cursor.complete()
  }

  message(transactional: boolean, _lsn: Lsn, prefix: string, content: Buffer): Said {
    const annotation = readAnnotation(transactional, prefix, content)
    if (annotation?.kind === 'invalid') this.#options.observer.notice?.(annotation.reason)
    if (!transactional) return undefined // stands at its own place, outside of transactions: no position, nothing of ours
    if (prefix === ROUTING_MARK) return this.#switchRouting(content)
    if (annotation) {
      if (annotation.kind === 'set') this.#writer.annotations(annotation.json)
      else if (annotation.kind === 'clear' || !annotation.ignored) this.#writer.annotations(null)
    } else {
      const handler = this.#options.marks?.get(prefix)
      if (handler && !this.#cursor.isDurable) this.#runMark(handler, content)
    }
    this.#cursor.complete()
    return undefined
  }

  type(): undefined {} // what types are is asked of the catalogue, with the relation
  origin(): undefined {} // changes that came from elsewhere are changes
  unknown(tag: number): undefined {
    this.#options.observer.notice?.(`a replication message of kind ${tag} was skipped`)
  }

  /** @param met as what changes of this transaction have been read */
  #describe(message: RelationMessage, met: Relation | undefined): Wait | undefined {
    const described = this.#options.definitions.describe(message, met)
    if (!(described instanceof Promise)) return this.#setRelation(described)
    return { cause: `describing table ${message.schema}.${message.table}`, done: described.then((each) => this.#setRelation(each)) }
  }

  #setRelation({ relation, left }: Described): undefined {
    const { message, description, oid } = relation
    const { observer } = this.#options
    const former = this.#relations.get(oid)
    if (former && former !== 'internal') this.#routing.forget(former)
    this.#relations.set(oid, relation)
    this.#enter(left)
    if (left.length > 0) observer.routed?.()
    if (description.warnings.length > 0) observer.relationWarnings?.(`${message.schema}.${message.table}`, description.warnings)
  }

  #switchRouting(content: Buffer): Wait | undefined {
    const number = parseRoutingMark(content, this.#options.source)
    const finish = (left: readonly Topic[]): undefined => {
      this.#enter(left)
      this.#cursor.complete()
    }
    if (number === undefined || number <= this.#routing.active.version) return finish([])
    return { cause: `saving routing version ${number}`, done: this.#options.definitions.place(number).then(finish) }
  }

  /**
   * Packs what follows under the history and the routing that hold at the cursor.
   * @param left topics that get their markers here, unless the log has them already: then they may be deleted by now
   */
  #enter(left: readonly Topic[]): void {
    this.#packing.setHead(this.#cursor.history, this.#routing.active.version)
    if (left.length === 0 || this.#cursor.isDurable) return
    const { position, transaction } = this.#cursor
    for (const { topic, partitions } of left)
      for (let partition = 0; partition < partitions; partition++)
        this.#packing.addMarker(topic, partition, position, transaction.commitTimeUs)
  }

  /**
   * Postgres may have announced the tables before, and not again here as it did to the run that found something of them. What that
   * run has saved needs no wait.
   */
  #announceKnown(): void {
    const { known } = this.#options
    const { position } = this.#cursor
    for (const oid of known.foundAt(position)) {
      const relation = this.#relations.get(oid)
      if (relation !== undefined && relation !== 'internal') this.#describe(relation.message, undefined)
    }
    this.#knownIdx = known.nextIdx({ ...position, idx: position.idx + 1 })
  }

  #actionsOf(sinkId: string, relation: Relation): number {
    if (this.#shedding?.isDropping(sinkId)) return 0
    const topics = this.#routing.targets(relation).map(({ target }) => target.topic)
    const reader = this.#routing.active.readers.find((each) => each.sinkId === sinkId && topics.includes(each.topic))
    return reader ? actionBits(reader.actions) : 0
  }

  /** @returns undefined: nobody wants the change, or the log has it already */
  #relationOf(oid: number, chunk: Chunk): Relation | undefined {
    if (this.#cursor.idx >= this.#knownIdx) this.#announceKnown()
    const relation = this.#relations.get(oid)
    if (relation === undefined)
      throw new EngineError('MESSAGE_MALFORMED', `Postgres sent a change of relation ${oid} without describing the relation before`, {
        relation: oid,
      })
    if (relation === 'internal') return undefined
    if (oid !== this.#lastMet) {
      this.#met.add(oid)
      this.#lastMet = oid
    }
    this.rows++
    this.rowBytes += chunk.length
    this.#chunkBytes = chunk.length
    if (this.#options.watcher?.watches(oid)) return relation
    return this.#cursor.isDurable || this.#routing.targets(relation).length === 0 ? undefined : relation
  }

  #emit(change: Change, action: ActionCode, bit: number): void {
    const { relation } = change
    if (this.#options.watcher?.watches(relation.oid)) {
      const lacksValues = change.action !== 'delete' && change.row.unchanged > 0
      this.#options.watcher.changed(change, lacksValues ? 0 : bit, this.#place)
      if (this.#cursor.isDurable) return
    }
    const targets = this.#routing.targets(relation)
    if (change.keyChanged) this.#emitPart(targets, change, PART.tombstone, ACTION.delete, bit)
    if (this.#chunkBytes > this.#options.maxMessageBytes * LARGE_SHARE) this.#emitLarge(targets, change, action, bit)
    else this.#emitPart(targets, change, PART.row, action, bit)
  }

  /** With memory of its own, which goes with it. */
  #emitLarge(targets: readonly RelationTarget[], change: Change, action: ActionCode, bit: number): void {
    const byFormat = new Map<TimestampFormat, Rendered>()
    for (const to of targets) {
      const { target } = to
      if (!this.#takes(target, change, PART.row, bit)) continue
      const rendered = byFormat.get(target.timestampFormat) ?? this.#renderLarge(change, target.timestampFormat)
      byFormat.set(target.timestampFormat, rendered)
      this.#emitTo(to, change, PART.row, action, rendered)
    }
  }

  /** Recognises a change that is too large by its values where possible, so that they need not be rendered. */
  #renderLarge(change: Change, format: TimestampFormat): Rendered {
    const { maxMessageBytes } = this.#options
    let bytes = textBytes(change.action === 'delete' ? change.old : change.row)
    if (bytes <= maxMessageBytes) {
      const body = new ByteWriter(64 * 1024, 2 * maxMessageBytes + 64 * 1024) // reserved is up to twice what is written
      try {
        const isUnchanged = this.#writer.write(body, change, format)
        if (body.length <= maxMessageBytes) return { body, isUnchanged }
        bytes = body.length
      } catch (error) {
        if (!(error instanceof WriterFull)) throw error
      }
    }
    const body = new ByteWriter(1024)
    this.#writer.writeDiscarded(body, change, bytes)
    return { body, isUnchanged: false, isDiscarded: true }
  }

  #emitPart(targets: readonly RelationTarget[], change: Change, part: Part, action: ActionCode, bit: number): void {
    const only = targets.length === 1 ? targets[0] : undefined
    if (only) {
      if (this.#takes(only.target, change, part, bit)) this.#emitTo(only, change, part, action)
      return
    }
    let rendered: TimestampFormat | undefined
    let isUnchanged = false
    for (const to of targets) {
      const { target } = to
      if (!this.#takes(target, change, part, bit)) continue
      if (rendered !== target.timestampFormat) {
        this.#scratch.reset()
        isUnchanged = this.#render(this.#scratch, change, part, target.timestampFormat)
        rendered = target.timestampFormat
      }
      this.#emitTo(to, change, part, action, { body: this.#scratch, isUnchanged })
    }
  }

  /** Whether it is written. Where a change of the key is a delete and an insert, each of them counts as what it will be. */
  #takes({ actions, only, splitsKeyChanges }: Target, { keyChanged }: Change, part: Part, bit: number): boolean {
    const asked = !splitsKeyChanges || !keyChanged ? bit : part === PART.tombstone ? ACTION_BIT.delete : ACTION_BIT.insert
    return (actions & asked) !== 0 && !(only !== undefined && this.#shedding?.active && this.#shedding.drops(only))
  }

  #emitTo({ target, groupColumns, hasOwnGroup }: RelationTarget, change: Change, part: Part, action: ActionCode, ready?: Rendered): void {
    this.streamed++
    const { transaction } = this.#cursor
    const side: Side = part === PART.tombstone || action === ACTION.delete ? 'old' : 'new'
    const group = target.grouping ? groupHash(change, groupColumns, side) : this.#spread(change.relation.oid, transaction.lsn, part)
    const partition = group % target.partitions
    const pack = this.#packing.pack(target.topic, partition, transaction)
    const { bodies } = pack.builder
    const start = bodies.length
    writeKeys(bodies, change, side)
    const keyLength = bodies.length - start
    if (hasOwnGroup && !ready?.isDiscarded) writeGroupKey(bodies, change, groupColumns, side)
    const groupKeyLength = bodies.length - start - keyLength
    if (ready) bodies.append(ready.body)
    const isUnchanged = ready ? ready.isUnchanged : this.#render(bodies, change, part, target.timestampFormat)
    const flags =
      (part === PART.tombstone ? MESSAGE_FLAG.tombstone : change.keyChanged ? MESSAGE_FLAG.moved : 0) |
      (isUnchanged ? MESSAGE_FLAG.unchanged : 0) |
      (ready?.isDiscarded ? MESSAGE_FLAG.discarded : 0) |
      (target.grouping ? 0 : MESSAGE_FLAG.ungrouped)
    pack.builder.add(change.idx, part, action, change.relation.oid, flags, group, keyLength, groupKeyLength)
    this.#packing.added(pack, transaction.commitTimeUs)
  }

  #render(out: ByteWriter, change: Change, part: Part, format: TimestampFormat): boolean {
    if (part === PART.row) return this.#writer.write(out, change, format)
    this.#writer.writeTombstone(out, change, format)
    return false
  }

  /** A group of its own for each message of a sink without groups: by position, so that a re-run finds the same. */
  #spread(relation: number, lsn: Lsn, part: Part): number {
    this.#positionBytes.writeBigUInt64BE(lsn, 0)
    this.#positionBytes.writeUInt32BE(this.#cursor.idx, 8)
    this.#positionBytes[12] = part
    return hashGroup(relation, this.#positionBytes)
  }

  #runMark(handler: MarkHandler, content: Buffer): void {
    const { transaction, position } = this.#cursor
    handler({
      position,
      xid: transaction.xid,
      commitTimeUs: transaction.commitTimeUs,
      content: Buffer.from(content),
      add: (row) => {
        const pack = this.#packing.pack(row.topic, row.partition, transaction)
        const { bodies } = pack.builder
        bodies.append(row.bytes, row.start, row.place)
        this.#writer.writePlace(bodies, row.idx)
        bodies.append(row.bytes, row.place, row.end)
        pack.builder.add(row.idx, PART.row, ACTION.read, row.relation, row.flags, row.group, row.keyLength, row.groupKeyLength)
        this.#packing.added(pack, transaction.commitTimeUs)
      },
      ownStream: (sinkId, relation) => {
        const to = this.#routing.targets(relation).find(({ target }) => target.only === sinkId)
        const reader = to && this.#routing.active.readers.find((each) => each.sinkId === sinkId && each.topic === to.target.topic)
        this.#routing.forget(relation) // a page has a description of its own, which is soon gone
        const isShed = () => this.#shedding?.isDropping(sinkId) ?? false
        return reader && { ...to, actions: actionBits(reader.actions), isShed }
      },
    })
  }
}
