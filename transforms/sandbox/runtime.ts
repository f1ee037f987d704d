/**
 * What runs inside an isolate, around the user's function. It reaches the isolate as text (`runtime.toString()`), so it
 * uses nothing from outside, and nothing that user code could replace: what it needs of the language is taken here, before
 * any user code runs. It gives the user no reference to anything outside the isolate.
 *
 *  - Input is one string, JSON and a record separator a message; output one string, a line a message in their order:
 *    `+` and the result as JSON · `1` kept, `0` dropped · `-` and the failure as JSON. `#` and a list of texts, before the
 *    line it belongs to: what the function printed.
 *  - A message is parsed when its turn comes: one run of a function can't touch the arguments of another, and a collection of
 *    the young generation finds few of them alive.
 *  - Integers beyond ±2^53 are BigInt in the arguments, and a BigInt becomes its digits in the result: they come in as strings
 *    that begin with a mark (`long-integers.ts`).
 */
import type { FUNCTION_KINDS, SandboxKind } from '../../engine/state/function-kinds.ts'

type Answers = (typeof FUNCTION_KINDS)[SandboxKind]['answers']

/** What the runtime gives to the host. */
export type Runtime = Readonly<{
  /** Takes the user's function. @param answers what it may answer @param noun what errors call it @returns '' or what is wrong with it */
  attach: (fn: unknown, answers: Answers, noun: string) => string
  /**
   * Not one named object: what crosses into an isolate crosses cheaply when it is primitive.
   * @param tail rest of the metadata, the same for all; @param from first message to run; @param until ms since the epoch
   * @param maxResult characters of one result; @param maxOut it ends when its lines have so many
   * @param longIntegers where integers are quoted: names of members as a JSON list, `anywhere` or `nowhere`
   * @returns the lines, behind a `.`, or `!` when messages are left
   */
  run: (lines: string, tail: string, from: number, until: number, maxResult: number, maxOut: number, longIntegers: string) => string
  /** Gives the lines of a run that was cut off, and forgets them. */
  rest: () => string
}>

