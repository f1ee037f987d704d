/**
 * One reader of a stream is edited in every way, and replayed, while processes are killed and stopped. Each kind of edit undoes what
 * it has done, so that the sink comes back to the stream of the others.
 */
import assert from 'node:assert/strict'
import { comparePlaces } from './oracle.ts'
import type { Scenario, ScenarioSink } from './scenario.ts'
import type { Service } from './service.ts'
import { CAPTURED } from './workload-tables.ts'
import { pass, until } from '../waiting.ts'

/** what the others take between one edit and the next */
export const MEANWHILE = 10
/** about twice as long as an edit takes */
const CUT_OFF_WITHIN_MS = 60

type Ask = (service: Service) => Promise<{ status: number; body: unknown }>

export class ReaderEdits {
  /** in the midst of an edit, by whether its answer had come */
  readonly kills = { answered: 0, unanswered: 0 }
  readonly #scenario: Scenario
  readonly #sink: ScenarioSink

  /** @param sink has all tables only at times */
  constructor(scenario: Scenario, sink: ScenarioSink) {
    this.#scenario = scenario
    this.#sink = sink
  }

  readonly kinds = {
    paused: () => this.#thereAndBack({ status: 'paused' }, { status: 'active' }),
    partitions: () => this.#thereAndBack({ partitions: 1 }, { partitions: this.#sink.partitions }),
    groups: () => this.#thereAndBack({ tables: [{ name: 'public.item', group_column_names: ['tenant'] }] }, { tables: [] }),
    keyChanges: () => this.#thereAndBack({ key_changes: 'delete_insert' }, { key_changes: 'update' }),
    disabled: () => this.#cutAndBack({ status: 'disabled' }, [], { status: 'active' }),
    selection: () => {
      const some = CAPTURED.slice(0, 2)
      return this.#cutAndBack({ source: { include_tables: some } }, some, { source: { include_tables: CAPTURED } })
    },
    replayed: () => this.#replay(),
    begunAnew: () => this.#again(),
  }

  /** It is disabled with a backlog, which gets a topic of its own and is delivered from there. The others must have no replay window. */
  async copied(): Promise<void> {
    const { state } = this.#scenario
    const { name } = this.#sink
    await this.#patch({ status: 'paused' })
    await this.#scenario.untilMore(MEANWHILE)
    await this.#scenario.cut(name, [], () => this.#patch({ status: 'disabled' }))
    await this.#meanwhile()
    await until('what it has left is copied', async () => {
      const rows = await state.query(
        `select from tailrace.generation g join tailrace.sink s on s.id = g.sink_id where s.name = $1 and g.drained_at is null and g.topic like 'copy.%'`,
        [name],
      )
      return rows.length > 0
    })
    await this.#scenario.cut(name, CAPTURED, () => this.#patch({ status: 'active' }))
  }

  get #path(): string {
    return `/api/sinks/${this.#sink.name}`
  }

  async #thereAndBack(there: object, back: object): Promise<void> {
    await this.#patch(there)
    await this.#meanwhile()
    await this.#patch(back)
  }

  async #cutAndBack(there: object, tables: readonly string[], back: object): Promise<void> {
    await this.#scenario.cut(this.#sink.name, tables, () => this.#patch(there))
    await this.#meanwhile()
    await this.#scenario.cut(this.#sink.name, CAPTURED, () => this.#patch(back))
  }

  async #replay(): Promise<void> {
    const { random } = this.#scenario
    const { name } = this.#sink
    await this.#scenario.resting(name, async () => {
      const oracle = this.#scenario.oracle(name)
      const newest = oracle.messages.toSorted(comparePlaces).slice(-200)
      if (newest.length === 0) return
      const { lsn } = random.pick(newest)
      const replay: Ask = (service) => service.post(`${this.#path}/replay`, { lsn: String(lsn) })
      await this.#cutOff(replay)
      const status = await this.#untilAnswered(replay)
      assert.equal(status, 200)
      oracle.setBack(lsn)
    })
  }

  async #again(): Promise<void> {
    const { ack_wait_ms, name, partitions } = this.#sink
    const sink = { name, ack_wait_ms, partitions, database: 'source', source: { include_tables: CAPTURED } }
    await this.#scenario.resting(name, async () => {
      assert.equal(await this.#untilAnswered((service) => service.delete(this.#path)), 200)
      await this.#meanwhile()
      this.#scenario.begunAnew(this.#sink)
      await this.#scenario.cut(name, CAPTURED, async () => {
        const status = await this.#untilAnswered((service) =>
          service.post('/api/sinks', { ...sink, destination: { type: 'sequin_stream' } }),
        )
        assert.equal(status, 200)
      })
    })
  }

  async #patch(changes: object): Promise<void> {
    const patch: Ask = (service) => service.patch(this.#path, changes)
    await this.#cutOff(patch)
    assert.equal(await this.#untilAnswered(patch), 200)
  }

  /** A process, be it the one that was asked, may die anywhere between the request and some time after its answer. */
  async #cutOff(ask: Ask): Promise<void> {
    const { nodes, random } = this.#scenario
    if (random.weighted({ kill: 1, none: 3 }) === 'none') return
    const asked = ask(random.pick(nodes)).then(
      () => this.kills.answered++,
      () => this.kills.unanswered++,
    )
    await pass(random.int(0, CUT_OFF_WITHIN_MS), 'a process dies at any moment of it')
    const victim = random.pick(nodes)
    await victim.kill()
    await asked
    this.#scenario.checkSoFar()
    await victim.startReady()
  }

  /** @returns the status, when it is no longer to try again */
  async #untilAnswered(ask: Ask): Promise<number> {
    const { nodes, random } = this.#scenario
    let last = ''
    return until(
      () => `an answer other than to try again: ${last}`,
      async () => {
        const { status, body } = await ask(random.pick(nodes))
        last = `${status} ${JSON.stringify(body)}`
        assert.ok([200, 409, 503].includes(status), last)
        return status === 200 && status
      },
    )
  }

  /** A process may die, or be stopped, and the others go on. */
  async #meanwhile(): Promise<void> {
    const { nodes, random } = this.#scenario
    const fault = random.weighted({ kill: 1, stop: 1, none: 3 })
    if (fault !== 'none') {
      const victim = random.pick(nodes)
      await pass(random.int(0, 300), 'a process ends at any moment of it')
      if (fault === 'kill') await victim.kill()
      else await victim.stop()
      this.#scenario.checkSoFar()
      await victim.startReady()
    }
    await this.#scenario.untilMore(MEANWHILE)
  }
}
