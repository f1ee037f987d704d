/**
 * Where functions will stand between the log and the dispatcher: a pack's messages come in, and what is to be
 * delivered of them goes out, under the same indexes. No function is set yet, so every pack passes as it is.
 */
import type { Pack } from '../engine/log/pack.ts'

export type Stage = (pack: Pack, signal: AbortSignal) => Promise<Pack> | Pack

export const identity: Stage = (pack) => pack
