/**
 * What has been tried against sandboxes. Each trick is the body of a function that runs for the second of three messages.
 * An escape returns 'ESCAPED' when it worked; an exhaustion has to fail its message. Neither may be felt by anyone else.
 */
type Trick = Readonly<{
  /** ends its sandbox: seconds */
  isSlow?: true
  name: string
  body: string
  /** stands at the top of the module */
  module?: string
}>

export const ESCAPES: readonly Trick[] = [
  {
    name: 'constructor chain to the global object',
    body: `return (function () {}).constructor('return typeof process + typeof require')() === 'undefinedundefined' ? 'ok' : 'ESCAPED'`,
  },
  { name: 'constructor chain of an argument', body: `return record.constructor.constructor('return process')().pid ? 'ESCAPED' : 'ok'` },
  {
    name: 'constructor chain of metadata',
    body: `return metadata.consumer.constructor.constructor('return this.process')() ? 'ESCAPED' : 'ok'`,
  },
  {
    name: 'constructor chain of a given function',
    body: `return sha256.constructor('return typeof process')() === 'undefined' && randomUUID.constructor('return this')() === globalThis ? 'ok' : 'ESCAPED'`,
  },
  {
    name: 'constructor chain of a thrown error',
    body: `try { sha256(1) } catch (e) { return e.constructor.constructor('return typeof process')() === 'undefined' && e instanceof TypeError ? 'ok' : 'ESCAPED' }`,
  },
  {
    name: 'names of Node',
    body: `return [typeof require, typeof process, typeof Buffer, typeof setTimeout, typeof setImmediate, typeof queueMicrotask, typeof fetch, typeof module, typeof structuredClone].every((t) => t === 'undefined') ? 'ok' : 'ESCAPED'`,
  },
  {
    name: 'compilation of WebAssembly and shared memory',
    body: `return [typeof WebAssembly, typeof SharedArrayBuffer, typeof Atomics, typeof gc, typeof FinalizationRegistry, typeof WeakRef].every((t) => t === 'undefined') ? 'ok' : 'ESCAPED'`,
  },
  {
    name: 'a growable shared buffer by way of its prototype',
    body: `for (const name of Object.getOwnPropertyNames(globalThis)) if (/Shared|Wasm|WebAssembly|Atomics|^gc$/.test(name) && globalThis[name]) return 'ESCAPED'; return 'ok'`,
  },
  { name: 'caller of the function', body: `try { return arguments.callee.caller ? 'ESCAPED' : 'ok' } catch { return 'ok' }` },
  {
    name: 'caller by a sloppy function',
    body: `const f = new Function('return arguments.callee.caller'); const c = f(); return c && /indexOf|stringify/.test(String(c)) ? 'ESCAPED' : 'ok'`,
  },
  {
    name: 'stack frames by Error.prepareStackTrace',
    body: `Error.prepareStackTrace = (_, frames) => frames; Error.stackTraceLimit = Infinity; for (const f of new Error().stack) if (f.getThis?.() ?? f.getFunction?.()) return 'ESCAPED'; return 'ok'`,
  },
  {
    name: 'stack frames of an error of the host',
    body: `Error.prepareStackTrace = (_, frames) => { for (const f of frames) { const o = f.getFunction?.() ?? f.getThis?.(); if (o) { globalThis.got = o } } return 'x' }; try { null.x } catch (e) { e.stack } return globalThis.got ? 'ESCAPED' : 'ok'`,
  },
  { name: 'dynamic import', body: `return import('node:fs')` },
  { name: 'dynamic import inside eval', body: `return (0, eval)("import('node:child_process')")` },
  {
    name: 'what import.meta holds',
    body: `return Object.keys(import.meta).length === 0 && !import.meta.url && !import.meta.dirname ? 'ok' : 'ESCAPED'`,
  },
  { name: 'a ShadowRealm', body: `return typeof ShadowRealm === 'undefined' ? 'ok' : 'ESCAPED'` },
  {
    name: 'the host through a promise',
    body: `Promise.prototype.then = function (f) { globalThis.host = f; return this }; return globalThis.host ? 'ESCAPED' : 'ok'`,
  },
  {
    name: 'the host through Function.prototype.call',
    body: `Function.prototype.call = Function.prototype.apply = function () { return 'ESCAPED' }; return 'ok'`,
  },
  {
    name: 'the host through Symbol.species',
    body: `class A extends Array { static get [Symbol.species]() { return function () { return globalThis } } } return Array.isArray(record) ? 'ESCAPED' : new A(3).map((x) => x) === globalThis ? 'ok' : 'ok'`,
  },
  { name: 'the host through an async iterator', body: `return { [Symbol.asyncIterator]() { return globalThis }, then: 1 }` },
  {
    name: 'a result with a getter that changes its mind',
    body: `let n = 0; return { get then() { return n++ ? () => 1 : undefined }, get a() { return n } }`,
  },
  {
    name: 'a proxy for a result',
    body: `return new Proxy({}, { get() { throw new Error('trap') }, ownKeys() { throw new Error('trap') } })`,
  },
  { name: 'a result with a throwing getter', body: `return { get a() { throw new Error('getter') } }` },
  { name: 'a result whose toJSON throws', body: `return { toJSON() { throw new Error('toJSON') } }` },
  { name: 'a result whose toJSON has line breaks', body: `return { toJSON: () => 'a\\n+"ESCAPED"\\n-{}\\n#["x"]' }` },
  { name: 'raw JSON for a result', body: `return { a: JSON.rawJSON('"a\\\\n+1"'), b: JSON.rawJSON('1e999') }` },
  {
    name: 'a thrown proxy',
    body: `throw new Proxy(new Error('x'), { get() { throw new Error('trap') }, getPrototypeOf() { throw new Error('trap') } })`,
  },
  { name: 'a thrown null', body: `throw null` },
  { name: 'a thrown thing that has no text', body: `throw { toString() { throw 1 }, toJSON() { throw 2 } }` },
  {
    name: 'an error with line breaks',
    body: `const e = new Error('a\\n+1\\n'); e.name = '\\n0\\n'; e.stack = 'mine:1:1\\nmine:999:1'; throw e`,
  },
  {
    name: 'an Error that says what its instances are',
    body: `Object.defineProperty(Error, Symbol.hasInstance, { value: () => { throw new RangeError('instance') } }); throw new Error('x')`,
  },
  { name: 'JSON replaced', body: `JSON.stringify = () => 'ESCAPED'; JSON.parse = () => ({}); JSON.rawJSON = () => 1; return { ok: 1n }` },
  {
    name: 'methods of strings replaced',
    body: `String.prototype.indexOf = () => 0; String.prototype.slice = () => '+"ESCAPED"'; String.prototype.charCodeAt = () => 10; return 'ok'`,
  },
  {
    name: 'methods of lists replaced',
    body: `Array.prototype.push = Array.prototype.map = () => 'ESCAPED'; Array.prototype[Symbol.iterator] = function* () { yield 'ESCAPED' }; Array.isArray = () => true; return 'ok'`,
  },
  {
    name: 'setters for what the host writes',
    body: `for (const k of ['enrichment', 'consumer', 'database', 'name', 'message', '0']) Object.defineProperty(Object.prototype, k, { set(v) { globalThis.got = v }, configurable: true }); return globalThis.got ? 'ESCAPED' : 'ok'`,
  },
  {
    name: 'pollution of all objects',
    body: `Object.prototype.toJSON = function () { return 'ESCAPED-own' }; Object.prototype.polluted = 1; return 'ok'`,
  },
  {
    name: 'a frozen language',
    body: `for (const o of [Object.prototype, Array.prototype, Function.prototype, JSON, globalThis]) Object.freeze(o); return 'ok'`,
  },
  { name: 'the clock replaced', body: `Date.now = () => 0; globalThis.Date = undefined; return 'ok'` },
  { name: 'the console replaced', body: `console.log = null; globalThis.console = undefined; return 'ok'` },
  {
    name: 'printing what can not be shown',
    body: `console.log({ toJSON() { throw 1 } }, Symbol('s'), 1n, () => 1, new Proxy({}, { get() { throw 1 } })); return 'ok'`,
  },
  {
    name: 'arguments changed for the next message',
    body: `metadata.consumer.annotations.team = 'ESCAPED'; metadata.consumer.id = 'ESCAPED'; record.id = 99; record.constructor.prototype.x = 1; return 'ok'`,
  },
  {
    name: 'state that another function might see',
    body: `globalThis.secret = record; Object.getPrototypeOf(sha256).secret = record; return 'ok'`,
  },
  { name: 'a module that exports itself anew', module: `export { run as other }; function run() {}`, body: `return 'ok'` },
]

