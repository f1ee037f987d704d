/**
 * What a sandbox says to the engine, checked where it comes in: code that got out of its isolate could say anything. Threads only
 * write these, so they take the types from here and load nothing.
 */
import { Type, type Static } from 'typebox'
import { isObject } from '../../engine/json.ts'
import { schemaCheck } from '../../engine/schema-check.ts'

const Count = Type.Integer({ minimum: 0 })
const Place = { line: Type.Optional(Type.Number()), column: Type.Optional(Type.Number()) }

const Failure = Type.Object({
  message: Count,
  step: Count,
  code: Type.Union([
    Type.Literal('FUNCTION_FAILED'),
    Type.Literal('FUNCTION_TIMEOUT'),
    Type.Literal('FUNCTION_MEMORY'),
    Type.Literal('FUNCTION_INVALID'),
  ]),
  /** such as `TypeError: …`, as the function threw it */
  text: Type.String(),
  ...Place,
})
/** Why a function could not finish a message of a call. */
export type MessageFailure = Static<typeof Failure>

const Ready = Type.Object({ type: Type.Literal('ready') })
const Checked = Type.Object({
  type: Type.Literal('checked'),
  call: Count,
  failure: Type.Optional(Type.Object({ message: Type.String(), ...Place })),
})
const Ran = Type.Object({
  type: Type.Literal('ran'),
  call: Count,
  /** how many messages, from the first */
  done: Count,
  /** of each function, µs */
  tookUs: Type.Array(Type.Number()),
  failures: Type.Array(Failure),
  /** what was printed: message, function, texts */
  logs: Type.Array(Type.Tuple([Count, Count, Type.Array(Type.String())])),
  /**
   * The body: for each function that gives results, in their order, where the result of each message begins and ends in
   * its text (u32 × count, u32 × count), then a state for each message (u8 × count), then those texts.
   */
  textBytes: Type.Array(Count),
  /** resident size of the sandbox, bytes */
  resident: Type.Number(),
})
const Killed = Type.Object({ type: Type.Literal('killed'), reason: Type.Union([Type.Literal('time'), Type.Literal('memory')]) })

/** What came of a run. */
export type RunResponse = Static<typeof Ran>
/**
 * ready: a thread takes requests · checked: the body is the JavaScript to keep · killed: the process ends itself, the only thing that it
 * says itself
 */
export type Response = Static<typeof Ready> | Static<typeof Checked> | RunResponse | Static<typeof Killed>

/** The checks by type, for that of a union would try each. */
const CHECKS = { ready: schemaCheck(Ready), checked: schemaCheck(Checked), ran: schemaCheck(Ran), killed: schemaCheck(Killed) } as const

/** Reads what a sandbox says. @throws RangeError: it is none of these */
export function responseOf(text: string): Response {
  const said: unknown = JSON.parse(text)
  const { type } = isObject(said) ? said : {}
  for (const [name, check] of Object.entries(CHECKS)) if (name === type && check(said)) return said
  throw new RangeError('what a sandbox said is no answer')
}
