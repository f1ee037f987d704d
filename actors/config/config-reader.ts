/**
 * A YAML text with the place of everything in it. What is wrong is gathered with its line and column and told all at once,
 * in the order of the file. Nothing here does I/O.
 */
import { isMap, isNode, isPair, isScalar, LineCounter, parseDocument, visit, type Document, type Scalar } from 'yaml'
import { EngineError } from '../../engine/errors.ts'

/** A place in a file; line and column are counted from 1. */
export type FilePlace = Readonly<{ line: number; column: number }>
type Path = readonly (string | number)[]
/** Tells what is wrong at a place of a file. @property because code of the error that says so */
export type Problem = Readonly<{ file: string; line: number; column?: number; reason: string; because?: string }>

/** `$${VAR}` is none. A default has no braces: so a text of many beginnings without an end is looked through only once. */
const VARIABLE = /\$?\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\}/g

const UNQUOTED = '; between braces or brackets a variable needs quotes: "${VAR}"'

/** Writes a text so that it stands for itself where variables are replaced. */
export const withoutVariables = (text: string): string => text.replaceAll(/\$\{[A-Za-z_][A-Za-z0-9_]*(?::-[^{}]*)?\}/g, '$$$&')

/** So many problems are told; more are only counted. */
const MAX_TOLD = 50

/** Reads a YAML text, and gathers what is wrong with it. */
export class ConfigReader {
  readonly file: string
  readonly document: Document.Parsed
  readonly #source: string
  readonly #lines = new LineCounter()
  readonly #problems: { offset: number; reason: string }[] = []
  readonly #notices: string[] = []
  /** where a variable is not set: what else is wrong there follows from it */
  readonly #unset = new Set<number>()

