/** Typed views of the columns of a pack's payload (pack.ts says what stands where). */
export class PackColumns {
  readonly n: number
  readonly group: Float64Array
  readonly lsn: BigUint64Array
  readonly commitTimeUs: Float64Array
  readonly xid: Uint32Array
  readonly transaction: Uint32Array
  readonly idx: Uint32Array
  readonly relation: Uint32Array
  readonly end: Uint32Array
  readonly keyLength: Uint32Array
  readonly groupKeyLength: Uint32Array
  readonly part: Uint8Array
  readonly action: Uint8Array
  readonly flags: Uint8Array
  /** offset of the bodies in the buffer */
  readonly bodies: number

  /** @param at where the payload begins; a multiple of 8 in the memory behind the buffer */
  constructor(buffer: Buffer, at: number, n: number, t: number) {
    const memory = buffer.buffer
    let p = buffer.byteOffset + at
    const take = (bytes: number) => {
      const start = p
      p += bytes
      return start
    }
    this.n = n
    this.group = new Float64Array(memory, take(8 * n), n)
    this.lsn = new BigUint64Array(memory, take(8 * t), t)
    this.commitTimeUs = new Float64Array(memory, take(8 * t), t)
    this.xid = new Uint32Array(memory, take(4 * t), t)
    this.transaction = new Uint32Array(memory, take(4 * n), n)
    this.idx = new Uint32Array(memory, take(4 * n), n)
    this.relation = new Uint32Array(memory, take(4 * n), n)
    this.end = new Uint32Array(memory, take(4 * n), n)
    this.keyLength = new Uint32Array(memory, take(4 * n), n)
    this.groupKeyLength = new Uint32Array(memory, take(4 * n), n)
    this.part = new Uint8Array(memory, take(n), n)
    this.action = new Uint8Array(memory, take(n), n)
    this.flags = new Uint8Array(memory, take(n), n)
    this.bodies = p - buffer.byteOffset
  }
}
