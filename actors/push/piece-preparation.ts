/**
 * What is done with a piece before it is sent: values that the log lacks are fetched, where the destination keeps documents, and
 * the sink's functions say what goes out and where. Of each message that isn't sent now somebody is told why.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { EngineError } from '../../engine/errors.ts'
import type { MessageView } from '../../engine/log/message-view.ts'
import type { Load } from '../../sinks/push.ts'
import { attemptOf, failureText, STATE, type FunctionStage, type StageOutcome } from '../../transforms/stage.ts'
import { groupsOf, partOf, type Piece } from './pieces.ts'
import type { HealthCheck } from '../../engine/status.ts'
import { areWhole, type Whole } from './whole-messages.ts'

export type PreparationOptions = Readonly<{
  /** the same messages with the values that the log lacks. @throws EngineError they can't be had now */
  complete: (piece: Piece, signal: AbortSignal) => Promise<Whole<Piece>>
  /** the functions of the sink, as they are now */
  stage: () => FunctionStage
  /** a message failed on its way to the destination, in a function or for want of a value; undefined: that works again */
  stageTrouble: (trouble: HealthCheck['error'] | undefined) => void
  grouping: boolean
  keyed: boolean
  /** deleted rows leave the destination */
  takesDeletes: () => boolean
}>

type PreparationEnds = Readonly<{
  /** deliverable as before */
  release: (piece: Piece) => void
  /** finished, and nobody's delivery */
  drop: (piece: Piece) => void
  /** nobody else is to blame: it counts against the messages themselves */
  fail: (piece: Piece, error: string, record: Readonly<Record<string, unknown>>) => void
  /** prepared, to be sent next */
  next: (pieces: readonly Piece[]) => void
}>

/** Functions can't be run, or values fetched, at the moment: so long before they are tried again. */
const RETRY_MS = 250

export class PiecePreparation {
  readonly #options: PreparationOptions
  readonly #ends: PreparationEnds

  constructor(options: PreparationOptions, ends: PreparationEnds) {
    this.#options = options
    this.#ends = ends
  }

  isNeeded(piece: Piece): boolean {
    return !piece.isStaged && (this.#options.keyed || !this.#options.stage().isIdle)
  }

  /** @returns what is to be sent now; undefined: nothing of it */
  async run(piece: Piece, signal: AbortSignal): Promise<Piece | undefined> {
    const whole = await this.#complete(piece, signal)
    return whole && this.#stage(whole, signal)
  }

  /** A destination that keeps documents gets whole ones. @returns undefined: nothing is to be sent now */
  async #complete(piece: Piece, signal: AbortSignal): Promise<Piece | undefined> {
    if (!this.#options.keyed || piece.isStaged || areWhole(piece)) return piece
    try {
      const { messages, whole, outdated, gone, tooLarge } = await this.#options.complete(piece, signal)
      if (tooLarge === undefined) this.#options.stageTrouble(undefined)
      else this.#failForSize(partOf(piece, [tooLarge]))
      const all = [...piece.views.keys()]
      if (outdated.length > 0) this.#ends.drop(partOf(piece, outdated))
      const behind = all.slice(tooLarge === undefined ? whole : tooLarge + 1)
      if (behind.length > 0) this.#ends.release(partOf(piece, behind))
      const kept = all.slice(0, whole).filter((i) => !outdated.includes(i))
      if (kept.length === 0) return undefined
      const some = kept.length === all.length ? messages : partOf(messages, kept)
      return gone.length === 0 ? some : { ...some, gone: new Set(gone.map((i) => messages.views[i] as MessageView)) }
    } catch (error) {
      return this.#putOff(piece, error, signal)
    }
  }

  #failForSize(piece: Piece): void {
    const code = 'ROW_TOO_LARGE'
    const message = 'the values that the update left out are more than MAX_MESSAGE_MB allows'
    this.#options.stageTrouble({ code, message })
    this.#ends.fail(piece, message, { at: new Date().toISOString(), counts: true, code, message })
  }

  /** It is none of the messages' fault, nor of the destination. */
  async #putOff(piece: Piece, error: unknown, signal: AbortSignal): Promise<undefined> {
    if (!signal.aborted)
      this.#options.stageTrouble({
        code: error instanceof EngineError ? error.code : 'INTERNAL',
        message: error instanceof Error ? error.message : String(error),
      })
    await delay(RETRY_MS, undefined, { signal: signal }).catch(() => undefined)
    this.#ends.release(piece)
  }

  /** Puts messages through the sink's functions. @returns what is to be sent now; what goes elsewhere is sent after it; undefined: nothing */
  async #stage(piece: Piece, signal: AbortSignal): Promise<Piece | undefined> {
    const { stage, stageTrouble, grouping, takesDeletes } = this.#options
    const functions = stage()
    if (piece.isStaged || functions.isIdle) return piece
    let outcome: StageOutcome
    try {
      outcome = await functions.run({ views: piece.views, places: piece.places })
    } catch (error) {
      return this.#putOff(piece, error, signal)
    }
    const blocked = new Set<number>()
    let isWorking = true
    const routeOfGroup = new Map<number, Load['route']>()
    const byRoute = new Map<Load['route'], number[]>()
    const dropped: number[] = []
    const behind: number[] = []
    for (const [i, group] of groupsOf(piece, grouping).entries()) {
      const state = outcome.stateOf(i)
      if (blocked.has(group) || state === STATE.left) behind.push(i)
      else if (state === STATE.dropped) dropped.push(i)
      // no function has to do with half a row, and the delete must not wait for it
      else if (state === STATE.failed && takesDeletes() && piece.gone?.has(piece.views[i] as MessageView)) dropped.push(i)
      else if (state === STATE.failed) {
        blocked.add(group)
        isWorking = false
        const failure = outcome.failureOf(i)
        stageTrouble({ code: failure.code, message: failureText(failure) })
        this.#ends.fail(partOf(piece, [i]), failureText(failure), attemptOf(failure, outcome.logsOf(i)))
      } else {
        const route = outcome.routeOf(i)
        if (routeOfGroup.has(group) && routeOfGroup.get(group) !== route) blocked.add(group) // one group goes one way at a time
        if (blocked.has(group)) behind.push(i)
        else {
          routeOfGroup.set(group, route)
          const chosen = byRoute.get(route)
          if (chosen) chosen.push(i)
          else byRoute.set(route, [i])
        }
      }
    }
    if (isWorking) stageTrouble(undefined)
    if (dropped.length > 0) this.#ends.drop(partOf(piece, dropped))
    if (behind.length > 0) this.#ends.release(partOf(piece, behind))
    const [first, ...others] = [...byRoute].map(([route, chosen]): Piece => {
      const payloads = chosen.map((i) => outcome.payloadOf(i))
      const enrichments = chosen.map((i) => outcome.enrichmentOf(i))
      return {
        ...partOf(piece, chosen),
        isStaged: true,
        ...(payloads.some((payload) => payload) && { payloads }),
        ...(enrichments.some((row) => row) && { enrichments }),
        ...(route && { route }),
      }
    })
    this.#ends.next(others)
    return first
  }
}
