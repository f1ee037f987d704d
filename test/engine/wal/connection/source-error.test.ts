import assert from 'node:assert/strict'
import { test } from 'node:test'
import { EngineError, type ErrorCode } from '../../../../engine/errors.ts'
import { courseAfter, toSourceError, type Course } from '../../../../engine/wal/connection/source-error.ts'
import { stateUnavailable } from '../../../../engine/state/asking.ts'

const failure = (code?: string) => Object.assign(new Error('in the words of the server'), code === undefined ? {} : { code })

test('what the server, the socket or the driver says is tried again, soon or with long pauses, unless a person has to act', () => {
  for (const [sqlstates, code, course] of [
    [[undefined, 'ECONNREFUSED', 'EPIPE', '08006', '53300', '53100', '57P01', '57P03', '57014'], 'SOURCE_UNREACHABLE', 'soon'],
    [['25006', '25P02', '40001', '40P01', '55000', '55P03', '58P01', '58030', 'XX000', 'XX001'], 'SOURCE_UNABLE', 'soon'],
    [['28P01', '28000', '3D000'], 'SOURCE_LOGIN_REFUSED', 'later'],
    [['42501'], 'SOURCE_REFUSED', 'stop'],
    [['0A000', '22012', '42P01', '42704', 'P0001', 'ZZ999'], 'SOURCE_FAILED', 'later'],
    [['55006'], 'SLOT_IN_USE', 'soon'],
    [['22021', '22P05'], 'SOURCE_ENCODING', 'stop'],
  ] satisfies [(string | undefined)[], ErrorCode, Course][])
    for (const sqlstate of sqlstates) {
      const error = toSourceError(failure(sqlstate), 'connecting')
      assert.deepEqual([error.code, courseAfter(error)], [code, course], sqlstate)
    }
})

test('a slot that can not be used is never concluded to be lost or missing: the next inspection looks', () => {
  for (const sqlstate of ['55000', '58P01', '42704']) assert.equal(toSourceError(failure(sqlstate), 'starting').code, 'SOURCE_UNABLE')
})

test('proven loss, memories that differ and what only a person changes stop a source; what is not known does not', () => {
  const stop = ['SLOT_MISSING', 'SLOT_LOST', 'SLOT_GAP', 'SOURCE_WENT_BACK', 'LOG_CHANGED', 'SLOT_TWO_PHASE', 'WAL_LEVEL_TOO_LOW'] as const
  for (const code of stop) assert.equal(courseAfter(new EngineError(code, '')), 'stop', code)
  for (const code of ['INTERNAL', 'MESSAGE_MALFORMED', 'PACK_MALFORMED', 'LOG_REFUSED', 'TLS_REFUSED'] as const)
    assert.equal(courseAfter(new EngineError(code, '')), 'later', code)
  assert.equal(courseAfter(new TypeError('x is undefined')), 'later')
  assert.equal(courseAfter(new EngineError('SOURCE_IN_RECOVERY', '')), 'soon')
})

test('the state database is waited for after all of these, and only a statement that it refuses is an error of ours', () => {
  for (const sqlstate of [
    undefined,
    'ECONNRESET',
    '08006',
    '25006',
    '28P01',
    '3D000',
    '40001',
    '40P01',
    '42501',
    '53300',
    '57P03',
    'XX000',
  ])
    assert.equal(stateUnavailable(failure(sqlstate))?.code, 'STATE_UNAVAILABLE', sqlstate)
  for (const sqlstate of ['23505', '22P02', '42P01', '0A000']) assert.equal(stateUnavailable(failure(sqlstate)), undefined, sqlstate)
})
