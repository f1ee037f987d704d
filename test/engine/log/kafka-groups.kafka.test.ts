/** Several processes on one sink's topic: each log stands for one. */
import assert from 'node:assert/strict'
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join as path } from 'node:path'
import { test } from 'node:test'
import { Brokers } from '../../../engine/log/kafka/brokers.ts'
import { MemberAssignment, MemberMetadata } from '../../../engine/log/kafka/kafkajs.ts'
import { readerOf, type AssignmentListener, type Commit, type Log } from '../../../engine/log/log.ts'
import { calmMs, CalmClock } from '../../services/calm-clock.ts'
import { startKafka } from '../../services/kafka.ts'
import { at, TOPIC } from './conformance.ts'
import { Connections, kafkaHome } from './kafka-home.ts'
import { pass, until } from '../../waiting.ts'

const SESSION_MS = 1_500
const commitOf = (offset: number, term: number): Commit => ({
  next: { offset, index: 0 },
  accepted: at(offset),
  finished: [],
  handedOut: { offset, index: 0 },
  term,
})

/** What one process is told of its partitions, in order. */
class Served implements AssignmentListener {
  readonly events: string[] = []
  readonly partitions = new Set<number>()
  readonly #looks = new Set<() => void>()

  readonly assigned = (partition: number) => {
    assert.ok(!this.partitions.has(partition), 'assigned twice')
    this.partitions.add(partition)
    this.#happened(`+${partition}`)
  }
  readonly revoked = (partition: number) => {
    assert.ok(this.partitions.delete(partition), 'revoked without having it')
    this.#happened(`-${partition}`)
  }
  lastTrouble: unknown
  readonly troubled = (error: unknown) => {
    this.lastTrouble = error
    this.#happened(error === undefined ? 'well' : 'trouble')
  }
  async until(reached: () => boolean): Promise<void> {
    let isReached = reached() // at some time, however short
    const look = () => (isReached ||= reached())
    this.#looks.add(look)
    await until(
      () => `what is awaited, after ${this.events.join(' ')}`,
      () => isReached,
    ).finally(() => this.#looks.delete(look))
  }
  #happened(event: string): void {
    this.events.push(event)
    for (const look of this.#looks) look()
  }
}

async function join(log: Log, reader = TOPIC) {
  const served = new Served()
  return { served, subscription: await log.subscribe(reader, { ...served, trouble: served.troubled }) }
}

test('partitions spread over processes, each is served by one, and every join ends what was assigned before', async () => {
  await using home = await kafkaHome()
  await using log = await home.open({ sessionTimeoutMs: SESSION_MS })
  await log.createTopic(TOPIC, 4)
  const a = await join(log)
  await a.served.until(() => a.served.partitions.size === 4)
  await using second = await home.open({ sessionTimeoutMs: SESSION_MS })
  const b = await join(second)
  await b.served.until(() => b.served.partitions.size === 2)
  await a.served.until(() => a.served.partitions.size === 2)
  assert.deepEqual([...a.served.partitions, ...b.served.partitions].sort(), [0, 1, 2, 3])
  const before = a.served.events.slice(0, 8)
  assert.deepEqual(before.slice(4).sort(), ['-0', '-1', '-2', '-3'], 'all were revoked, also those that came back')
  await b.subscription[Symbol.asyncDispose]()
  assert.equal(b.served.partitions.size, 0)
  await a.served.until(() => a.served.partitions.size === 4)
  assert.ok(log.holds(TOPIC))
  assert.ok(!second.holds(TOPIC))
  await a.subscription[Symbol.asyncDispose]()
})

test('a partition is served by the same process for all readers of a topic, whoever came to which of them first', async () => {
  await using home = await kafkaHome()
  await using log = await home.open({ sessionTimeoutMs: SESSION_MS })
  await using second = await home.open({ sessionTimeoutMs: SESSION_MS })
  await log.createTopic(TOPIC, 4)
  const [one, two] = [readerOf(TOPIC, 'one.1'), readerOf(TOPIC, 'two.1')]
  const has = ({ served }: Awaited<ReturnType<typeof join>>, count: number) => served.until(() => served.partitions.size === count)
  const inTwo = [await join(log, two), await join(second, two)] as const
  await Promise.all(inTwo.map((member) => has(member, 2)))
  const late = await join(second, one)
  await has(late, 4)
  const inOne = [await join(log, one), late] as const
  await Promise.all(inOne.map((member) => has(member, 2)))
  const isAlike = () =>
    inOne.every(({ served }, i) => [...served.partitions].sort().join() === [...(inTwo[i]?.served.partitions ?? [])].sort().join())
  await until('both are spread alike', isAlike)
  assert.deepEqual(
    inOne.map(({ served }) => served.partitions.size),
    [2, 2],
  )
})

test('a member of another version, which tells things that nobody here knows, gets its share', async () => {
  await using home = await kafkaHome()
  await using log = await home.open({ sessionTimeoutMs: SESSION_MS })
  await log.createTopic(TOPIC, 2)
  const a = await join(log)
  await a.served.until(() => a.served.partitions.size === 2)
  const brokers = new Brokers(home.connection)
  const groupId = home.prefix + TOPIC
  for (const told of ['{"had":"all","node":7,"first":[],"more":{}}', 'null', 'not JSON']) {
    const metadata = MemberMetadata.encode({ version: 0, topics: [groupId], userData: Buffer.from(told) })
    const groupProtocols = [{ name: 'tailrace-sticky-1', metadata }]
    const asked = { groupId, sessionTimeout: SESSION_MS * 4, rebalanceTimeout: 10_000, memberId: '', groupProtocols }
    const { generationId, memberId } = await brokers.coordinator(groupId, (broker) => broker.joinGroup(asked))
    const synced = await brokers.coordinator(groupId, (broker) =>
      broker.syncGroup({ groupId, generationId, memberId, groupAssignment: [] }),
    )
    assert.equal(MemberAssignment.decode(synced.memberAssignment)?.assignment[groupId]?.length, 1, told)
    await a.served.until(() => a.served.partitions.size === 1)
    await brokers.coordinator(groupId, (broker) => broker.leaveGroup({ groupId, memberId }))
    await a.served.until(() => a.served.partitions.size === 2)
  }
  brokers.close()
})

test('the groups of a process share their connections', async () => {
  await using home = await kafkaHome()
  await using log = await home.open({ sessionTimeoutMs: SESSION_MS })
  await log.createTopic(TOPIC, 1)
  using connections = new Connections()
  const members = await Promise.all(Array.from({ length: 20 }, (_, i) => join(log, readerOf(TOPIC, `sink${i}.1`))))
  for (const { served } of members) await served.until(() => served.partitions.size === 1)
  await connections.until((open) => open <= 3)
  await Promise.all(members.map(({ subscription }) => subscription[Symbol.asyncDispose]()))
})

test('before a group is spread anew its members may commit once more, and the next owner finds it', async () => {
  await using home = await kafkaHome()
  await using log = await home.open({ sessionTimeoutMs: SESSION_MS })
  await log.createTopic(TOPIC, 2)
  const served = new Served()
  const said: string[] = []
  await using _ = await log.subscribe(TOPIC, {
    ...served,
    handOver: async () => {
      said.push(...served.events)
      await pass(300, 'the handover takes its time, and the group waits for it')
      for (const partition of [0, 1]) await log.commit(TOPIC, partition, commitOf(0, 7))
    },
  })
  await served.until(() => served.partitions.size === 2)
  await using second = await home.open({ sessionTimeoutMs: SESSION_MS })
  const b = await join(second)
  await b.served.until(() => b.served.partitions.size === 1)
  assert.deepEqual(said.sort(), ['+0', '+1'], 'nothing was revoked before')
  const [moved] = b.served.partitions
  assert.deepEqual(await second.committed(TOPIC, moved as number), commitOf(0, 7))
  await b.subscription[Symbol.asyncDispose]()
})

test('a commit of a former owner is refused, from another process and from this one', async () => {
  await using home = await kafkaHome()
  await using log = await home.open({ sessionTimeoutMs: SESSION_MS })
  await log.createTopic(TOPIC, 2)
  await log.beginRun('shop')
  const a = await join(log)
  await a.served.until(() => a.served.partitions.size === 2)
  await log.commit(TOPIC, 0, commitOf(0, 1))
  await log.commit(TOPIC, 1, commitOf(0, 1))
  await using second = await home.open({ sessionTimeoutMs: SESSION_MS })
  const b = await join(second)
  await a.served.until(() => a.served.partitions.size === 1)
  for (const partition of [0, 1])
    await assert.rejects(log.commit(TOPIC, partition, commitOf(0, 1)), { code: 'PARTITION_FENCED' }, `term 1 of partition ${partition}`)
  const [kept] = a.served.partitions
  await log.commit(TOPIC, kept as number, commitOf(0, 2))
  const moved = 1 - (kept as number)
  await assert.rejects(log.commit(TOPIC, moved, commitOf(0, 2)), { code: 'PARTITION_FENCED' })
  await b.served.until(() => b.served.partitions.has(moved))
  await second.commit(TOPIC, moved, commitOf(0, 2))
  await using outside = await home.open()
  await assert.rejects(outside.commit(TOPIC, moved, commitOf(0, 3)), { code: 'PARTITION_FENCED' }, 'one that never joined')
  assert.equal((await second.committed(TOPIC, moved))?.term, 2)
})

test('a process that takes over late, with a higher term than the owner, leaves nothing that the next owner would go on from', async () => {
  await using home = await kafkaHome()
  await using log = await home.open({ sessionTimeoutMs: SESSION_MS })
  await log.createTopic(TOPIC, 2)
  const a = await join(log)
  await a.served.until(() => a.served.partitions.size === 2)
  await using second = await home.open({ sessionTimeoutMs: SESSION_MS })
  const b = await join(second)
  await b.served.until(() => b.served.partitions.size === 1)
  const [partition = assert.fail()] = b.served.partitions
  const owners = commitOf(0, 1)
  await second.commit(TOPIC, partition, owners)
  // it knows what is in flight, and the state database is told of such a commit before Kafka is
  await assert.rejects(log.commit(TOPIC, partition, { ...commitOf(0, 2), inFlight: [] }), { code: 'PARTITION_FENCED' })
  assert.deepEqual(await second.committed(TOPIC, partition), owners)
})

test('a process that falls silent knows that it may have lost its partitions before others get them', async () => {
  const sessionMs = SESSION_MS * 4 // so that a busy machine's pauses are small beside it
  await using broker = await startKafka()
  await using home = await kafkaHome([broker.address])
  await using log = await home.open({ sessionTimeoutMs: sessionMs })
  await log.createTopic(TOPIC, 1)
  const a = await join(log)
  await a.served.until(() => a.served.partitions.size === 1)
  process.kill(broker.pid, 'SIGSTOP') // no heartbeat is answered
  using clock = new CalmClock()
  const stoppedAt = clock.now()
  try {
    await a.served.until(() => a.served.partitions.size === 0)
    await until('it holds nothing: the group may have been spread anew a moment before', () => !log.holds(TOPIC))
    const heldMs = clock.since(stoppedAt)
    assert.ok(heldMs <= sessionMs * 0.9, `held on for ${heldMs} ms`)
    await assert.rejects(log.commit(TOPIC, 0, commitOf(0, 1)), { code: 'PARTITION_FENCED' })
  } finally {
    process.kill(broker.pid, 'SIGCONT')
  }
  await a.served.until(() => a.served.partitions.size === 1)
  assert.ok(log.holds(TOPIC))
})

/** Another process that serves the only partition. */
async function otherProcess(of: Readonly<Record<string, unknown>>) {
  const child = fork(path(import.meta.dirname, 'join-until-killed.ts'), [JSON.stringify(of)])
  assert.deepEqual((await once(child, 'message'))[0], '+0')
  return child
}

test('the partitions of a killed process are served by another as soon as its session has ended', async () => {
  await using home = await kafkaHome()
  await using log = await home.open({ sessionTimeoutMs: SESSION_MS })
  await log.createTopic(TOPIC, 1)
  const child = await otherProcess({ brokers: home.connection.brokers, prefix: home.prefix, sessionTimeoutMs: SESSION_MS })
  const a = await join(log)
  child.kill('SIGKILL')
  const tookMs = await calmMs(() => a.served.until(() => a.served.partitions.size === 1))
  assert.ok(tookMs < SESSION_MS * 3, `${tookMs} ms`)
})

test('a process that is started again after a SIGKILL does not wait for the session of its former self', async () => {
  const folder = await mkdtemp(path(tmpdir(), 'tailrace-kafka-members-'))
  try {
    await using home = await kafkaHome()
    const options = { folder, sessionTimeoutMs: 60_000 }
    await using log = await home.open(options)
    await log.createTopic(TOPIC, 1)
    const child = await otherProcess({ brokers: home.connection.brokers, prefix: home.prefix, ...options })
    child.kill('SIGKILL')
    await using again = await home.open(options)
    const a = await join(again)
    await a.served.until(() => a.served.partitions.size === 1)
    await a.subscription[Symbol.asyncDispose]()
    assert.equal(await readFile(path(folder, 'kafka-members.json'), 'utf8'), '{}', 'nobody is left for the next one')
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
})

test('a group that can not be joined is told as trouble, and its end too', async () => {
  await using broker = await startKafka()
  await using home = await kafkaHome([broker.address])
  await using log = await home.open({ sessionTimeoutMs: SESSION_MS })
  await log.createTopic(TOPIC, 1)
  const a = await join(log)
  await a.served.until(() => a.served.partitions.size === 1)
  await broker.kill()
  await a.served.until(() => a.served.lastTrouble !== undefined)
  assert.equal((a.served.lastTrouble as { code?: string }).code, 'LOG_UNREACHABLE')
  await broker.start()
  await a.served.until(() => a.served.lastTrouble === undefined)
  await a.served.until(() => a.served.partitions.size === 1)
})
