/** The commands of `tailrace`: finds the one that is meant and tells its failure in words, with the remedy. */
import { parseArgs, type ParseArgsConfig } from 'node:util'
import { EngineError, ERRORS } from '../engine/errors.ts'
import { ACCESS_OPTIONS, REPLAY_OPTIONS } from './command-options.ts'
import { version } from './version.ts'

type Command = Readonly<{
  usage: string
  summary: string
  /** @param args what follows the command's name */
  run: (args: readonly string[]) => Promise<void> | void
  /** beside --help; one that is not named is refused */
  options?: NonNullable<ParseArgsConfig['options']>
  /** takes words behind its name */
  words?: true
}>

// Each command loads its own modules, so that `tailrace version` doesn't wait for a database driver.
const COMMANDS: Readonly<Record<string, Command>> = {
  start: {
    usage: 'start',
    summary: 'run the service: an embedded PostgreSQL with a demo, or what PG_URL and CONFIG_FILE_PATH say',
    run: async (args) => (await import('./start.ts')).start(args),
  },
  demo: {
    usage: 'demo write | token',
    summary: 'make some changes in the demo database, or print its API token',
    run: async (args) => (await import('./demo.ts')).demo(args),
    words: true,
  },
  source: {
    usage: 'source retry | accept-gap NAME [--token T] [--url U]',
    summary: 'let the source of a database try again, or go on although changes are missing',
    run: async (args) => (await import('./source.ts')).source(args),
    options: ACCESS_OPTIONS,
    words: true,
  },
  sink: {
    usage: 'sink replay NAME --to TIME | --lsn LSN | --offset N [--partition P]',
    summary: 'set a sink back: what was committed there or later comes again (also --generation G, --token T, --url U)',
    run: async (args) => (await import('./sink.ts')).sink(args),
    options: REPLAY_OPTIONS,
    words: true,
  },
  function: {
    usage: 'function test | build FILE [--type T] [--sink-type T] [--input FILE] [--watch] [--output FILE] [--minify]',
    summary: 'run a function on messages from a file, or put it and what it imports into one file; without a server',
    run: async (args) => (await import('./function.ts')).runFunction(args),
    options: {
      ...{ type: { type: 'string' }, 'sink-type': { type: 'string' }, input: { type: 'string' }, watch: { type: 'boolean' } },
      ...{ output: { type: 'string' }, minify: { type: 'boolean' } },
    },
    words: true,
  },
  types: {
    usage: 'types DATABASE [--schema NAME] [--output FILE]',
    summary: 'write the types of a database’s rows, for the editor in which functions are written',
    run: async (args) => (await import('./types.ts')).types(args),
    options: { schema: { type: 'string' }, output: { type: 'string' } },
    words: true,
  },
  version: { usage: 'version', summary: 'print the version', run: () => print(version()) },
  help: { usage: 'help', summary: 'print this', run: () => print(help()) },
}

const print = (text: string): void => void process.stdout.write(`${text}\n`)

function help(): string {
  const width = Math.max(...Object.values(COMMANDS).map(({ usage }) => usage.length))
  const lines = Object.values(COMMANDS).map(({ usage, summary }) => `  tailrace ${usage.padEnd(width)}   ${summary}`)
  return ['usage:', ...lines, '', 'Settings are environment variables: docs/configuration.md lists them.'].join('\n')
}

/**
 * @param argv the arguments behind the program's name
 * Sets the exit code: 0, 1 when the command failed, 2 when it was not understood.
 */
export async function main(argv: readonly string[]): Promise<void> {
  const [first, ...rest] = argv
  const name =
    first === undefined || first === '--help' || first === '-h' ? 'help' : first === '--version' || first === '-v' ? 'version' : first
  const command = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined
  if (!command) return misunderstood(`unknown command "${name}"`)
  try {
    const { options, words = false } = command
    parseArgs({ args: rest, strict: true, allowPositionals: words, options: { help: { type: 'boolean', short: 'h' }, ...options } })
  } catch (error) {
    return misunderstood(`${name}: ${(error as Error).message}`)
  }
  if (rest.includes('--help') || rest.includes('-h')) return print(`usage: tailrace ${command.usage}\n  ${command.summary}`)
  try {
    await command.run(rest)
  } catch (error) {
    process.stderr.write(error instanceof EngineError ? inWords(error) : `tailrace ${name}: ${(error as Error).stack ?? String(error)}\n`)
    process.exitCode = 1
  }
}

function misunderstood(what: string): void {
  process.stderr.write(`tailrace: ${what}\n\n${help()}\n`)
  process.exitCode = 2
}

function inWords({ code, message }: EngineError): string {
  return `${code}:${message.includes('\n') ? '\n' : ' '}${message}\n  ${ERRORS[code].remedy}\n`
}
