/** What `npm run house` counts, on small sources. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { figuresOf, sourceOf } from './house.ts'

const ONE = `
/** The head of the file. */
import { two } from '../b/two.ts'

/** A sentence of its own. */
export const one = two as number

export type OpenOptions = Readonly<{ a: () => void; b?: (() => void) | undefined; c: (x: number) => void; d(): void; e: string }>
export type FewOptions = Readonly<{ a: () => void; e: string }>

export class Outer {
  readonly #inner = { run: (x: number) => x, size: 1, stop: () => 0 }
  run(x: number): number {
    return this.#inner.run(x)
  }
  get size(): number {
    return this.#inner.size
  }
  stop(): number {
    return this.#inner.stop() + 1
  }
  other(x: number): number {
    return this.#inner.run(x)
  }
}
const names = ['a'] as const
`
const TWO = `import type { one } from '../a/one.ts'
export const two: unknown = 2
export type Three = typeof one
`
const TESTS = `
import { setTimeout as sleep } from 'node:timers/promises'
await sleep(300)
while (Math.random() < 1) await ask()
while (Math.random() < 1) count()
for (;;) await ask()
do await ask()
while (Math.random() < 1)
while (!signal.aborted) await work()
while (isFull) await gate.promise
for (let at = 0; ; at++) await ask(at)
`

test('every figure counts what it says it does, and says where it stands', () => {
  const product = [sourceOf('a/one.ts', ONE), sourceOf('b/two.ts', TWO)]
  const figures = Object.fromEntries(figuresOf(product, [sourceOf('test/a.test.ts', TESTS)]).map((figure) => [figure.name, figure]))
  assert.equal(figures['lines']?.value, '29')
  assert.deepEqual(figures['casts']?.found, ['a/one.ts:6 two as number'])
  assert.deepEqual(
    [figures['docs']?.value, figures['docs']?.found.map((line) => line.split(' ')[0])],
    ['17 % of 6', ['a/one.ts:8', 'a/one.ts:9', 'a/one.ts:11', 'b/two.ts:2', 'b/two.ts:3']],
  )
  assert.deepEqual(figures['callbacks']?.found, ['a/one.ts:8 OpenOptions: 4'])
  assert.deepEqual(
    figures['forwarders']?.found.map((line) => line.split(' ')[0]),
    ['a/one.ts:13', 'a/one.ts:16'],
  )
  assert.deepEqual(figures['folders']?.found, ['a and b'])
  assert.deepEqual(
    figures['waits']?.found.map((line) => line.split(' ')[0]),
    ['test/a.test.ts:3', 'test/a.test.ts:4', 'test/a.test.ts:6', 'test/a.test.ts:7'],
  )
})
