/**
 * One embedded log for all nodes of a test that share a state database, each partition served by the node that asked
 * first: what Kafka is to a cluster, without a broker. A node in a process of its own has a log of its own, which is
 * enough for whatever is about sources and configuration.
 */
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { openEmbeddedLog } from '../../engine/log/embedded.ts'
import type { AssignmentListener, Log, TopicName } from '../../engine/log/log.ts'
import { WatchedLog } from '../engine/wal/source-fixture.ts'

type Home = { readonly log: Log; readonly folder: string; users: number; readonly subscribers: Map<TopicName, Subscriber[]> }
type Subscriber = { readonly listener: AssignmentListener; held: AsyncDisposable | undefined }

const homes = new Map<string, Promise<Home>>()

async function newHome(): Promise<Home> {
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-log-'))
  return { log: await openEmbeddedLog(folder, { reserveBytes: () => 0 }), folder, users: 0, subscribers: new Map() }
}

/** @param name of what the nodes share */
export async function sharedLog(name: string): Promise<WatchedLog> {
  let opening = homes.get(name)
  if (!opening) homes.set(name, (opening = newHome()))
  const home = await opening
  home.users++
  return new SharedLog(name, home)
}

class SharedLog extends WatchedLog {
  readonly #name: string
  readonly #home: Home

  constructor(name: string, home: Home) {
    super(home.log)
    this.#name = name
    this.#home = home
  }

  override get identity(): string {
    return 'shared'
  }

  override subscribe: Log['subscribe'] = async (topic, listener) => {
    const { subscribers } = this.#home
    const queue = subscribers.get(topic) ?? []
    subscribers.set(topic, queue)
    const subscriber: Subscriber = { listener, held: undefined }
    queue.push(subscriber)
    await this.#serve(topic, queue)
    return {
      [Symbol.asyncDispose]: async () => {
        queue.splice(queue.indexOf(subscriber), 1)
        await subscriber.held?.[Symbol.asyncDispose]()
        await this.#serve(topic, queue)
      },
    }
  }

  /** Gives a topic to the first in the queue, unless it has it. */
  async #serve(topic: TopicName, [first]: readonly Subscriber[]): Promise<void> {
    if (first && !first.held) first.held = await this.#home.log.subscribe(topic, first.listener)
  }

  override async [Symbol.asyncDispose](): Promise<void> {
    if (--this.#home.users > 0) return
    homes.delete(this.#name)
    await super[Symbol.asyncDispose]()
    await rm(this.#home.folder, { recursive: true, force: true })
  }
}
