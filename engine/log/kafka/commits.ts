/**
 * Commits of sink partitions: an offset in Kafka with our text beside it, and a checkpoint in the state database as second
 * memory (docs/rules.md, rules 16 and 18).
 *
 *  C1. A commit settles when Kafka has it; one whose ranges don't fit beside the offset, when the state database has it too.
 *  C2. A commit without our text is not believed (a tool may have set the offset), nor one above the partition's end.
 *  C3. After a partition was revoked nothing of its former owner is committed by this process: its term is fenced.
 *  C4. `restore` looks after every commit of this process has settled.
 *  C5. Neither memory is told of a partition that is not ours any more: whose term is higher counts as newer, and a process that
 *      was slow may have raised it behind the owner's back.
 */
import { EngineError, isFenced } from '../../errors.ts'
import { topicRead, type Commit, type ReaderName, type TopicName } from '../log.ts'
import type { Brokers } from './brokers.ts'
import { commitFromText, commitToText, type Numbered } from './commit-text.ts'
import type { GroupGeneration } from './membership.ts'
import { patiently } from './patience.ts'
import { Recent } from './recent.ts'
import type { SecondMemory } from './second-memory.ts'

type CommitsOptions = Readonly<{
  brokers: Brokers
  memory: SecondMemory
  /** of a topic in Kafka, or of a reader's group */
  nameOf: (name: TopicName | ReaderName) => string
  /** what a commit goes out under: `outside` when nobody here is a member of the group; undefined: the partition is not ours */
  generationOf: (reader: ReaderName, partition: number) => GroupGeneration | 'outside' | undefined
  notice: (text: string, error?: unknown) => void
}>

type Partition = {
  term: number
  number: number
  /** commits of a lower or equal term come from a former owner */
  fencedTerm: number
  committed: Commit | undefined
  open: Promise<unknown>
  /** the last commit is not in the second memory */
  unsaved: Numbered | undefined
}

const CHECKPOINT_EVERY_MS = 5_000
const NO_GENERATION = -1
/** Characters that brokers take beside an offset: their offset.metadata.max.bytes. */
const MAX_TEXT_LENGTH = 4_096

/** Commits of the partitions that are served here. */
export class Commits implements AsyncDisposable {
  readonly #options: CommitsOptions
  readonly #partitions = new Map<string, Partition>()
  /** by reader: what the coordinator said of partitions of other owners */
  readonly #asked = new Recent<readonly (number | undefined)[]>()
  readonly #closed = new AbortController()
  #timer: NodeJS.Timeout | undefined
  #saving: Promise<void> = Promise.resolve()

  constructor(options: CommitsOptions) {
    this.#options = options
  }

