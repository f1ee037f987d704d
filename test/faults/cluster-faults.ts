/**
 * What may befall a cluster of processes on Kafka, each fault with its end: what is away takes over nothing, the others go
 * on without it, and it comes back. Who holds what is asked of the processes themselves.
 */
import type { TestBroker } from '../services/kafka.ts'
import type { Random } from './random.ts'
import type { Scenario } from './scenario.ts'
import type { Service } from './service.ts'
import { pass, until } from '../waiting.ts'

export const FAULTS = {
  sourceKilled: 'SIGKILL of the process that holds the source',
  ownerKilled: 'SIGKILL of a process that holds sink partitions',
  brokerKilled: 'SIGKILL of the broker',
  sourceFrozen: "the source's process stands still until another streams, and sinks are edited meanwhile",
  ownerFrozen: 'a process stands still until others serve its partitions',
  terminated: 'SIGTERM of a process',
} as const
export type Fault = keyof typeof FAULTS

/** Messages that each sink has to deliver while something is away. */
const MEANWHILE = 20

/** What a process holds, as it says itself. */
export type Holding = Readonly<{ service: Service; source: boolean; partitions: number }>

export class ClusterFaults {
  readonly #scenario: Scenario
  readonly #broker: TestBroker
  /** how often each fault has happened */
  readonly happened: Partial<Record<Fault, number>> = {}
  /** what was done when, for failures */
  readonly journal: string[] = []

  constructor(scenario: Scenario, broker: TestBroker) {
    this.#scenario = scenario
    this.#broker = broker
  }

  /** Settles when it is survived and mended. @throws what the scenario throws, when something stands still or is wrong */
  async happen(fault: Fault): Promise<void> {
    this.happened[fault] = (this.happened[fault] ?? 0) + 1
    await this.#do(fault)
    this.#scenario.checkSoFar()
  }

  async #do(fault: Fault): Promise<void> {
    const { nodes, random, clock } = this.#scenario
    switch (fault) {
      case 'sourceKilled':
        return this.#killed(await this.#source())
      case 'ownerKilled':
        return this.#killed(await this.#owner())
      case 'brokerKilled':
        this.#note('kill the broker')
        await this.#broker.kill()
        if (random.chance(0.5)) await pass(random.int(50, 1_000), 'it is away for a while')
        return this.#broker.start()
      case 'sourceFrozen': {
        const source = await this.#source()
        return this.#frozen(source, async (others) => {
          const editor = random.pick(others)
          if (random.chance(0.8)) await this.#scenario.edit(editor)
          await until('another process streams', async () => (await holdings(others)).some((one) => one.source), { clock })
          if (random.chance(0.5)) await this.#scenario.edit(editor)
        })
      }
      case 'ownerFrozen': {
        const owner = await this.#owner()
        const all = await partitions(nodes)
        return this.#frozen(owner, (others) =>
          until('others serve its partitions', async () => (await partitions(others)) >= all, { clock }),
        )
      }
      case 'terminated': {
        const node = random.pick(nodes)
        this.#note(`stop ${this.#nameOf(node)}`)
        await node.stop()
        return node.startReady()
      }
    }
  }

  async #killed(node: Service): Promise<void> {
    this.#note(`kill ${this.#nameOf(node)}`)
    await node.kill()
    this.#scenario.checkSoFar()
    if (this.#scenario.random.chance(0.5)) await this.#scenario.untilMore(MEANWHILE)
    await node.startReady()
  }

  async #frozen(node: Service, meanwhile: (others: readonly Service[]) => Promise<unknown>): Promise<void> {
    this.#note(`freeze ${this.#nameOf(node)}`)
    node.freeze()
    await meanwhile(this.#scenario.nodes.filter((other) => other !== node))
    await this.#scenario.untilMore(MEANWHILE)
    this.#note(`thaw ${this.#nameOf(node)}`)
    node.thaw()
    await node.untilReady()
  }

  #note(what: string): void {
    this.journal.push(`${new Date().toISOString()} ${what}`)
  }

  #nameOf(node: Service): string {
    return `process ${this.#scenario.nodes.indexOf(node)} (pid ${node.pid})`
  }

  async #source(): Promise<Service> {
    const { nodes, clock } = this.#scenario
    const found = async () => (await holdings(nodes)).find((one) => one.source)
    return (await until('a process streams', found, { clock })).service
  }

  /** One that holds partitions, and not the source, if there is one. */
  async #owner(): Promise<Service> {
    const { nodes, random, clock } = this.#scenario
    const found = async () => {
      const holding = (await holdings(nodes)).filter((one) => one.partitions > 0)
      return holding.length > 0 && holding
    }
    const owners = await until('a process serves partitions', found, { clock })
    const others = owners.filter((one) => !one.source)
    return random.pick(others.length > 0 ? others : owners).service
  }
}

/** Every fault as often as it is wanted, in an order made by the seed. */
export function schedule(random: Random, counts: Readonly<Partial<Record<Fault, number>>>): Fault[] {
  const faults = Object.entries(counts).flatMap(([fault, count]) => Array.from({ length: count }, () => fault as Fault))
  for (let left = faults.length; left > 1; left--) {
    const at = random.int(0, left - 1)
    ;[faults[at], faults[left - 1]] = [faults[left - 1] as Fault, faults[at] as Fault]
  }
  return faults
}

type Info = Readonly<{
  nodes: readonly Readonly<{
    name: string
    sources: readonly unknown[]
    partitions: readonly Readonly<{ sink: string | null }>[]
    actors: readonly Readonly<{ kind: string; state: string }>[]
  }>[]
}>

/** What the processes hold that answer at once: each is asked for itself. @param sink whose partitions count; absent: all */
export async function holdings(services: readonly Service[], sink?: string): Promise<Holding[]> {
  const asked = services.map(async (service): Promise<Holding | undefined> => {
    try {
      const { status, body } = await service.get('/info')
      const own = status === 200 ? (body as Info).nodes.find(({ name }) => name.endsWith(`/${service.pid}`)) : undefined
      if (!own) return undefined
      const source = own.actors.some(({ kind, state }) => kind === 'source' && state === 'streaming')
      return { service, source, partitions: own.partitions.filter((each) => sink === undefined || each.sink === sink).length }
    } catch {
      return undefined // it is starting, or away
    }
  })
  return (await Promise.all(asked)).filter((one) => one !== undefined)
}

async function partitions(services: readonly Service[]): Promise<number> {
  return (await holdings(services)).reduce((sum, one) => sum + one.partitions, 0)
}
