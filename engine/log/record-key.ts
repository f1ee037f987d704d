/**
 * The key of a record in the embedded log: topic u32 · partition u16 · offset u64 · size u32 · shares u32, big-endian, so that keys
 * sort by offset. It ends with the record's size and what shares of it are of one action, so that what is freed or kept can be
 * weighed without reading the values. Former versions wrote no shares.
 */
import { weightOf, type Weight } from './weight.ts'

const KEY_BYTES = 22
const SHARES_AT = 18

/** Makes the key of a record. @param topic its number */
export function recordKey(topic: number, partition: number, offset: number, size: number, shares: number): Buffer {
  const key = Buffer.allocUnsafe(KEY_BYTES)
  key.writeUInt32BE(topic, 0)
  key.writeUInt16BE(partition, 4)
  key.writeUIntBE(Math.floor(offset / 2 ** 32), 6, 4)
  key.writeUInt32BE(offset % 2 ** 32, 10)
  key.writeUInt32BE(size, 14)
  key.writeUInt32BE(shares, SHARES_AT)
  return key
}

/** Makes the range of keys from one offset up to another. */
export const recordRange = (topic: number, partition: number, from: number, before: number) => ({
  start: recordKey(topic, partition, from, 0, 0),
  end: recordKey(topic, partition, before, 0, 0),
})

/** Reads the offset from a key. */
export const offsetOf = (key: Buffer): number => key.readUInt32BE(6) * 2 ** 32 + key.readUInt32BE(10)
const sizeOf = (key: Buffer): number => key.readUInt32BE(14)
/** Reads from its key what a record weighs. */
export const weightOfKey = (key: Buffer): Weight => weightOf(sizeOf(key), key.length > SHARES_AT ? key.readUInt32BE(SHARES_AT) : 0)
