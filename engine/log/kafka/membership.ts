/**
 * This process as a member of a sink's consumer group: which partitions it serves, and whether that is still so. Written on
 * the group protocol itself, because what a user of kafkajs's consumer can't see decides here (docs/rules.md, rule 19):
 *
 *   M1. Every join ends what was assigned before, also when it brings the same partitions again: `revoked` has returned for
 *       all of them before the join is asked for, `assigned` comes after it is answered. If the group is to be spread anew
 *       there is a moment before that for `handOver`.
 *   M2. `holds` is true only while the last answered heartbeat was sent less than 2/3 of the session time ago, by the
 *       monotonic clock: a frozen process that goes on knows it before it hears of it. Beyond that time everything is
 *       revoked, and assigned again if a heartbeat is answered after all.
 *   M3. A commit goes out under the generation and member id of this assignment, so brokers refuse it from a former one.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { EngineError } from '../../errors.ts'
import { fieldsOf } from '../../json.ts'
import type { AssignmentListener } from '../log.ts'
import { assignLikeFirst, type GroupMember } from './assignment.ts'
import type { Brokers } from './brokers.ts'
import type { KafkaConnection } from './connection.ts'
import { kafkaCode } from './failure.ts'
import { type JoinedGroup, MemberAssignment, MemberMetadata } from './kafkajs.ts'
import { Link } from './link.ts'
import { backOff } from '../../back-off.ts'
import { readFileSync, renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

/** Holds which partitions of one topic this process serves, by group, and since when. */
export type ServedTopic = { readonly groups: Map<string, readonly number[]>; changes: number; changedAt: number }

type MembershipOptions = Readonly<{
  /** names the process to the members of all groups */
  node: string
  /** shared by the members of all groups of the topic in this process */
  served: ServedTopic
  /** of a join: its answer waits for other members, and holds up what else is asked over its connection */
  connection: KafkaConnection
  /** for heartbeats, shared with the other groups of this process */
  brokers: Brokers
  groupId: string
  /** as Kafka knows it */
  topic: string
  listener: AssignmentListener
  /** absent: nothing is known of a former process */
  formerMembers?: FormerMembers | undefined
  /** a member that is silent for so long has lost its partitions */
  sessionTimeoutMs: number
  /** it can't be reached, for a while now */
  notice: (text: string, error?: unknown) => void
}>
/** Names the group generation and the member that a commit is sent under. */
export type GroupGeneration = Readonly<{ generationId: number; memberId: string }>

type Current = GroupGeneration & Readonly<{ partitions: readonly number[] }>

const PROTOCOL = 'tailrace-sticky-1'
const PROTOCOL_VERSION = 0
/** A share of the session time. */
const HEARTBEAT_EVERY = 1 / 6
const HELD_FOR = 2 / 3
/** How long the coordinator waits for members that have not joined again. */
const REBALANCE_TIMEOUT_MS = 10_000
/** A partition that can't be handed over cleanly in this time is handed over as after a crash. */
const HAND_OVER_LIMIT_MS = 3_000
const PAUSE = { firstMs: 100, maxMs: 2_000 }
/** When nothing has changed for so long, in session times, a group that is spread unlike the first one of its topic is spread anew. */
const ALIKE_AFTER = 2
const LEAVE_LIMIT_MS = 2_000
const START_WAIT_MS = 5_000
/** A coordinator that moves or restarts is back sooner. */
const TROUBLE_AFTER_MS = 5_000

/** Keeps this process a member of one group. */
export class Membership {
  readonly #options: MembershipOptions
  readonly #stop = new AbortController()
  readonly #joined = Promise.withResolvers<void>()
  readonly #announced = new Set<number>()
  #memberId = ''
  #current: Current | undefined
  /** of a join that is under way */
  #link: Link | undefined
  #answeredAt = -Infinity
  #expiry: NodeJS.Timeout | undefined
  #loop: Promise<void> | undefined
  #failingSince: number | undefined
  #saidTrouble = false
  /** changes of the topic that were looked at */
  #looked = 0

  constructor(options: MembershipOptions) {
    this.#options = options
    this.#joined.promise.catch(() => undefined)
  }

