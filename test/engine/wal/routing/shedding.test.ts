/** What a reader makes of a log whose runs dropped messages at different moments, crashed, and overlapped. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { AckPending } from '../../../../engine/dispatch/ack-pending.ts'
import { commitPoint, committed } from '../../../../engine/dispatch/commits.ts'
import { newDispatcher } from '../../../../engine/dispatch/dispatcher.ts'
import { offer } from '../../../../engine/dispatch/intake.ts'
import { take } from '../../../../engine/dispatch/take.ts'
import { Pack } from '../../../../engine/log/pack.ts'
import { ORIGIN } from '../../../../engine/position.ts'
import { Packing } from '../../../../engine/wal/packing.ts'
import { Shedding } from '../../../../engine/wal/routing/shedding.ts'
import { Random } from '../../../faults/random.ts'

const SEEDS = 400
const MESSAGES = 60
const SINK = 'sink'
const TOPIC = 'stream.1'

/** One run of the source over positions 1 to MESSAGES: it appends, drops and confirms, until it ends or is left. */
class Run {
  readonly #packing: Packing
  readonly #shedding = new Shedding()
  readonly #random: Random
  readonly #log: Buffer[]
  readonly #dropped: Set<number>
  #next: number
  /** as far as it may confirm */
  durable: number

  constructor(from: number, term: number, shared: { random: Random; log: Buffer[]; dropped: Set<number> }) {
    this.#packing = new Packing({ source: 's', packBytes: 1_000_000, head: { history: 0, term, routing: 1 } })
    this.#next = from + 1
    this.durable = from
    this.#random = shared.random
    this.#log = shared.log
    this.#dropped = shared.dropped
  }

  get ended(): boolean {
    return this.durable === MESSAGES
  }

  step(): void {
    if (this.#random.chance(0.1)) this.#shedding.begin(SINK)
    if (this.#random.chance(0.1)) this.#shedding.end(SINK)
    if (this.#next <= MESSAGES) {
      const lsn = this.#next++
      if (this.#shedding.drops(SINK)) this.#dropped.add(lsn)
      else {
        const transaction = { lsn: BigInt(lsn), xid: lsn, commitTimeUs: lsn }
        const pack = this.#packing.pack(TOPIC, 0, transaction)
        pack.builder.bodies.ascii(`body of ${lsn}`)
        pack.builder.add(0, 1, 0, 1, 0, lsn % 5, 0, 0)
        this.#packing.added(pack, lsn)
      }
    }
    if (!this.#random.chance(0.3) && this.#next <= MESSAGES) return
    for (const { pack } of this.#packing.take({ position: ORIGIN })?.records ?? []) this.#log.push(pack)
    this.durable = this.#next - 1
  }
}

/** Everything a sink hands out of a log, in order. */
function deliveredOf(log: readonly Buffer[]): number[] {
  const restore = { commit: undefined, head: 0, parkedRefs: { offsets: [], indexes: [] }, parkedGroups: [] }
  const settings = { ackWaitMs: 1_000, maxDeliveries: null, windowBytes: 1 << 30 }
  const pending = new AckPending(1_000_000)
  const dispatcher = newDispatcher({
    generation: 1,
    partition: 0,
    settings,
    grouping: false,
    keyed: false,
    pending,
    restore,
    clock: () => 0,
  })
  for (const [offset, pack] of log.entries()) offer(dispatcher, offset, Pack.decode(pack))
  committed(dispatcher, commitPoint(dispatcher, 1))
  const batch = take(dispatcher, 1_000, { max: Infinity, overhead: 0, first: true })
  return (batch?.messages ?? []).map(({ view, place }) => Number(view.position(place).lsn))
}

test('whatever runs drop, repeat or append late, what comes is in order and once, and what is missing was dropped while the sink was full', () => {
  let missing = 0
  for (let seed = 1; seed <= SEEDS; seed++) {
    const random = new Random(seed)
    const shared = { random, log: [] as Buffer[], dropped: new Set<number>() }
    let confirmed = 0
    let run = new Run(0, 1, shared)
    let zombie: Run | undefined
    for (let term = 2; !run.ended;) {
      run.step()
      zombie?.step() // appends as long as it can; nothing it confirms counts any more
      if (random.chance(0.5)) confirmed = run.durable
      if (!random.chance(0.03)) continue
      zombie = random.chance(0.5) ? run : undefined // frozen and thawed, or dead
      run = new Run(confirmed, term++, shared)
    }
    const came = deliveredOf(shared.log)
    for (const [i, lsn] of came.entries()) assert.ok(i === 0 || lsn > (came[i - 1] as number), `seed ${seed}: ${lsn} after ${came[i - 1]}`)
    const had = new Set(came)
    for (let lsn = 1; lsn <= MESSAGES; lsn++) {
      if (had.has(lsn)) continue
      missing++
      assert.ok(shared.dropped.has(lsn), `seed ${seed}: ${lsn} is missing, and no run dropped it`)
    }
  }
  assert.ok(missing > SEEDS, 'the schedules dropped some')
})