  /** @throws EngineError CONFIG_INVALID: it is not YAML */
  constructor(source: string, file: string) {
    this.file = file
    this.#source = source
    this.document = parseDocument(source, { lineCounter: this.#lines, merge: true, uniqueKeys: true, prettyErrors: false })
    for (const [i, { pos, message }] of this.document.errors.entries())
      this.wrong(pos[0], `${message.split('\n')[0] ?? 'not valid YAML'}${i === 0 && source.startsWith('${', pos[0] - 1) ? UNQUOTED : ''}`)
    this.refuse()
  }

  line(offset: number): number {
    return this.#lines.linePos(offset).line
  }

  place(offset: number): FilePlace {
    const { line, col: column } = this.#lines.linePos(offset)
    return { line, column }
  }

  /** Where the text of a value begins, if each of its lines stands in the file as it is: in a block (`|`), or on one line. */
  textStart(...path: Path): FilePlace | undefined {
    const node: unknown = this.document.getIn(path, true)
    if (!isScalar(node) || !node.range || typeof node.value !== 'string') return undefined
    const source = this.#source.slice(node.range[0], node.range[1])
    const { line, col } = this.#lines.linePos(node.range[0])
    if (node.type === 'BLOCK_LITERAL') {
      const [, ...lines] = source.split('\n')
      const first = node.value.split('\n').findIndex((text) => text !== '')
      const indent = (lines[first]?.length ?? 0) - (node.value.split('\n')[first]?.length ?? 0)
      return { line: line + 1, column: indent + 1 }
    }
    const isQuoted = node.type === 'QUOTE_DOUBLE' || node.type === 'QUOTE_SINGLE'
    const text = isQuoted ? source.slice(1, -1) : source
    return text === node.value && !text.includes('\n') ? { line, column: col + Number(isQuoted) } : undefined
  }

  /** Offset of the value, of its key when it is a mapping or a list, or of the nearest that holds it. */
  at(...path: Path): number {
    for (let length = path.length; length > 0; length--) {
      const node: unknown = this.document.getIn(path.slice(0, length), true)
      if (isScalar(node) && node.range) return node.range[0]
      const key = this.#key(path.slice(0, length)) // a mapping begins below its key
      if (key !== undefined) return key
      if (isNode(node) && node.range) return node.range[0]
    }
    return 0
  }

  #key(path: Path): number | undefined {
    const parent: unknown = path.length > 1 ? this.document.getIn(path.slice(0, -1), true) : this.document.contents
    if (!isMap(parent)) return undefined
    const pair = parent.items.find((item) => isScalar(item.key) && item.key.value === path.at(-1))
    return isNode(pair?.key) ? pair.key.range?.[0] : undefined
  }

  keyOffset(section: string): number {
    return this.#key([section]) ?? 0
  }

  isAnchorHolder(section: string): boolean {
    const held = this.document.getIn([section], true)
    let anchored = isAnchored(held)
    if (isNode(held)) visit(held, { Collection: (_, node) => void (anchored ||= isAnchored(node)) })
    return anchored
  }

  wrong(offset: number, reason: string): undefined {
    if (!this.#unset.has(offset)) this.#problems.push({ offset, reason })
  }

  /** For what should be known, and stops nothing. */
  notice(offset: number, text: string): void {
    this.#notices.push(`${this.file}:${this.line(offset)}: ${text}`)
  }
  get notices(): readonly string[] {
    return this.#notices
  }

  /** @throws EngineError CONFIG_INVALID: something was wrong */
  refuse(): void {
    if (this.#problems.length > 0) throw refusal(this.problems)
  }

  /** For what nothing further can be looked at after. @throws EngineError CONFIG_INVALID */
  fail(offset: number, reason: string): never {
    this.wrong(offset, reason)
    throw refusal(this.problems)
  }

  /** The problems that were found so far. */
  get problems(): readonly Problem[] {
    return this.#problems.map(({ offset, reason }) => ({ file: this.file, ...this.place(offset), reason }))
  }

  /**
   * Replaces `${VAR}` and `${VAR:-default}` in values, where they stand, so that errors still know their lines; `$${VAR}` is the
   * text `${VAR}`.
   * @param env undefined: they were replaced before, and what looks like one is a text
   * @param texts names of fields that take texts alone: a password of digits stays what it is, zeros in front too
   * @param maxCharacters of all that variables are replaced by
   * @throws EngineError CONFIG_INVALID: they are replaced by more
   */
  interpolate(env: Readonly<Record<string, string | undefined>> | undefined, texts: ReadonlySet<string>, maxCharacters = Infinity): void {
    let characters = 0
    this.#eachText((node, text, field) => {
      const offset = node.range?.[0] ?? 0
      const replaced = text.replaceAll(VARIABLE, (whole, name: string, fallback: string | undefined) => {
        if (whole.startsWith('$$') || !env) return whole.replace('$$', '$')
        const value = env[name] || fallback
        characters += value?.length ?? 0
        if (characters > maxCharacters) this.fail(offset, `the variables of the file are replaced by more than ${maxCharacters} characters`)
        if (value !== undefined) return value
        this.wrong(offset, `the variable ${name} is not set; give it a default as in \${${name}:-value}`)
        this.#unset.add(offset)
        return whole
      })
      // a plain value is read as YAML would read it (a port stays a number); a quoted one stays a text
      node.value = node.type === 'PLAIN' && !texts.has(field) && env ? plain(replaced) : replaced
    })
  }

  /** Names of the variables in values. */
  variables(): ReadonlySet<string> {
    const names = new Set<string>()
    this.#eachText((_node, text) => {
      for (const [whole, name = ''] of text.matchAll(VARIABLE)) if (!whole.startsWith('$$')) names.add(name)
    })
    return names
  }

  /** The document as it is now, as a text in which nothing looks like a variable. */
  printed(): string {
    this.#eachText((node, text) => void (node.value = withoutVariables(text)))
    return this.document.toString({ lineWidth: 0 })
  }

  /** Gives values that may hold variables, and the fields that they are of; not the code of functions, whose template literals look so. */
  #eachText(work: (node: Scalar, text: string, field: string) => void): void {
    visit(this.document, {
      Scalar: (key, node, path) => {
        if (key === 'key' || typeof node.value !== 'string' || !node.value.includes('${')) return
        const [holder] = path.slice(-1)
        const field = isPair(holder) && isScalar(holder.key) ? String(holder.key.value) : ''
        if (field !== 'code') work(node, node.value, field)
      },
    })
  }
}

/** Makes one error of all problems, in the order of the file; its context is that of the first. @param problems one at least */
export function refusal(problems: readonly Problem[], cause?: unknown): EngineError {
  const inOrder = problems.toSorted((a, b) => a.line - b.line || (a.column ?? 0) - (b.column ?? 0))
  const told = inOrder
    .slice(0, MAX_TOLD)
    .map(({ file, line, column, reason }) => `${file}:${line}:${column === undefined ? '' : `${column}:`} ${reason}`)
  if (problems.length > MAX_TOLD) told.push(`… and ${problems.length - MAX_TOLD} more`)
  const [{ reason: _, ...context } = { reason: '' }] = inOrder
  return new EngineError('CONFIG_INVALID', told.join('\n'), context, { cause })
}

const isAnchored = (node: unknown): boolean => isNode(node) && 'anchor' in node && node.anchor !== undefined

const plain = (value: string): string | number | boolean => {
  if (value === 'true' || value === 'false') return value === 'true'
  return /^-?(?:0|[1-9][0-9]{0,14})$/.test(value) ? Number(value) : value
}
