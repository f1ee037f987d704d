/** Describes a command of `tailrace`: the words and options that it takes, what they mean, and what runs it. They are parsed here, once. */
import { parseArgs } from 'node:util'
import { errorText } from '../engine/errors.ts'

/** @property value what stands for its value in the help; absent: it has none */
type Option = Readonly<{ type: 'string' | 'boolean'; value?: string; means: string }>
type Options = Readonly<Record<string, Option>>
/** The values of the options that were given, by their names. */
type Values<O extends Options> = { readonly [Name in keyof O]?: O[Name]['type'] extends 'boolean' ? boolean : string }

/** Describes an option that has a value. @param value what stands for it in the help */
export const text = <V extends string>(value: V, means: string) => ({ type: 'string', value, means }) as const
/** Describes an option that has no value. */
export const flag = (means: string) => ({ type: 'boolean', means }) as const

type Description<Verb extends string, O extends Options> = Readonly<{
  /** behind the command's name */
  usage?: string
  summary: string
  /** takes one of these as its first word: what each does */
  verbs?: Readonly<Record<Verb, string>>
  /** takes one more word: the name of it, in brackets where it may be left out, and what it is */
  word?: readonly [name: string, means: string]
  /** takes any number of words behind that one: the name of one of them, and what they are */
  more?: readonly [name: string, means: string]
  options?: O
  /** as they are typed */
  examples?: readonly string[]
  /** @param given `word`: '' where it was left out @throws UsageError, CommandFailed, EngineError */
  run: (given: Readonly<{ verb: Verb; word: string; more: readonly string[]; values: Values<O> }>) => Promise<void> | void
}>

/** A command, whatever it takes. */
export type Command = Readonly<{
  usage: string
  summary: string
  /** the words that it takes first; none where it takes any */
  verbs: readonly string[]
  options: Options
  /** all about it, under the name that it has */
  help: (name: string) => string
  /** @param args what stands behind its name @throws UsageError, CommandFailed, EngineError */
  run: (name: string, args: readonly string[]) => Promise<void> | void
}>

/** Ends a command that was not understood: it is told with the usage, and the exit code is 2. */
export class UsageError extends Error {}

/** Ends a command that could not do what it should, for a reason that the engine has no code for. */
export class CommandFailed extends Error {
  readonly exitCode: number
  /** that the API gave */
  readonly code: string | undefined

  constructor(message: string, exitCode = 1, code?: string) {
    super(message)
    this.exitCode = exitCode
    this.code = code
  }
}

/** Makes a command of its description. */
export function command<const O extends Options = {}, Verb extends string = never>(description: Description<Verb, O>): Command {
  const { usage = '', summary, verbs, word, more: several, options, run } = description
  const isVerb = (given: string): given is Verb => verbs === undefined || Object.hasOwn(verbs, given)
  const help = (name: string) => helpOf(name, description)
  return {
    usage,
    summary,
    verbs: Object.keys(verbs ?? {}),
    options: { ...options, help: HELP },
    help,
    run(name, args) {
      const { values, positionals } = parsed(args, { help: HELP, ...options }, verbs !== undefined || word !== undefined)
      if (values['help'] === true) return print(help(name))
      const [verb = '', given = '', ...more] = verbs ? positionals : ['', ...positionals]
      const isWanted = word !== undefined && !word[0].startsWith('[')
      if (!isVerb(verb)) throw new UsageError(`${verb === '' ? 'what to do is missing' : `"${verb}" is not known`}: give ${oneOf(verbs)}`)
      if (isWanted && given === '') throw new UsageError(`${word[0]} is missing: ${word[1]}`)
      const [extra] = several ? [] : word || given === '' ? more : [given]
      if (extra !== undefined) throw new UsageError(`"${extra}" is one argument too many`)
      return run({ verb, word: given, more, values: values as Values<O> }) // as the options say of each
    },
  }
}

const HELP = { type: 'boolean', short: 'h', means: 'prints this' } as const

function parsed(args: readonly string[], options: Options, allowPositionals: boolean) {
  try {
    return parseArgs({ args: [...args], strict: true, allowPositionals, options })
  } catch (error) {
    throw new UsageError(errorText(error))
  }
}

const oneOf = (verbs: object = {}): string => Object.keys(verbs).join(' or ')

/** Prints a line. */
export const print = (line: string): void => void process.stdout.write(`${line}\n`)
/** Prints a value as JSON. */
export const printJson = (value: unknown): void => print(JSON.stringify(value, undefined, 2))

function helpOf(
  name: string,
  { usage = '', summary, verbs = {}, word, more, options = {}, examples = [] }: Omit<Description<string, Options>, 'run'>,
): string {
  const words = { ...verbs, ...Object.fromEntries([word, more].flatMap((one) => (one ? [[one[0].replaceAll(/[[\]]/g, ''), one[1]]] : []))) }
  const flags = Object.entries({ ...options, help: HELP }).map(([option, { value, means }]: [string, Option]) => [
    `--${option}${value === undefined ? '' : ` ${value}`}`,
    means,
  ])
  const parts = [
    `usage: tailrace ${name} ${usage}`.trimEnd() + `\n  ${summary}`,
    columns(Object.entries(words)),
    `options:\n${columns(flags)}`,
    examples.length === 0 ? '' : `example${examples.length > 1 ? 's' : ''}:\n${examples.map((line) => `  ${line}`).join('\n')}`,
  ]
  return parts.filter((part) => part !== '').join('\n\n')
}

/** Sets texts in two columns. */
export function columns(rows: readonly (readonly string[])[]): string {
  const width = Math.max(0, ...rows.map(([left = '']) => left.length))
  return rows.map(([left = '', right = '']) => `  ${left.padEnd(width)}   ${right}`).join('\n')
}
