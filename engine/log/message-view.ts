/** Messages as whoever delivers them sees them, by their place in the view: those of a decoded pack, or one that was parked. */
import type { Part, Position } from '../position.ts'
import type { ActionCode } from './pack.ts'

export interface MessageView {
  /** keys and bodies lie in here, between the offsets of the accessors */
  readonly buffer: Buffer
  position(i: number): Position
  part(i: number): Part
  action(i: number): ActionCode
  flags(i: number): number
  relation(i: number): number
  /** hash of the message group, below 2^52 */
  group(i: number): number
  /** of its transaction, the lower 32 bits; 0: not known any more */
  xid(i: number): number
  /** µs since the epoch */
  commitTimeUs(i: number): number
  keyStart(i: number): number
  keyEnd(i: number): number
  /** empty: the group key is the key */
  groupKeyStart(i: number): number
  groupKeyEnd(i: number): number
  /** the message as JSON, its metadata left open */
  bodyStart(i: number): number
  bodyEnd(i: number): number
}
