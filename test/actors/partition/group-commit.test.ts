import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { GroupCommit } from '../../../actors/partition/group-commit.ts'

/** What became of a promise so far. */
function watch(promise: Promise<unknown>) {
  const seen = { is: 'waiting' }
  promise.then(
    () => (seen.is = 'durable'),
    (error: { code: string }) => (seen.is = error.code),
  )
  return seen
}

test('who joins while a write is under way is in the next one', async () => {
  const commits = new GroupCommit()
  const disk = Promise.withResolvers<void>()
  const early = watch(commits.join())
  const writing = commits.write(() => disk.promise)
  const late = watch(commits.join()) // what the write under way says was decided before
  assert.equal(commits.waiting, true)
  disk.resolve()
  await writing
  await nextTurn()
  assert.deepEqual([early.is, late.is], ['durable', 'waiting'])
  await commits.write(async () => undefined)
  await nextTurn()
  assert.equal(late.is, 'durable')
})

test('a repeated ack waits for the write under way and for the one that is gathered', async () => {
  const commits = new GroupCommit()
  const disk = Promise.withResolvers<void>()
  void commits.join()
  const writing = commits.write(() => disk.promise)
  const underWay = watch(commits.settled())
  void commits.join()
  const both = watch(commits.settled())
  await nextTurn()
  assert.deepEqual([underWay.is, both.is], ['waiting', 'waiting'])
  disk.resolve()
  await writing
  await nextTurn()
  assert.deepEqual([underWay.is, both.is], ['durable', 'waiting'])
  await commits.write(async () => undefined)
  await nextTurn()
  assert.equal(both.is, 'durable')
})

test('a write that fails refuses those that are in it, with a retry, and no others', async () => {
  const commits = new GroupCommit()
  const disk = Promise.withResolvers<void>()
  const failed = watch(commits.join())
  const writing = commits.write(() => disk.promise)
  const next = watch(commits.join())
  disk.reject(new Error('full'))
  await assert.rejects(writing, /full/)
  await nextTurn()
  assert.deepEqual([failed.is, next.is], ['ACK_NOT_DURABLE', 'waiting'])
  commits.fail(new Error('over'))
  await nextTurn()
  assert.equal(next.is, 'ACK_NOT_DURABLE')
})
