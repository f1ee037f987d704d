/** Functions to run in a real sandbox: one pool for a test file, and what a message is to it. */
import type { AccountPool, FunctionBatch } from '../../transforms/sandbox/pool.ts'
import { FunctionPool, type PoolSettings } from '../../transforms/sandbox/pool.ts'
import type { SandboxKind } from '../../engine/state/function-kinds.ts'
import type { Callable } from '../../transforms/sandbox/sandbox.ts'

export const MEMORY_MB = 512

export function pool(settings: Partial<PoolSettings> = {}): FunctionPool & AccountPool & AsyncDisposable {
  const made = new FunctionPool({ threads: 2, memoryMb: MEMORY_MB, ...settings })
  const { run, test, check } = made.of('mine')
  return Object.assign(made, { run, test, check, [Symbol.asyncDispose]: () => made.stop() })
}

export const fn = (code: string, kind: SandboxKind = 'transform', name = 'mine'): Callable => ({
  key: `${kind}:${code}`,
  name,
  kind,
  code,
})

export const TAIL = {
  database_name: 'shop',
  consumer: { id: 'c1', name: 'sink', annotations: { team: 'search' } },
  database: { id: 'd1', name: 'shop', annotations: {}, database: 'shop_production', hostname: 'pg.internal' },
}

export type Given = Readonly<{ record?: unknown; changes?: unknown; action?: string; metadata?: unknown }>

export function batch(messages: readonly Given[]): FunctionBatch {
  return batchOf(
    messages.map(({ record = {}, changes = null, action = 'insert', metadata = { table_name: 'goods' } }) =>
      JSON.stringify({ record, changes, action, metadata }),
    ),
  )
}

/** @param texts messages as JSON, for what JSON.stringify can't write */
export function batchOf(texts: readonly string[]): FunctionBatch {
  const lines = Buffer.from(texts.map((text) => `${text}\u001e`).join(''))
  const lineEnds = new Uint32Array(texts.length)
  for (let i = 0, at = 0; i < texts.length; i++) at = lineEnds[i] = lines.indexOf(0x1e, at) + 1
  return { count: texts.length, lines, lineEnds, tail: JSON.stringify(TAIL) }
}

export const rows = (count: number, from = 1): Given[] => Array.from({ length: count }, (_, i) => ({ record: { id: from + i } }))