  /** @throws EngineError PARTITION_FENCED, LOG_UNREACHABLE, LOG_REFUSED, STATE_UNAVAILABLE */
  async commit(reader: ReaderName, partition: number, commit: Commit): Promise<void> {
    const of = this.#of(reader, partition)
    if (commit.term <= of.fencedTerm || commit.term < of.term) throw fenced(reader, partition)
    if (commit.term > of.term) Object.assign(of, { term: commit.term, number: 0 })
    const numbered = { commit, number: ++of.number }
    const work = of.open.then(() => this.#write(reader, partition, of, numbered))
    of.open = work.catch(() => undefined)
    await work
  }

  /**
   * The first commit of a reader, before it has an owner. One that is there stands: a source that was frozen says late, and no
   * longer as its owner, where its topics end by then, and what was appended meanwhile would be passed over.
   */
  async join(reader: ReaderName, partition: number, from: Commit): Promise<void> {
    if ((await this.#found(reader, partition, 0)) !== undefined) return
    try {
      await this.commit(reader, partition, from)
    } catch (error) {
      if (!(error instanceof EngineError) || error.code === 'LOG_UNREACHABLE') throw error
      this.#options.notice(`${this.#options.nameOf(reader)}/${partition} is read already`, error)
    }
    const of = this.#of(reader, partition)
    if (of.term === from.term) of.fencedTerm = from.term // its owner may be another process
  }

  /**
   * The last commit of the partition's last owner, as far as it is remembered.
   * @param end the partition's next offset
   */
  async restore(reader: ReaderName, partition: number, end: () => Promise<number>): Promise<Commit | undefined> {
    await this.#partitions.get(key(reader, partition))?.open
    const { memory, nameOf, notice } = this.#options
    const groupId = nameOf(reader)
    const topic = nameOf(topicRead(reader))
    const [{ responses }, checkpoint] = await Promise.all([
      patiently(() =>
        this.#options.brokers.coordinator(groupId, (broker) =>
          broker.offsetFetch({ groupId, topics: [{ topic, partitions: [{ partition }] }] }),
        ),
      ),
      memory.checkpoint(reader, partition),
    ])
    const found = responses[0]?.partitions.find((p) => p.partition === partition)
    const offset = Number(found?.offset ?? -1)
    const committed = offset < 0 ? undefined : commitFromText(found?.metadata ?? null, offset)
    if (offset >= 0 && !committed) notice(`the offset ${offset} of ${groupId}/${partition} was not committed by us and is not believed`)
    const isNewest = checkpoint && (!committed || compare(checkpoint, committed) >= 0)
    if (committed && !committed.isWhole && !isNewest)
      notice(`finished messages of ${groupId}/${partition} were not found in the state database: some will come again`)
    const restored = isNewest ? checkpoint : committed
    if (!restored) return undefined
    const next = await end()
    if (restored.commit.next.offset <= next) return restored.commit
    notice(
      `${groupId}/${partition} ends at ${next}, below the committed offset ${restored.commit.next.offset}: it is read from its start again`,
    )
    return undefined
  }

  /** The committed offset, 0 when there is none: known by its owner, else as it was asked for no longer ago than `maxAgeMs`. */
  async offset(reader: ReaderName, partition: number, maxAgeMs: number): Promise<number> {
    return (await this.#found(reader, partition, maxAgeMs)) ?? 0
  }

  /** The partition is no longer served here. */
  fence(reader: ReaderName, partition: number): void {
    const of = this.#of(reader, partition)
    of.fencedTerm = of.term
  }

  forget(reader: ReaderName): void {
    for (const name of this.#partitions.keys()) if (name.startsWith(`${reader}/`)) this.#partitions.delete(name)
    this.#asked.forget(reader)
  }

  /** Writes down what the second memory doesn't have yet. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed.abort()
    clearTimeout(this.#timer)
    await Promise.all([...this.#partitions.values()].map((of) => of.open))
    await this.#saveAll()
  }

  // ── inside ──────────────────────────────────────────────────────────────────────────────────────

  /** @returns undefined: nothing has been committed */
  async #found(reader: ReaderName, partition: number, maxAgeMs: number): Promise<number | undefined> {
    const own = this.#partitions.get(key(reader, partition))
    if (own?.committed && own.term > own.fencedTerm) return own.committed.next.offset
    return (await this.#asked.get(reader, maxAgeMs, () => this.#offsets(reader)))[partition]
  }

  /** By partition; undefined where nothing has been committed. */
  async #offsets(reader: ReaderName): Promise<readonly (number | undefined)[]> {
    const groupId = this.#options.nameOf(reader)
    const topic = this.#options.nameOf(topicRead(reader))
    const { leaders } = await patiently(() => this.#options.brokers.layout(topic))
    const partitions = leaders.map((_, partition) => ({ partition }))
    const { responses } = await patiently(() =>
      this.#options.brokers.coordinator(groupId, (broker) => broker.offsetFetch({ groupId, topics: [{ topic, partitions }] })),
    )
    const offsets: (number | undefined)[] = leaders.map(() => undefined)
    for (const { partition, offset } of responses[0]?.partitions ?? []) if (Number(offset) >= 0) offsets[partition] = Number(offset)
    return offsets
  }

  async #write(reader: ReaderName, partition: number, of: Partition, numbered: Numbered): Promise<void> {
    const { commit } = numbered
    this.#claim(reader, partition, commit)
    const { text, isWhole } = commitToText(numbered, MAX_TEXT_LENGTH)
    const goesBack = of.committed !== undefined && commit.next.offset < of.committed.next.offset
    // what Kafka can't hold, and what an older checkpoint would contradict, is durable in the state database first
    const first = !isWhole || goesBack || commit.inFlight !== undefined
    if (first) await this.#options.memory.saveCheckpoint(reader, partition, numbered)
    await patiently(() => this.#send(reader, partition, commit, text), this.#closed.signal)
    of.committed = commit
    of.unsaved = first ? undefined : numbered
    if (!first && !this.#closed.signal.aborted) this.#timer ??= setTimeout(() => this.#onTime(), CHECKPOINT_EVERY_MS).unref()
  }

  async #send(reader: ReaderName, partition: number, commit: Commit, text: string): Promise<void> {
    const generation = this.#claim(reader, partition, commit)
    const groupId = this.#options.nameOf(reader)
    const topic = this.#options.nameOf(topicRead(reader))
    await this.#options.brokers.coordinator(groupId, (broker) =>
      broker.offsetCommit({
        groupId,
        groupGenerationId: generation === 'outside' ? NO_GENERATION : generation.generationId,
        memberId: generation === 'outside' ? '' : generation.memberId,
        topics: [{ topic, partitions: [{ partition, offset: String(commit.next.offset), metadata: text }] }],
      }),
    )
  }

  /** @returns what a commit goes out under. @throws EngineError PARTITION_FENCED: it is of a former owner */
  #claim(reader: ReaderName, partition: number, { term }: Commit): GroupGeneration | 'outside' {
    const generation = this.#options.generationOf(reader, partition)
    if (generation === undefined || term <= this.#of(reader, partition).fencedTerm) throw fenced(reader, partition)
    return generation
  }

  #onTime(): void {
    this.#timer = undefined
    this.#saving = this.#saving.then(() => this.#saveAll())
  }

  async #saveAll(): Promise<void> {
    for (const [name, of] of this.#partitions) {
      const { unsaved } = of
      if (!unsaved) continue
      of.unsaved = undefined
      const at = name.lastIndexOf('/')
      try {
        await this.#options.memory.saveCheckpoint(name.slice(0, at), Number(name.slice(at + 1)), unsaved)
      } catch (error) {
        if (isFenced(error)) continue // the later owner writes its own
        of.unsaved ??= unsaved
        this.#options.notice(`the checkpoint of ${name} could not be saved`, error)
        if (!this.#closed.signal.aborted) this.#timer ??= setTimeout(() => this.#onTime(), CHECKPOINT_EVERY_MS).unref()
      }
    }
  }

  #of(reader: ReaderName, partition: number): Partition {
    const name = key(reader, partition)
    let of = this.#partitions.get(name)
    if (!of) {
      of = { term: -1, number: 0, fencedTerm: -1, committed: undefined, open: Promise.resolve(), unsaved: undefined }
      this.#partitions.set(name, of)
    }
    return of
  }
}

const key = (reader: ReaderName, partition: number) => `${reader}/${partition}`
const compare = (a: Numbered, b: Numbered): number => a.commit.term - b.commit.term || a.number - b.number
const fenced = (reader: ReaderName, partition: number) =>
  new EngineError('PARTITION_FENCED', `this process does not serve partition ${partition} of ${reader} any more`, { reader, partition })
