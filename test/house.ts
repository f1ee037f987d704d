/**
 * Counts what makes the sources hard to live in, over their syntax trees: `npm run house` prints a figure a line, and with a
 * name (`npm run house -- casts`) also where each one stands. Nothing is judged by it; it shows where a figure comes from.
 */
import { readFile } from 'node:fs/promises'
import { execFileSync } from 'node:child_process'
import { dirname, join, relative, resolve } from 'node:path'
import { parse } from '@babel/parser'
import { traverseFast, type Node, type Statement } from '@babel/types'

const ROOT = resolve(import.meta.dirname, '..')
const PRODUCT = ['engine', 'actors', 'sinks', 'transforms', 'api', 'cli']
/** Where bytes are read and written by offset, and an index is most often known to be in bounds. */
const CODEC = ['engine/log/pack', 'engine/wal/decode/', 'engine/wal/connection/', 'engine/byte-writer', 'engine/log/kafka/kafkajs']
/** Test files that may wait for time: all others wait by what these export. */
const WAITING = ['test/waiting.ts']
const MANY_CALLBACKS = 3

type Source = Readonly<{ path: string; text: string; program: Node & { body: readonly Statement[] } }>
/** What is counted. @property found one line for each: where it stands, and what it is */
type Figure = Readonly<{ name: string; says: string; value: string; found: readonly string[] }>

/** @throws when it is no TypeScript */
export function sourceOf(path: string, text: string): Source {
  return { path, text, program: parse(text, { sourceType: 'module', plugins: ['typescript'] }).program }
}

async function sourcesOf(folders: readonly string[]): Promise<readonly Source[]> {
  const paths = execFileSync('git', ['ls-files', '-co', '--exclude-standard', ...folders], { cwd: ROOT, encoding: 'utf8' })
  const ours = paths.split('\n').filter((path) => path.endsWith('.ts'))
  return Promise.all(ours.map(async (path) => sourceOf(path, await readFile(join(ROOT, path), 'utf8'))))
}

const linesOf = (sources: readonly Source[]) => sources.reduce((sum, { text }) => sum + text.split('\n').length - 1, 0)
const at = ({ path }: Source, node: Node, what: string) => `${path}:${node.loc?.start.line} ${what}`
const isIn = (path: string, places: readonly string[]) => places.some((place) => path.startsWith(place))
const perThousand = (count: number, lines: number) => `${((1000 * count) / lines).toFixed(1)} (${count} in ${lines} lines)`
const textOf = ({ text }: Source, node: Node) =>
  text
    .slice(node.start ?? 0, node.end ?? 0)
    .replaceAll(/\s+/g, ' ')
    .slice(0, 100)

/** @param tell of a node that counts; undefined: it doesn't */
function find(sources: readonly Source[], tell: (node: Node, source: Source) => string | undefined): readonly string[] {
  return sources.flatMap((source) => {
    const found: string[] = []
    traverseFast(source.program, (node) => {
      const what = tell(node, source)
      if (what !== undefined) found.push(at(source, node, what))
    })
    return found
  })
}

/** Casts that the compiler doesn't check; `as const` is none. */
const casts = (sources: readonly Source[]) =>
  find(sources, (node, source) =>
    node.type === 'TSAsExpression' && textOf(source, node.typeAnnotation) !== 'const' ? textOf(source, node) : undefined,
  )

/** Exported declarations. @returns those without a comment of their own */
function undocumented(sources: readonly Source[]): Readonly<{ all: number; found: readonly string[] }> {
  const exported = sources.flatMap((source) =>
    source.program.body.flatMap((node) => (node.type === 'ExportNamedDeclaration' && node.declaration ? [{ source, node }] : [])),
  )
  const bare = exported.filter(({ source: { text }, node }) => {
    const last = node.leadingComments?.at(-1)
    return last?.type !== 'CommentBlock' || !last.value.startsWith('*') || text.slice(last.end ?? 0, node.start ?? 0).trim() !== ''
  })
  return { all: exported.length, found: bare.map(({ source, node }) => at(source, node, textOf(source, node).slice(0, 60))) }
}

/** Types of options that hand their owner more than three functions to call. */
const callbackBags = (sources: readonly Source[]) =>
  find(sources, (node) => {
    if (node.type !== 'TSTypeAliasDeclaration' || !node.id.name.endsWith('Options')) return undefined
    let callbacks = 0
    traverseFast(node, (member) => {
      if (member.type === 'TSMethodSignature') callbacks++
      if (member.type !== 'TSPropertySignature') return
      const type = member.typeAnnotation?.type === 'TSTypeAnnotation' ? member.typeAnnotation.typeAnnotation : undefined
      const either = type?.type === 'TSUnionType' ? type.types : [type]
      const bare = either.map((each) => (each?.type === 'TSParenthesizedType' ? each.typeAnnotation : each))
      if (bare.some((each) => each?.type === 'TSFunctionType')) callbacks++
    })
    return callbacks > MANY_CALLBACKS ? `${node.id.name}: ${callbacks}` : undefined
  })