export const EXHAUSTIONS: readonly Trick[] = [
  { name: 'an endless loop', body: `for (;;);` },
  { name: 'an endless loop in a getter of the result', body: `return { get a() { for (;;); } }` },
  { name: 'an endless loop in toJSON', body: `return { toJSON() { for (;;); } }` },
  {
    name: 'an endless loop in the text of an error',
    body: `const e = new Error(); Object.defineProperty(e, 'message', { get() { for (;;); } }); throw e`,
  },
  { name: 'an endless loop in finally', body: `for (;;) try { for (;;); } finally { continue }` },
  { name: 'a regular expression that backtracks', body: `return /^(a+)+$/.test('a'.repeat(50) + '!')` },
  { name: 'a regular expression of overlapping alternatives', body: `return /^(?:a|aa)+$/.test('a'.repeat(100) + 'b')` },
  { name: 'a comparison that never ends', body: `return [3, 1, 2].sort(() => { for (;;); })` },
  { name: 'an endless spread', body: `return [...(function* () { for (;;) yield 1 })()]` },
  { name: 'an endless list', body: `const a = []; for (;;) a.push({ a })` },
  { isSlow: true, name: 'a list of lists, filled', body: `const a = []; for (;;) a.push(new Array(1e6).fill(1.5))` },
  {
    name: 'a text that doubles',
    body: `let s = 'abcdefgh'; for (;;) { s += s; s.charCodeAt(s.length - 1); [s] = [s.split('').join('')] }`,
  },
  { name: 'a text of a quarter of a gigabyte taken apart', body: `return 'a'.repeat(2 ** 28).split('').length` },
  {
    isSlow: true,
    name: 'a text replaced to a larger one',
    body: `let s = 'a'.repeat(2 ** 16); for (;;) s = s.replaceAll('a', 'ab'.repeat(64))`,
  },
  { name: 'powers of a BigInt', body: `let n = 3n; for (;;) n **= 7n` },
  { isSlow: true, name: 'a power of a BigInt at once', body: `return (7n ** 50_000_000n) % 10n` },
  { isSlow: true, name: 'a BigInt printed', body: `return ((1n << 100_000_000n) - 1n).toString().length` },
  { name: 'buffers', body: `const a = []; for (;;) a.push(new Uint8Array(1e7).fill(7))` },
  {
    isSlow: true,
    name: 'resizable buffers',
    body: `const a = []; for (;;) { const b = new ArrayBuffer(0, { maxByteLength: 2 ** 30 }); b.resize(2 ** 30); new Uint8Array(b).fill(7); a.push(b) }`,
  },
  {
    isSlow: true,
    name: 'one buffer that is resized for ever',
    body: `const b = new ArrayBuffer(8, { maxByteLength: 2 ** 32 }); for (let n = 8; ; n *= 2) { b.resize(n); new Uint8Array(b).fill(1) }`,
  },
  { name: 'maps', body: `const m = new Map(); for (let i = 0; ; i++) m.set('key' + i, { i })` },
  { name: 'symbols', body: `const a = []; for (let i = 0; ; i++) a.push(Symbol.for('symbol number ' + i))` },
  { name: 'formats of dates', body: `const a = []; for (;;) a.push(new Intl.DateTimeFormat('de', { timeZone: 'Asia/Tokyo' }))` },
  {
    name: 'regular expressions',
    body: `const a = []; for (let i = 0; ; i++) { const r = new RegExp('(' + 'ab?'.repeat(500) + i + ')+'); r.test('ababab'); a.push(r) }`,
  },
  {
    name: 'code',
    body: `const a = []; for (let i = 0; ; i++) a.push(new Function('x'.repeat(1000) + i, 'return ' + '1+'.repeat(2000) + i))`,
  },
  { name: 'code that nests', body: `return eval('('.repeat(2e6))` },
  { name: 'closures', body: `let f = () => 0; for (;;) { const g = f, big = new Array(1000).fill(0); f = () => g() + big.length }` },
  { name: 'recursion', body: `const f = (n) => f(n + 1) + 1; return f(0)` },
  { name: 'recursion that catches itself', body: `const f = () => { try { f() } finally { f() } }; f()` },
  { name: 'recursion of toJSON', body: `const o = { toJSON() { return { o: { toJSON: o.toJSON } } } }; return o` },
  {
    name: 'recursion of a proxy',
    body: `const p = new Proxy({}, { get: () => p, ownKeys: () => ['a'], getOwnPropertyDescriptor: () => ({ enumerable: true, configurable: true, value: 1 }) }); return { toJSON: () => ({ p }) }`,
  },
  { name: 'a prototype chain of proxies', body: `let o = {}; for (let i = 0; i < 1e6; i++) o = new Proxy(o, {}); return o.x.y` },
  { name: 'a result that nests', body: `let a = []; for (let i = 0; i < 1e6; i++) a = [a]; return a` },
  { name: 'a result that holds itself', body: `const a = {}; a.a = a; return a` },
  { isSlow: true, name: 'a huge text as a result', body: `return 'x'.repeat(2 ** 26)` },
  { name: 'a huge list as a result', body: `return Array.from({ length: 3e6 }, () => 'xxxxxxxx')` },
  { name: 'a list of holes as a result', body: `return new Array(2 ** 31)` },
  { name: 'a text of holes', body: `return new Array(2 ** 29).join('xx').length` },
  {
    name: 'many keys by a proxy',
    body: `return new Proxy({}, { ownKeys: () => Array.from({ length: 1e7 }, (_, i) => 'k' + i), getOwnPropertyDescriptor: () => ({ enumerable: true, configurable: true, value: 1 }) })`,
  },
  { isSlow: true, name: 'JSON that nests', body: `return JSON.parse('['.repeat(1e7))` },
  { name: 'a list joined for ever', body: `const a = ['x'.repeat(1e6)]; for (;;) { a.push(a.join(',')); a.push(a.join(';')) }` },
  { isSlow: true, name: 'normalised text', body: `let s = '\\ufdfa'.repeat(2 ** 20); for (;;) s = s.normalize('NFKD') + s` },
]
