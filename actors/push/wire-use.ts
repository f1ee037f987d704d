import type { PushWire } from '../../sinks/push.ts'

/** A wire and the requests over it: it is closed when it is retired and the last of them has ended. */
export class WireUse {
  readonly wire: PushWire
  #open = 0
  #isRetired = false

  constructor(wire: PushWire) {
    this.wire = wire
  }

  begin(): void {
    this.#open++
  }

  end(): void {
    this.#open--
    this.#closeWhenDone()
  }

  retire(): void {
    this.#isRetired = true
    this.#closeWhenDone()
  }

  #closeWhenDone(): void {
    if (this.#isRetired && this.#open === 0) void this.wire.close()
  }
}