/** Methods and getters that do nothing but ask a part for what has the same name. */
const forwarders = (sources: readonly Source[]) =>
  find(sources, (node, source) => {
    if (node.type !== 'ClassMethod' && node.type !== 'ClassPrivateMethod') return undefined
    const [statement, ...more] = node.body.body
    if (!statement || more.length > 0) return undefined
    const does =
      statement.type === 'ReturnStatement'
        ? statement.argument
        : statement.type === 'ExpressionStatement'
          ? statement.expression
          : undefined
    const asked = does?.type === 'AwaitExpression' ? does.argument : does
    const callee = node.kind === 'get' ? asked : asked?.type === 'CallExpression' ? asked.callee : undefined
    if (callee?.type !== 'MemberExpression' || textOf(source, callee.property) !== textOf(source, node.key).replace('#', ''))
      return undefined
    if (!textOf(source, callee.object).startsWith('this')) return undefined
    const given = asked?.type === 'CallExpression' ? asked.arguments.map((each) => textOf(source, each)) : []
    const taken = node.params.map((param) => textOf(source, param).replace(/[?:=].*$/, ''))
    return given.join() === taken.join() ? textOf(source, node) : undefined
  })

/** Pairs of folders whose files import each other. */
function folderPairs(sources: readonly Source[]): readonly string[] {
  const imports = new Map<string, Set<string>>()
  for (const source of sources)
    for (const node of source.program.body) {
      const value = 'source' in node && node.source?.type === 'StringLiteral' ? node.source.value : ''
      if (!value.startsWith('.')) continue
      const from = dirname(source.path)
      const to = relative(ROOT, dirname(resolve(ROOT, from, value)))
      if (from !== to) imports.set(from, (imports.get(from) ?? new Set<string>()).add(to))
    }
  return [...imports]
    .flatMap(([from, all]) => [...all].filter((to) => from < to && imports.get(to)?.has(from)).map((to) => `${from} and ${to}`))
    .sort()
}

/** A call is awaited in it: somebody is asked again. Whoever awaits a promise that is there already is told. */
function asksAgain(loop: Node): boolean {
  let asks = false
  traverseFast(loop, (node) => {
    asks ||= node.type === 'AwaitExpression' && node.argument.type === 'CallExpression'
  })
  return asks
}

/** What goes on beside a test until its signal is aborted waits for nothing, and a loop that counts has an end. */
function isWaitingLoop(node: Node, source: Source): boolean {
  if (node.type === 'ForStatement') return !node.test && !node.update && asksAgain(node)
  if (node.type !== 'WhileStatement' && node.type !== 'DoWhileStatement') return false
  return !/^!.*\.aborted$/.test(textOf(source, node.test)) && asksAgain(node)
}

/** Timers and loops that ask again, in tests: outside the file that all of them could wait by. */
const waits = (sources: readonly Source[]) =>
  find(
    sources.filter(({ path }) => path.includes('.test.') && !isIn(path, WAITING)),
    (node, source) => {
      const isTimer = node.type === 'CallExpression' && ['setTimeout', 'sleep', 'delay', 'wait'].includes(textOf(source, node.callee))
      return isTimer || isWaitingLoop(node, source) ? textOf(source, node) : undefined
    },
  )

/** @param product the sources that run; @param tests those that test them */
export function figuresOf(product: readonly Source[], tests: readonly Source[]): readonly Figure[] {
  const lines = linesOf(product)
  const written = casts(product.filter(({ path }) => !isIn(path, CODEC)))
  const bare = undocumented(product)
  const bags = callbackBags(product)
  const forwards = forwarders(product)
  const pairs = folderPairs(product)
  const waited = waits(tests)
  return [
    {
      name: 'lines',
      says: `lines of ${PRODUCT.join(', ')}`,
      value: String(lines),
      found: product.map((each) => `${each.path} ${linesOf([each])}`),
    },
    {
      name: 'casts',
      says: '`as` in 1,000 lines, the byte codec apart',
      value: perThousand(written.length, linesOf(product.filter(({ path }) => !isIn(path, CODEC)))),
      found: written,
    },
    {
      name: 'docs',
      says: 'exports with a comment of their own',
      value: `${Math.round((100 * (bare.all - bare.found.length)) / bare.all)} % of ${bare.all}`,
      found: bare.found,
    },
    { name: 'callbacks', says: `types of options with more than ${MANY_CALLBACKS} callbacks`, value: String(bags.length), found: bags },
    { name: 'forwarders', says: 'methods and getters that only forward', value: String(forwards.length), found: forwards },
    { name: 'folders', says: 'pairs of folders that import each other', value: String(pairs.length), found: pairs },
    { name: 'waits', says: 'timers and polls in tests, outside the one file of waits', value: String(waited.length), found: waited },
  ]
}

/** What the running service crosses, which needs Postgres, Elasticsearch and half a minute. */
async function crossings(): Promise<readonly Figure[]> {
  const { filesCrossed } = await import('./crossed.ts')
  const { receive, elasticsearch } = await filesCrossed()
  const figure = (end: string, found: readonly string[]): Figure => ({
    name: 'crossed',
    says: `files that one change crosses, from the socket to ${end}`,
    value: String(found.length),
    found,
  })
  return [figure('an answer of receive', receive), figure('Elasticsearch', elasticsearch)]
}

if (import.meta.main) {
  const shown = process.argv[2]
  const counted = figuresOf(await sourcesOf(PRODUCT), await sourcesOf(['test']))
  for (const { name, says, value, found } of shown === 'crossed' ? await crossings() : counted) {
    process.stdout.write(`${name.padEnd(11)} ${value.padEnd(26)} ${says}\n`)
    if (name === shown) process.stdout.write(found.map((line) => `  ${line}\n`).join(''))
  }
}
