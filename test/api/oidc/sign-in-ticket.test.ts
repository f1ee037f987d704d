import assert from 'node:assert/strict'
import { test } from 'node:test'
import { TICKET_SECONDS, Tickets } from '../../../api/oidc/sign-in-ticket.ts'
import { EngineError } from '../../../engine/errors.ts'

const BEGUN = { state: 'a-state', nonce: 'a-nonce', verifier: 'a-verifier' }
const isInvalid = (error: unknown) => error instanceof EngineError && error.code === 'OIDC_STATE_INVALID'

test('a ticket is opened for ten minutes, by processes with the same key, for the state that it was sealed with', (t) => {
  t.mock.timers.enable({ apis: ['Date'], now: 1_000 })
  const [tickets, same, other] = [5, 5, 6].map((byte) => new Tickets(Buffer.alloc(32, byte)))
  const sealed = tickets?.seal(BEGUN, 'https://tailrace.example/') ?? ''
  assert.deepEqual(same?.open(sealed, 'a-state'), { ...BEGUN, to: 'https://tailrace.example/', endsAt: 1_000 + TICKET_SECONDS * 1_000 })
  assert.doesNotMatch(Buffer.from(sealed, 'base64url').toString('latin1'), /verifier/)
  for (const [opened, state] of [
    [sealed, 'another'],
    [sealed, undefined],
    [undefined, 'a-state'],
    ['AAAA', 'a-state'],
  ] as const)
    // prettier-ignore
    assert.throws(() => tickets?.open(opened, state), isInvalid)
  assert.throws(() => other?.open(sealed, 'a-state'), isInvalid)
  t.mock.timers.tick(TICKET_SECONDS * 1_000)
  assert.equal(tickets?.open(sealed, 'a-state').nonce, 'a-nonce')
  t.mock.timers.tick(1)
  assert.throws(() => tickets?.open(sealed, 'a-state'), isInvalid)
})
