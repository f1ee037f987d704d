/** Renders one value outside of a row, for tests. */
import { ByteWriter } from '../../../../engine/byte-writer.ts'
import { rendererOf, type TimestampFormat } from '../../../../engine/wal/decode/render.ts'
import type { ValueType } from '../../../../engine/wal/decode/value-type.ts'

/** The JSON text of a value that Postgres prints as `text`. It lies between other bytes, so that reading too far shows. */
export function rendered(type: ValueType, text: string | Uint8Array, format: TimestampFormat = 'iso8601'): string {
  return renderedBytes(type, text, format).toString('utf8')
}

export function renderedBytes(type: ValueType, text: string | Uint8Array, format: TimestampFormat = 'iso8601'): Buffer {
  const value = Buffer.from(text)
  const chunk = Buffer.concat([Buffer.from('"}7'), value, Buffer.from('7,"}')])
  const out = new ByteWriter(16) // small: growing is part of what is tested
  out.ascii('before')
  rendererOf(type, format)(out, new DataView(chunk.buffer, chunk.byteOffset, chunk.length), 3, 3 + value.length)
  return Buffer.from(out.view().subarray(6))
}
