import assert from 'node:assert/strict'
import { Writable } from 'node:stream'
import { test } from 'node:test'
import { DatabaseError } from 'pg'
import { EngineError } from '../../engine/errors.ts'
import { createLogger, type LogFormat, type Logger } from '../../engine/logger.ts'
import { redactText } from '../../engine/redaction.ts'

/** Appears in no output, wherever a trap hides it. */
const SECRET = 'hunter2X'

function logging(format: LogFormat): { log: Logger; lines: string[] } {
  const lines: string[] = []
  const destination = new Writable({ write: (chunk, _encoding, done) => (lines.push(String(chunk)), done()) })
  return { lines, log: createLogger({ level: 'trace', format, destination, base: { node: 'n1' } }) }
}

/** As the driver makes it: the detail holds a row's values. */
function databaseError(code: string, message: string): Error {
  const error = new DatabaseError(message, message.length, 'error')
  return Object.assign(error, {
    code,
    severity: 'ERROR',
    detail: `Key (email)=(${SECRET}) already exists.`,
    where: `COPY goods, line 1: "${SECRET}"`,
    table: 'goods',
    constraint: 'goods_pkey',
  })
}

class Throws {
  password = SECRET
  get broken(): string {
    throw new Error(SECRET)
  }
}
const circular: Record<string, unknown> = { token: SECRET }
circular['self'] = circular

const TRAPS: readonly (readonly [name: string, log: (log: Logger) => void])[] = [
  [
    'keys that name a secret',
    (log) =>
      log.info(
        {
          password: SECRET,
          apiKey: SECRET,
          api_key: SECRET,
          Authorization: SECRET,
          vault_key: SECRET,
          clientSecret: SECRET,
          set_cookie: SECRET,
        },
        'x',
      ),
  ],
  ['the same below', (log) => log.info({ connection: { deep: [{ pgPassword: SECRET }] } }, 'x')],
  ['a number as password', (log) => log.info({ password: 12345678, note: 'hunter' }, 'x')],
  ['headers', (log) => log.info({ headers: { authorization: `Bearer ${SECRET}`, cookie: SECRET } }, 'x')],
  ['a list of raw headers', (log) => log.info({ rawHeaders: ['Authorization', `Bearer ${SECRET}`] }, 'x')],
  ['a Map', (log) => log.info({ map: new Map([['token', SECRET]]) }, 'x')],
  ['bytes', (log) => log.info({ pack: Buffer.from(SECRET), view: new Uint8Array(Buffer.from(SECRET)) }, 'x')],
  ['the user part of a URL in a text', (log) => log.info(`connecting to postgresql://user:${SECRET}@pg.internal:5432/shop`)],
  ['a password with "@" and "/" in it', (log) => log.info(`to postgres://u:a/${SECRET}@b@host/db`)],
  ['a URL object', (log) => log.info({ url: new URL(`https://u:${SECRET}@host/`) }, 'x')],
  ['a Bearer token in a text', (log) => log.info(`sent Authorization: Bearer ${SECRET}`)],
  ['a connection string of keywords', (log) => log.info(`host=h password=${SECRET} dbname=d`)],
  ['a query string', (log) => log.info(`GET /x?api_key=${SECRET}&a=1`)],
  ['JSON in a text', (log) => log.info(`body {"user":"u","password":"${SECRET}"}`)],
  ['escaped JSON in a text', (log) => log.info(JSON.stringify(JSON.stringify({ password: SECRET })))],
  ['values of a format', (log) => log.info('user %s has %o', 'u', { password: SECRET })],
  ['an error as first argument', (log) => log.error(new Error(`cannot reach redis://:${SECRET}@host`))],
  [
    'the cause of an error',
    (log) => log.error({ err: new EngineError('INTERNAL', 'outer', {}, { cause: new Error(`password=${SECRET}`) }) }, 'x'),
  ],
  [
    'fields of an error',
    (log) => log.error({ err: Object.assign(new Error('x'), { config: { auth: SECRET }, body: SECRET, response: { data: SECRET } }) }, 'x'),
  ],
  ['an AggregateError', (log) => log.error(new AggregateError([new Error(`token: ${SECRET}`)], 'all failed'))],
  [
    'the stack of an error whose message has lines',
    (log) => log.error({ err: new Error(`x\n    at password=${SECRET}\nsecret: ${SECRET}`) }, 'x'),
  ],
  [
    'row values in the detail of a Postgres error',
    (log) => log.error(databaseError('23505', 'duplicate key value violates unique constraint "goods_pkey"')),
  ],
  [
    'row values in the message of a Postgres error',
    (log) => log.error({ err: databaseError('22P02', `invalid input syntax for type integer: "${SECRET}"`) }, 'x'),
  ],
  ['a Postgres error as cause', (log) => log.error(new EngineError('INTERNAL', 'x', {}, { cause: databaseError('22001', SECRET) }))],
  ['what a user’s trigger raised', (log) => log.error(databaseError('P0001', SECRET))],
  [
    'rows',
    (log) =>
      log.info({ record: { a: SECRET }, changes: { a: SECRET }, row: [SECRET], values: [SECRET], params: [SECRET], body: SECRET }, 'x'),
  ],
  [
    'bindings of a child',
    (log) =>
      log
        .child({ token: SECRET, url: `http://a:${SECRET}@h` })
        .child({ secret: SECRET })
        .info('x'),
  ],
  ['bindings set later', (log) => log.child({}).setBindings({ secret: SECRET })],
  ['a getter that throws', (log) => log.info({ thing: new Throws() }, 'x')],
  ['a circle', (log) => log.info(circular, 'x')],
  ['a symbol, a function, a bigint', (log) => log.info({ s: Symbol(SECRET), f: () => SECRET, b: 5n }, 'x')],
]

