/**
 * Memory that is warm when a drain begins. The host of a virtual machine takes memory back that the machine has freed, and the
 * first touch of each such page then costs nine times as much as usual (measured: 14.5 µs instead of 1.7): who writes files or
 * grows its heap pays for what was free for long, and two runs differ by half of their CPU.
 *
 * So this process touches some gigabytes before a drain, and lets go of them bit by bit while it runs: what was freed last is
 * taken first, and before the host has it back. On a machine of its own it changes nothing.
 */
import { setImmediate } from 'node:timers/promises'

const MB = 2 ** 20
const BLOCK_BYTES = 64 * MB
const BLOCKS = 48
/** 256 MB a second: more than a drain takes */
const GIVE_BACK_EVERY_MS = 250
/** With less memory free it would take what the measured processes need. */
const NEEDED_BYTES = 8 * 1024 * MB

/** Whether there is so much memory that some can be held for a while. */
export const canWarm = (): boolean => process.availableMemory() >= NEEDED_BYTES

export class WarmMemory implements Disposable {
  readonly #blocks: ArrayBuffer[] = []
  #timer: NodeJS.Timeout | undefined

  /** Takes seconds, ten of them when all of it is with the host. */
  static async touch(): Promise<WarmMemory> {
    const memory = new WarmMemory()
    while (memory.#blocks.length < BLOCKS) {
      const block = new ArrayBuffer(BLOCK_BYTES)
      new Uint8Array(block).fill(1)
      memory.#blocks.push(block)
      await setImmediate() // whatever else waits
    }
    return memory
  }

  /** A block now, and one after the other from then on. */
  giveBack(): void {
    this.#free()
    this.#timer ??= setInterval(() => this.#free(), GIVE_BACK_EVERY_MS)
  }

  #free(): void {
    this.#blocks.pop()?.transfer(0) // at once; the garbage collector would come when it likes
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer)
    while (this.#blocks.length > 0) this.#free()
  }
}
