/**
 * Passwords of users, kept as argon2id. Each takes 19 MB and some tens of milliseconds to make or to check, on a thread of Node's own: so
 * only two are at work at a time, and not many may wait.
 */
import { argon2, randomBytes, timingSafeEqual } from 'node:crypto'
import { promisify } from 'node:util'
import { EngineError } from '../errors.ts'

/** As OWASP recommends: 19 MiB of memory, two passes, one lane. */
const COST = { memory: 19_456, passes: 2, parallelism: 1 } as const
const SALT_BYTES = 16
const HASH_BYTES = 32
const AT_ONCE = 2
const MAX_WAITING = 50
const FORM = /^\$argon2id\$v=19\$m=(\d{1,8}),t=(\d{1,3}),p=(\d{1,3})\$([A-Za-z0-9+/]{11,86})\$([A-Za-z0-9+/]{22,86})$/

/** The shortest password that a user may choose. */
export const MIN_PASSWORD = 12
/** Longer ones are refused: hashing them would take time for nothing. */
export const MAX_PASSWORD = 256

const derive = promisify(argon2)
let running = 0
const waiting: (() => void)[] = []

/** Makes the text that is stored of a password. @throws EngineError SIGN_IN_BUSY */
export async function hashPassword(password: string): Promise<string> {
  const salt = randomBytes(SALT_BYTES)
  const made = await inTurn(() => derive('argon2id', { ...COST, message: password, nonce: salt, tagLength: HASH_BYTES }))
  const text = (bytes: Buffer) => bytes.toString('base64').replaceAll('=', '')
  return `$argon2id$v=19$m=${COST.memory},t=${COST.passes},p=${COST.parallelism}$${text(salt)}$${text(made)}`
}

/**
 * Tells whether a password is the one that is stored. @param stored undefined: there is no such user, which takes as long to tell
 * @throws EngineError SIGN_IN_BUSY
 */
export async function isPassword(password: string, stored: string | undefined): Promise<boolean> {
  const [, memory, passes, parallelism, salt = '', hash = ''] = FORM.exec(stored ?? '') ?? []
  const expected = hash === '' ? Buffer.alloc(HASH_BYTES) : Buffer.from(hash, 'base64')
  const cost = hash === '' ? COST : { memory: Number(memory), passes: Number(passes), parallelism: Number(parallelism) }
  const nonce = salt === '' ? Buffer.alloc(SALT_BYTES) : Buffer.from(salt, 'base64')
  const made = await inTurn(() => derive('argon2id', { ...cost, message: password, nonce, tagLength: expected.length }))
  return timingSafeEqual(made, expected) && hash !== ''
}

async function inTurn<T>(work: () => Promise<T>): Promise<T> {
  if (running >= AT_ONCE) {
    if (waiting.length >= MAX_WAITING) throw new EngineError('SIGN_IN_BUSY', 'too many passwords are being checked at the moment')
    await new Promise<void>((resolve) => waiting.push(resolve))
  } else running++
  try {
    return await work()
  } finally {
    const next = waiting.shift() // it takes the place of this one
    if (next) next()
    else running--
  }
}