for (const format of ['json', 'console'] as const) {
  test(`nothing secret and no row value in a line, wherever it was (${format})`, () => {
    for (const [name, write] of TRAPS) {
      const { log, lines } = logging(format)
      write(log)
      const text = lines.join('')
      assert.ok(!text.includes(SECRET) && !text.includes('12345678'), `${name}: ${text}`)
      if (!name.startsWith('bindings set')) assert.equal(lines.length, 1, name)
    }
  })
}

test('what says where and why stays: sink, partition, position, code, table, constraint, counts', () => {
  const { log, lines } = logging('json')
  log
    .child({ sink: 'goods', partition: 3 })
    .warn({ position: { history: 1, lsn: 0x16b374d848n, idx: 4, part: 1 }, tokens: 3, bytes: 10 }, 'slow %d ms, 100%', 7)
  log.error(new EngineError('ACK_NOT_DURABLE', 'x', { sink: 'goods' }, { cause: databaseError('23505', 'duplicate key value') }))
  const [warning, error] = lines.map((line) => JSON.parse(line) as Record<string, unknown>)
  assert.deepEqual(
    { ...warning, timestamp: '' },
    {
      level: 'warn',
      timestamp: '',
      node: 'n1',
      sink: 'goods',
      partition: 3,
      position: '1:16/B374D848:4.1',
      tokens: 3,
      bytes: 10,
      message: 'slow 7 ms, 100%',
    },
  )
  assert.match(String(warning?.['timestamp']), /^\d{4}-\d\d-\d\dT.*Z$/)
  assert.equal(error?.['code'], 'ACK_NOT_DURABLE')
  const { context, cause, stack } = error?.['err'] as { context: unknown; cause: Record<string, unknown>; stack: string }
  assert.deepEqual([context, cause['code'], cause['constraint'], cause['table']], [{ sink: 'goods' }, '23505', 'goods_pkey', 'goods'])
  assert.match(stack, /^\s+at .*logger\.test\.ts/m)
})

test('the console shows one line of text, names and values, and the causes of an error below it', () => {
  const { log, lines } = logging('console')
  log.warn({ sink: 'my goods', partition: 3, code: 'X' }, 'evil\nWARN forged\u001b[31m')
  assert.match(lines[0] ?? '', /^\d\d:\d\d:\d\d\.\d{3} WARN  evil\\nWARN forged\\u001b\[31m  node=n1 sink="my goods" partition=3 code=X\n$/)
  log.error({ err: new EngineError('INTERNAL', 'outer', {}, { cause: new Error('inner') }) }, 'it broke')
  assert.match(
    lines[1] ?? '',
    /ERROR it broke  node=n1 code=INTERNAL\n  EngineError: outer code=INTERNAL context=\{\}\n\s+at [\s\S]*\n  caused by Error: inner\n\s+at /,
  )
})

test('a text without credentials stays as it is', () => {
  for (const text of [
    'tokens left: none',
    'a@b.example',
    'https://host/path?x=1',
    'file:///srv/@scope/x.ts',
    'at 16/B374D848, 5:30',
    'ratio=0.5 user=u',
  ]) {
    assert.equal(redactText(text), text)
  }
})

test('a value without bound has one in the log', () => {
  const { log, lines } = logging('json')
  let deep: unknown = 'end'
  for (let i = 0; i < 100_000; i++) deep = [deep]
  log.info({ long: 'x'.repeat(1_000_000), list: Array.from({ length: 10_000 }, (_, i) => i), deep }, 'x'.repeat(1_000_000))
  assert.ok((lines[0] ?? '').length < 30_000)
})