  /** Settles after the first join, or when that takes long: then it is tried on behind the caller. @throws EngineError LOG_REFUSED */
  async start(): Promise<void> {
    this.#loop ??= this.#run()
    await Promise.race([this.#joined.promise, delay(START_WAIT_MS, undefined, { ref: false })])
  }

  get holds(): boolean {
    return performance.now() - this.#answeredAt < this.#options.sessionTimeoutMs * HELD_FOR
  }

  /**
   * Gives the group generation and the member that a commit of a partition goes out under; undefined: the partition is not ours, or
   * perhaps no longer.
   */
  generationOf(partition: number): GroupGeneration | undefined {
    return this.#announced.has(partition) && this.holds ? this.#current : undefined
  }

  /** Revokes everything and leaves, so that others take over at once. */
  async stop(): Promise<void> {
    this.#revoke()
    this.#stop.abort()
    const { brokers, groupId, formerMembers } = this.#options
    if (this.#link) await Promise.race([this.#loop, delay(LEAVE_LIMIT_MS, undefined, { ref: false })]) // without its answer we don't know as whom to leave
    if (this.#memberId !== '') {
      const leaving = brokers.coordinator(groupId, (broker) => broker.leaveGroup({ groupId, memberId: this.#memberId }))
      const left = leaving.then(
        () => formerMembers?.left(groupId),
        () => undefined, // its session will end
      )
      await Promise.race([left, delay(LEAVE_LIMIT_MS, undefined, { ref: false })])
    }
    this.#link?.close()
    await this.#loop
    this.#options.served.groups.delete(groupId)
  }

  // ── inside ──────────────────────────────────────────────────────────────────────────────────────

  async #run(): Promise<void> {
    const { signal } = this.#stop
    const { brokers, groupId } = this.#options
    let failures = 0
    while (!signal.aborted) {
      const startedAt = performance.now()
      try {
        await this.#serve()
      } catch (error) {
        if (signal.aborted) break
        brokers.forgetCoordinator(groupId)
        if (!mayPass(error)) this.#joined.reject(error)
        if (performance.now() - startedAt > PAUSE.maxMs) failures = 0
        this.#failingSince ??= startedAt
        if (!this.#saidTrouble && performance.now() - this.#failingSince > TROUBLE_AFTER_MS) {
          this.#saidTrouble = true
          this.#options.notice(`the group ${groupId} can't be joined at the moment`, error)
          this.#options.listener.trouble?.(error)
        }
        await delay(backOff(PAUSE, ++failures), undefined, { signal }).catch(() => undefined)
      }
    }
    this.#joined.reject(new EngineError('STOPPING', `the group ${groupId} was left`))
  }

  async #serve(): Promise<void> {
    const { signal } = this.#stop
    const { brokers, groupId, sessionTimeoutMs } = this.#options
    while (!signal.aborted) {
      if (!this.#current) await this.#join()
      await delay(sessionTimeoutMs * HEARTBEAT_EVERY, undefined, { signal }).catch(() => undefined)
      const current = this.#current
      if (signal.aborted || !current) continue
      const sentAt = performance.now()
      try {
        await brokers.coordinator(groupId, (broker) =>
          broker.heartbeat({ groupId, groupGenerationId: current.generationId, memberId: current.memberId }),
        )
        this.#answered(sentAt)
        if (!this.#isUnlikeFirst()) continue
        await this.#handOver(sentAt)
        this.#revoke()
      } catch (error) {
        if (kafkaCode(error) === 'REBALANCE_IN_PROGRESS') await this.#handOver(sentAt)
        if (!this.#mustJoin(error)) throw error
      }
    }
  }

  /** Whether this process serves other partitions of the topic here than in the first group. Said once after each change. */
  #isUnlikeFirst(): boolean {
    const { served, groupId, sessionTimeoutMs } = this.#options
    if (this.#looked === served.changes || performance.now() - served.changedAt < sessionTimeoutMs * ALIKE_AFTER) return false
    this.#looked = served.changes
    const first = firstOf(served)
    return first !== undefined && first.group !== groupId && first.partitions.join() !== served.groups.get(groupId)?.join()
  }

  /** Others wait for our join, but not long; until then the coordinator takes commits of this generation. */
  async #handOver(sentAt: number): Promise<void> {
    this.#answered(sentAt) // it was an answer: the session goes on
    const { listener, sessionTimeoutMs } = this.#options
    if (!listener.handOver || this.#announced.size === 0) return
    const limitMs = Math.min(HAND_OVER_LIMIT_MS, sessionTimeoutMs * HELD_FOR - (performance.now() - sentAt))
    const over = new AbortController()
    const late = delay(limitMs, 'late' as const, { signal: over.signal }).catch(() => undefined)
    const done = listener.handOver().catch((error: unknown) => this.#options.notice('partitions could not be handed over cleanly', error))
    if ((await Promise.race([done, late])) === 'late')
      this.#options.notice(
        `partitions of ${this.#options.groupId} were not handed over in ${Math.round(limitMs)} ms: their next owners presume what is with clients`,
      )
    over.abort()
  }

  /** Whether the error ends this generation: then everything is revoked, and the group joined again. */
  #mustJoin(error: unknown): boolean {
    const code = kafkaCode(error)
    if (code !== 'REBALANCE_IN_PROGRESS' && code !== 'ILLEGAL_GENERATION' && code !== 'UNKNOWN_MEMBER_ID') return false
    if (code === 'UNKNOWN_MEMBER_ID') this.#memberId = ''
    this.#revoke()
    return true
  }

  /** A dead process that was a member would be waited for until its session ends. */
  async #leaveForFormer(link: Link): Promise<void> {
    const { groupId, formerMembers } = this.#options
    const memberId = this.#memberId === '' ? formerMembers?.of(groupId) : undefined
    if (memberId !== undefined) await link.call((broker) => broker.leaveGroup({ groupId, memberId })).catch(() => undefined) // it has ended
  }

  async #join(): Promise<void> {
    const { connection, groupId, topic, sessionTimeoutMs, brokers, formerMembers, node, served } = this.#options
    const had = served.groups.get(groupId) ?? []
    const link = await Link.open(connection, await brokers.coordinatorOf(groupId), this.#stop.signal)
    this.#link = link
    try {
      if (this.#stop.signal.aborted) return
      await this.#leaveForFormer(link)
      const metadata = MemberMetadata.encode({
        version: PROTOCOL_VERSION,
        topics: [topic],
        userData: Buffer.from(JSON.stringify({ had, node, first: firstOf(served) })),
      })
      const joined = await link.call(
        (broker) =>
          broker.joinGroup({
            groupId,
            sessionTimeout: sessionTimeoutMs,
            rebalanceTimeout: REBALANCE_TIMEOUT_MS,
            memberId: this.#memberId,
            groupProtocols: [{ name: PROTOCOL, metadata }],
          }),
        REBALANCE_TIMEOUT_MS + sessionTimeoutMs,
      )
      this.#memberId = joined.memberId
      formerMembers?.joined(groupId, joined.memberId)
      const { generationId, memberId } = joined
      let groupAssignment: { memberId: string; memberAssignment: Buffer }[] = []
      if (joined.leaderId === memberId) {
        brokers.forget(topic)
        groupAssignment = assign(joined, { group: groupId, topic }, (await brokers.layout(topic)).leaders.length)
      }
      const sentAt = performance.now()
      const { memberAssignment } = await link.call(
        (broker) => broker.syncGroup({ groupId, generationId, memberId, groupAssignment }),
        REBALANCE_TIMEOUT_MS,
      )
      if (this.#stop.signal.aborted) return
      const partitions = MemberAssignment.decode(memberAssignment)?.assignment[topic] ?? []
      this.#current = { generationId, memberId, partitions }
      const serves = [...partitions].sort((a, b) => a - b)
      if (served.groups.get(groupId)?.join() !== serves.join()) Object.assign(served, { changes: served.changes + 1, changedAt: sentAt })
      served.groups.set(groupId, serves)
      this.#answered(sentAt)
      this.#joined.resolve()
    } catch (error) {
      if (!this.#mustJoin(error)) throw error
    } finally {
      link.close()
      this.#link = undefined
    }
  }

  /** A heartbeat sent then was answered: what is assigned is ours for a while. */
  #answered(sentAt: number): void {
    this.#answeredAt = sentAt
    this.#failingSince = undefined
    if (this.#saidTrouble) this.#options.listener.trouble?.(undefined)
    this.#saidTrouble = false
    clearTimeout(this.#expiry)
    const { sessionTimeoutMs, listener } = this.#options
    this.#expiry = setTimeout(() => this.#void(), sessionTimeoutMs * HELD_FOR - (performance.now() - sentAt))
    for (const partition of this.#current?.partitions ?? []) {
      if (this.#announced.has(partition)) continue
      this.#announced.add(partition)
      listener.assigned(partition)
    }
  }

  /** Perhaps another serves them already. */
  #void(): void {
    for (const partition of [...this.#announced]) {
      this.#announced.delete(partition)
      this.#options.listener.revoked(partition)
    }
  }

  #revoke(): void {
    clearTimeout(this.#expiry)
    this.#void()
    this.#current = undefined
    this.#answeredAt = -Infinity
  }
}

/** Whether the coordinator may take us later without anybody mending something. */
const mayPass = (error: unknown): boolean => !(error instanceof EngineError) || error.code !== 'LOG_REFUSED'

/** Of those that this process is in, the group whose name comes first, and what it serves there. */
function firstOf({ groups }: ServedTopic): GroupMember['first'] {
  let first: GroupMember['first']
  for (const [group, partitions] of groups) if (!first || group < first.group) first = { group, partitions }
  return first
}

function assign(
  { members }: JoinedGroup,
  of: Readonly<{ group: string; topic: string }>,
  partitions: number,
): { memberId: string; memberAssignment: Buffer }[] {
  const shares = assignLikeFirst(
    of,
    members.map(({ memberId, memberMetadata }) => ({ id: memberId, ...stateIn(memberMetadata) })),
    partitions,
  )
  return [...shares].map(([memberId, share]) => ({
    memberId,
    memberAssignment: MemberAssignment.encode({ version: PROTOCOL_VERSION, assignment: { [of.topic]: share }, userData: Buffer.alloc(0) }),
  }))
}

/** Reads the state that a member tells; fields that another version has added are passed over. */
function stateIn(metadata: Buffer): Omit<GroupMember, 'id'> {
  const { userData } = MemberMetadata.decode(metadata)
  const { had, node, first } = fieldsIn(() => userData?.toString('utf8') || '{}')
  const { group, partitions } = fieldsOf(first)
  return {
    had: partitionsIn(had),
    node: typeof node === 'string' ? node : undefined,
    first: typeof group === 'string' ? { group, partitions: partitionsIn(partitions) } : undefined,
  }
}

/** Fields of a JSON object; none where there is no such text, or it is damaged. */
function fieldsIn(json: () => string): Readonly<Record<string, unknown>> {
  try {
    return fieldsOf(JSON.parse(json()))
  } catch {
    return {}
  }
}

const partitionsIn = (said: unknown): readonly number[] =>
  Array.isArray(said) ? said.filter((n) => Number.isSafeInteger(n) && n >= 0) : []

const FILE = 'kafka-members.json'

/**
 * Keeps, in a file of the data folder, which group members this process is: a process that is started after a crash leaves their
 * groups in their name, so that nobody waits for the end of their sessions. The folder belongs to one process at a time, so
 * who stands there is dead; should it live after all (a copied folder), it is told so by its next heartbeat and joins anew.
 */
export class FormerMembers {
  readonly #file: string
  readonly #former: Readonly<Record<string, unknown>>
  readonly #now: Record<string, string> = {}

  constructor(folder: string) {
    this.#file = join(folder, FILE)
    this.#former = fieldsIn(() => readFileSync(this.#file, 'utf8')) // without it sessions are waited for
  }

  /** The member that a dead process with this folder was. */
  of(groupId: string): string | undefined {
    const memberId = this.#former[groupId]
    return typeof memberId === 'string' ? memberId : undefined
  }

  joined(groupId: string, memberId: string): void {
    if (this.#now[groupId] === memberId) return
    this.#now[groupId] = memberId
    this.#write()
  }

  left(groupId: string): void {
    delete this.#now[groupId]
    this.#write()
  }

  #write(): void {
    writeFileSync(`${this.#file}.new`, JSON.stringify(this.#now), { mode: 0o600 })
    renameSync(`${this.#file}.new`, this.#file)
  }
}
