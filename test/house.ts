/**
 * Counts what makes the sources hard to live in, over their syntax trees: `npm run house` prints a figure a line, and with a
 * name (`npm run house -- casts`) also where each one stands. Nothing is judged by it; it shows where a figure comes from.
 */
import { readFile } from 'node:fs/promises'
import { execFileSync } from 'node:child_process'
import { dirname, join, relative, resolve } from 'node:path'
import { parseSync, Visitor, type Comment, type Program } from 'oxc-parser'

const ROOT = resolve(import.meta.dirname, '..')
const PRODUCT = ['engine', 'actors', 'sinks', 'transforms', 'api', 'cli']
/** Where bytes are read and written by offset, and an index is most often known to be in bounds. */
const CODEC = ['engine/log/pack', 'engine/wal/decode/', 'engine/wal/connection/', 'engine/byte-writer', 'engine/log/kafka/kafkajs']
/** Test files that may wait for time: all others wait by what these export. */
const WAITING = ['test/waiting.ts']
const MANY_CALLBACKS = 3

type Source = Readonly<{ path: string; text: string; program: Program; comments: readonly Comment[]; lineOf: (at: number) => number }>
/** What is counted. @property found one line for each: where it stands, and what it is */
type Figure = Readonly<{ name: string; says: string; value: string; found: readonly string[] }>
type Node = Readonly<{ type: string; start: number; end: number }>

/** @throws when it is no TypeScript */
export function sourceOf(path: string, text: string): Source {
  const { program, comments, errors } = parseSync(path, text)
  if (errors.length > 0) throw new Error(`${path}: ${errors[0]?.message}`)
  const breaks = [...text.matchAll(/\n/g)].map(({ index }) => index)
  return { path, text, program, comments, lineOf: (at: number) => breaks.filter((index) => index < at).length + 1 }
}

async function sourcesOf(folders: readonly string[]): Promise<readonly Source[]> {
  const paths = execFileSync('git', ['ls-files', '-co', '--exclude-standard', ...folders], { cwd: ROOT, encoding: 'utf8' })
  const ours = paths.split('\n').filter((path) => path.endsWith('.ts'))
  return Promise.all(ours.map(async (path) => sourceOf(path, await readFile(join(ROOT, path), 'utf8'))))
}

const linesOf = (sources: readonly Source[]) => sources.reduce((sum, { text }) => sum + text.split('\n').length - 1, 0)
const at = ({ path, lineOf }: Source, node: Node, what: string) => `${path}:${lineOf(node.start)} ${what}`
const isIn = (path: string, places: readonly string[]) => places.some((place) => path.startsWith(place))
const perThousand = (count: number, lines: number) => `${((1000 * count) / lines).toFixed(1)} (${count} in ${lines} lines)`
const textOf = ({ text }: Source, node: Node) => text.slice(node.start, node.end).replaceAll(/\s+/g, ' ').slice(0, 100)

/** Casts that the compiler doesn't check; `as const` and the names of imports are none. */
function casts(sources: readonly Source[]): readonly string[] {
  return sources.flatMap((source) => {
    const found: string[] = []
    new Visitor({
      TSAsExpression(node) {
        if (textOf(source, node.typeAnnotation) !== 'const') found.push(at(source, node, textOf(source, node)))
      },
    }).visit(source.program)
    return found
  })
}

/** Exported declarations. @returns those without a comment of their own */
function undocumented(sources: readonly Source[]): Readonly<{ all: number; found: readonly string[] }> {
  let all = 0
  const found = sources.flatMap((source) =>
    source.program.body.flatMap((node) => {
      if (node.type !== 'ExportNamedDeclaration' || !node.declaration) return []
      all++
      const isDocumented = source.comments.some(
        ({ type, value, end }) =>
          type === 'Block' && value.startsWith('*') && end <= node.start && source.text.slice(end, node.start).trim() === '',
      )
      return isDocumented ? [] : [at(source, node, textOf(source, node).slice(0, 60))]
    }),
  )
  return { all, found }
}