/** Sets up the isolate that it runs in. @param mark what quoted integers begin with */
export function runtime(mark: string): Runtime {
  const { parse, stringify, rawJSON } = JSON
  const { now } = Date
  const { isFinite: isFiniteNumber } = Number
  const { isArray } = Array
  const { defineProperty, hasOwn, keys: ownKeys } = Object
  const { deleteProperty } = Reflect
  const BigIntOf = BigInt
  const Failure = Error
  const WrongType = TypeError
  const { call } = Function.prototype
  const indexOf: (text: string, wanted: string, from?: number) => number = call.bind(String.prototype.indexOf)
  const slice: (text: string, from: number, to?: number) => string = call.bind(String.prototype.slice)
  const exec: (re: RegExp, text: string) => RegExpExecArray | null = call.bind(RegExp.prototype.exec)
  const bigintText: (value: bigint, radix?: number) => string = call.bind(BigInt.prototype.toString)
  const functionText: (value: unknown) => string = call.bind(Function.prototype.toString)

  /** as MESSAGE_END in wire.ts has it */
  const END = '\u001e'
  /** What comes in from outside stands outside the heap, where nothing counts it, until the heap is collected. */
  const COLLECT_AFTER = 16_000_000
  const MAX_LINES = 50
  const MAX_LINE = 1000
  const MAX_TEXT = 2000

  // ── globals: what is taken away, and what is given ────────────────────────────────────────────────

  const { gc: collect } = globalThis
  for (const name of ['gc', 'WebAssembly', 'SharedArrayBuffer', 'Atomics', 'FinalizationRegistry', 'WeakRef'])
    if (!deleteProperty(globalThis, name)) defineProperty(globalThis, name, { value: undefined, writable: false })
  const give = (target: object, name: string, value: unknown) =>
    defineProperty(target, name, { value, writable: true, configurable: true, enumerable: false })
  let isShowing = false
  const refuse = (what: string, advice = '') => ({
    toJSON(key: string) {
      if (isShowing) return `[${what}]`
      throw new WrongType(`the result ${key === '' ? 'is' : 'holds'} ${what}${key === '' ? '' : ` at ${stringify(key)}`}${advice}`)
    },
  })
  give(
    BigInt.prototype,
    'toJSON',
    {
      toJSON(this: bigint) {
        return rawJSON(bigintText(this))
      },
    }.toJSON,
  )
  give(Function.prototype, 'toJSON', refuse('a function').toJSON)
  give(Promise.prototype, 'toJSON', refuse('a promise', ': a function returns its result itself, it can not wait').toJSON)
  // JSON would write {} and lose what they hold
  give(Map.prototype, 'toJSON', refuse('a Map', ', which JSON has no form for: Object.fromEntries(map) makes an object of it').toJSON)
  give(Set.prototype, 'toJSON', refuse('a Set', ', which JSON has no form for: [...set] makes a list of it').toJSON)

  let logs: string[] = []
  let logged = 0
  const shown = (value: unknown): string => {
    if (typeof value === 'string') return value
    if (typeof value === 'function') return '[function]'
    if (value instanceof Failure) return `${value.name}: ${value.message}`
    isShowing = true
    try {
      return stringify(value) ?? String(value)
    } catch {
      return '[can not be shown]'
    } finally {
      isShowing = false
    }
  }
  const log = (...args: unknown[]): void => {
    if (logged++ >= MAX_LINES) return
    let line = ''
    for (let i = 0; i < args.length && line.length <= MAX_LINE; i++) line += (i > 0 ? ' ' : '') + shown(args[i])
    logs[logs.length] = line.length > MAX_LINE ? `${slice(line, 0, MAX_LINE)}…` : line
  }
  const console = {}
  for (const name of ['log', 'info', 'warn', 'error', 'debug']) give(console, name, (...args: unknown[]) => log(...args))
  give(globalThis, 'console', console)

  // ── arguments ─────────────────────────────────────────────────────────────────────────────────────

  const isObject = (value: unknown): value is Record<string, unknown> => typeof value === 'object' && value !== null
  const [first] = mark
  const restored = (value: unknown): unknown => {
    if (typeof value === 'string') return value[0] === first && indexOf(value, mark) === 0 ? BigIntOf(slice(value, mark.length)) : value
    if (isArray(value)) for (let i = 0; i < value.length; i++) value[i] = restored(value[i])
    else if (isObject(value)) {
      const keys = ownKeys(value)
      for (let i = 0; i < keys.length; i++) {
        const key = keys[i] ?? ''
        const inner = value[key]
        const now = restored(inner)
        if (now !== inner) value[key] = now // its own, so no setter is met
      }
    }
    return value
  }
  type Message = { action: string; record: unknown; changes: unknown; metadata?: Record<string, unknown> }
  const restoredIn = (holder: unknown, keys: readonly string[]): void => {
    if (!isObject(holder)) return
    for (let i = 0; i < keys.length; i++) {
      const key = keys[i] ?? ''
      const inner = hasOwn(holder, key) ? holder[key] : undefined
      if (typeof inner === 'string') holder[key] = restored(inner)
    }
  }
  /** @param keys undefined: at any depth */
  const parsed = (text: string, hasLongIntegers: boolean, keys: readonly string[] | undefined): Message => {
    const m: Message = parse(text)
    if (!hasLongIntegers || indexOf(text, mark) < 0) return m
    if (keys === undefined) restored(m)
    else {
      restoredIn(m.record, keys)
      restoredIn(m.changes, keys)
      restoredIn(m.metadata, keys)
    }
    return m
  }

  // ── results ───────────────────────────────────────────────────────────────────────────────────────

  const bounded = (text: unknown): string => {
    const whole = typeof text === 'string' ? text : shown(text)
    return whole.length > MAX_TEXT ? `${slice(whole, 0, MAX_TEXT)}…` : whole
  }
  const failed = (error: unknown): string => {
    let name = 'Error'
    let message = ''
    let stack = ''
    try {
      if (error instanceof Failure) {
        name = bounded(error.name)
        message = bounded(error.message)
        stack = bounded(error.stack)
      } else message = `thrown: ${bounded(error)}`
    } catch {
      message = 'what was thrown can not be read'
    }
    return failure(name, message, stack)
  }
  const failure = (name: string, message: string, stack: string): string => {
    // of a text JSON asks nobody: of an object it would ask what user code has put on Object.prototype
    return `-{"name":${stringify(name)},"message":${stringify(message)},"stack":${stringify(stack)}}\n`
  }
  const wrong = (message: string): string => failure('TypeError', message, '')
  /** JSON has no word for these and would write null. @returns where the first one is, such as `.a.0`; undefined: there is none */
  const nonFiniteAt = (value: unknown, depth: number): string | undefined => {
    if (typeof value === 'number') return isFiniteNumber(value) ? undefined : ''
    if (!isObject(value) || depth > 100) return undefined
    const inner = (key: string) => {
      const at = nonFiniteAt(value[key], depth + 1)
      return at === undefined ? undefined : `.${key}${at}`
    }
    let at: string | undefined
    if (isArray(value)) for (let i = 0; i < value.length && at === undefined; i++) at = inner(`${i}`)
    else
      for (const key in value) {
        at = inner(key)
        if (at !== undefined) break
      }
    return at
  }

  let fn: Function
  let mustDecide = false
  let mustBeObject = false
  let noun = ''
  let out = ''
  let taken = 0

  const line = (m: Message, metadata: unknown, maxResult: number): string => {
    let text: string
    try {
      const result = fn(m.action, m.record, m.changes, metadata)
      if (mustDecide) {
        if (result === true) return '1\n'
        if (result === false) return '0\n'
        return wrong(`a ${noun} returns true or false, this one returned ${kindOf(result)}`)
      }
      if (result === undefined)
        return wrong(
          'the function returned nothing (undefined): return a value, null for none; what shall not be sent is dropped by a filter',
        )
      if (isObject(result) && typeof result['then'] === 'function')
        return wrong('the function returned a promise: a function returns its result itself, it can not wait')
      if (mustBeObject && (!isObject(result) || isArray(result)))
        return wrong(`a ${noun} returns an object, this one returned ${kindOf(result)}`)
      text = stringify(result)
      if (typeof text !== 'string') return wrong(`the function returned ${kindOf(result)}, which JSON has no form for`)
      const at = indexOf(text, 'null') >= 0 ? nonFiniteAt(result, 0) : undefined
      if (at === '') return wrong('the result is NaN or Infinity, which JSON has no form for')
      if (at !== undefined)
        return wrong(`the result holds NaN or Infinity at ${stringify(bounded(slice(at, 1)))}, which JSON has no form for`)
    } catch (error) {
      return failed(error)
    }
    if (text.length > maxResult) return wrong(`the result has ${text.length} characters, more than ${maxResult}`)
    return `+${text}\n`
  }
  const kindOf = (value: unknown): string => {
    if (value === null) return 'null'
    if (value === undefined) return 'nothing (undefined)'
    if (isArray(value)) return 'a list'
    if (isObject(value)) return typeof value['then'] === 'function' ? 'a promise' : 'an object'
    if (typeof value === 'string') return 'a text'
    if (typeof value === 'function') return 'a function'
    return `${typeof value} ${String(value)}`
  }

  /** A copy for one message: nothing that a function changes is seen by its next run. */
  const copyOf = (value: unknown): unknown => {
    if (!isArray(value)) return isObject(value) ? ownCopies({ ...value }) : value
    const list: unknown[] = []
    for (let i = 0; i < value.length; i++) list[i] = copyOf(value[i])
    return list
  }
  const ownCopies = (holder: Record<string, unknown>, keys = ownKeys(holder)): Record<string, unknown> => {
    for (let i = 0; i < keys.length; i++) {
      const key = keys[i] ?? ''
      if (typeof holder[key] === 'object') holder[key] = copyOf(holder[key]) // its own, so no setter is met
    }
    return holder
  }

  return {
    attach(value, answers, called) {
      mustDecide = answers === 'decision'
      mustBeObject = answers === 'object'
      noun = called
      if (value === undefined) return 'there is no default export: write `export default (action, record) => …`'
      if (typeof value !== 'function') return 'the default export is not a function: write `export default (action, record) => …`'
      const text = functionText(value)
      if (exec(/^class\b/, text) !== null) return 'the default export is a class; export a function'
      if (exec(/^async\s*(?:function\b|\(|\*|[\w$]+\s*=>)|^function\s*\*|^\*/, text) !== null)
        return 'the function must be a plain one, not async and no generator: it returns its result itself, it can not wait'
      if (value.length > 4) return 'the function takes at most four parameters: action, record, changes, metadata'
      fn = value
      return ''
    },
    run(lines, tail, from, until, maxResult, maxOut, longIntegers) {
      out = ''
      logs = []
      logged = 0
      isShowing = false // a call that was cut off left it as it was
      taken += lines.length
      if (taken > COLLECT_AFTER) {
        taken = 0
        collect?.()
      }
      const ofSink: Record<string, unknown> = parse(tail)
      const sinkKeys = ownKeys(ofSink)
      const hasLongIntegers = longIntegers !== 'nowhere'
      const keys: readonly string[] | undefined = longIntegers[0] === '[' ? parse(longIntegers) : undefined
      let start = 0
      for (let i = 0; i < from; i++) start = indexOf(lines, END, start) + 1
      while (start < lines.length) {
        const stop = indexOf(lines, END, start) + 1
        const m = parsed(slice(lines, start, stop - 1), hasLongIntegers, keys)
        start = stop
        const { metadata: own } = m
        const metadata = own && ownCopies({ ...own, enrichment: own['enrichment'] ?? null, ...ofSink }, sinkKeys)
        const result = line(m, metadata, maxResult)
        if (logged > 0) {
          out += '#['
          for (let k = 0; k < logs.length; k++) out += `${k === 0 ? '' : ','}${stringify(logs[k])}`
          out += ']\n'
          logs = []
          logged = 0
        }
        out += result
        if ((out.length > maxOut || now() >= until) && start < lines.length) return `!${out}`
      }
      return `.${out}`
    },
    rest() {
      const done = out
      out = ''
      return done
    },
  }
}