/** Types of options that hand their owner more than three functions to call. */
function callbackBags(sources: readonly Source[]): readonly string[] {
  return sources.flatMap((source) => {
    const found: string[] = []
    new Visitor({
      TSTypeAliasDeclaration(node) {
        if (!node.id.name.endsWith('Options')) return
        let callbacks = 0
        new Visitor({
          TSPropertySignature({ typeAnnotation }) {
            const type = typeAnnotation?.typeAnnotation
            const either = type?.type === 'TSUnionType' ? type.types : [type]
            const bare = either.map((each) => (each?.type === 'TSParenthesizedType' ? each.typeAnnotation : each))
            if (bare.some((each) => each?.type === 'TSFunctionType')) callbacks++
          },
          TSMethodSignature() {
            callbacks++
          },
        }).visit({ ...source.program, body: [node] } as Program)
        if (callbacks > MANY_CALLBACKS) found.push(at(source, node, `${node.id.name}: ${callbacks}`))
      },
    }).visit(source.program)
    return found
  })
}

/** Methods and getters that do nothing but ask a part for what has the same name. */
function forwarders(sources: readonly Source[]): readonly string[] {
  return sources.flatMap((source) => {
    const found: string[] = []
    new Visitor({
      MethodDefinition(node) {
        const [statement, ...more] = node.value.body?.body ?? []
        if (!statement || more.length > 0 || (node.key.type !== 'Identifier' && node.key.type !== 'PrivateIdentifier')) return
        const does =
          statement.type === 'ReturnStatement' ? statement.argument : statement.type === 'ExpressionStatement' ? statement.expression : null
        const isAwaited = does?.type === 'AwaitExpression'
        const asked = isAwaited ? does.argument : does
        const callee = node.kind === 'get' ? asked : asked?.type === 'CallExpression' ? asked.callee : undefined
        if (callee?.type !== 'MemberExpression' || callee.property.type !== 'Identifier' || callee.property.name !== node.key.name) return
        if (!textOf(source, callee.object).startsWith('this')) return
        const given = asked?.type === 'CallExpression' ? asked.arguments.map((each) => textOf(source, each)) : []
        const taken = node.value.params.map((param) => textOf(source, param).replace(/[?:=].*$/, ''))
        if (given.join() === taken.join()) found.push(at(source, node, textOf(source, node)))
      },
    }).visit(source.program)
    return found
  })
}

/** Pairs of folders whose files import each other. */
function folderPairs(sources: readonly Source[]): readonly string[] {
  const imports = new Map<string, Set<string>>()
  for (const source of sources)
    for (const node of source.program.body) {
      if (!('source' in node) || !node.source || typeof node.source !== 'object') continue
      const { value } = node.source
      if (typeof value !== 'string' || !value.startsWith('.')) continue
      const from = dirname(source.path)
      const to = relative(ROOT, dirname(resolve(ROOT, from, value)))
      if (from !== to) imports.set(from, (imports.get(from) ?? new Set<string>()).add(to))
    }
  return [...imports]
    .flatMap(([from, all]) => [...all].filter((to) => from < to && imports.get(to)?.has(from)).map((to) => `${from} and ${to}`))
    .sort()
}

/** Timers and loops that ask again, in tests: outside the file that all of them could wait by. */
function waits(sources: readonly Source[]): readonly string[] {
  return sources.flatMap((source) => {
    if (isIn(source.path, WAITING) || !source.path.includes('.test.')) return []
    const found: string[] = []
    new Visitor({
      CallExpression(node) {
        if (node.callee.type === 'Identifier' && ['setTimeout', 'sleep', 'delay', 'wait'].includes(node.callee.name))
          found.push(at(source, node, textOf(source, node)))
      },
      WhileStatement(node) {
        if (textOf(source, node.test).includes('await') || /\bawait\b/.test(textOf(source, node.body)))
          found.push(at(source, node, textOf(source, node)))
      },
    }).visit(source.program)
    return found
  })
}

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

if (import.meta.main) {
  const shown = process.argv[2]
  for (const { name, says, value, found } of figuresOf(await sourcesOf(PRODUCT), await sourcesOf(['test']))) {
    process.stdout.write(`${name.padEnd(11)} ${value.padEnd(26)} ${says}\n`)
    if (name === shown) process.stdout.write(found.map((line) => `  ${line}\n`).join(''))
  }
}
