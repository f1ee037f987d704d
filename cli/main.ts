/** The commands of `tailrace`: finds the one that is meant and tells its failure in words, with the remedy. */
import { parseArgs } from 'node:util'
import { EngineError, ERRORS } from '../engine/errors.ts'
import { ACCESS_OPTIONS, CONFIG_OPTIONS, FUNCTION_OPTIONS, listed, REPLAY_OPTIONS, TYPES_OPTIONS, type Options } from './command-options.ts'
import { version } from './version.ts'

type Command = Readonly<{
  /** behind "tailrace" */
  usage: string
  summary: string
  /** @param args what follows the command's name */
  run: (args: readonly string[]) => Promise<void> | void
  /** beside --help; one that is not named is refused */
  options?: Options
  /** takes words behind its name; what each means */
  words?: Readonly<Record<string, string>>
  /** as they are typed */
  examples?: readonly string[]
}>

// Each command loads its own modules, so that `tailrace version` doesn't wait for a database driver.
const COMMANDS: Readonly<Record<string, Command>> = {
  start: {
    usage: 'start',
    summary: 'run the service: an embedded PostgreSQL with a demo, or what PG_URL and CONFIG_FILE_PATH say',
    run: async (args) => (await import('./start.ts')).start(args),
    examples: ['tailrace start', 'CONFIG_FILE_PATH=tailrace.yaml SERVER_PORT=8080 tailrace start'],
  },
  demo: {
    usage: 'demo write | token',
    summary: 'make some changes in the demo database, or print its API token',
    run: async (args) => (await import('./demo.ts')).demo(args),
    words: { write: 'makes some changes in the demo database', token: 'prints the API token of the demo' },
    examples: ['TOKEN=$(tailrace demo token)'],
  },
  source: {
    usage: 'source retry | accept-gap NAME [options]',
    summary: 'let the source of a database try again, or go on although changes are missing',
    run: async (args) => (await import('./source.ts')).source(args),
    options: ACCESS_OPTIONS,
    words: {
      retry: 'a source that has given up, or waits, tries again at once',
      'accept-gap': 'a source that stopped because changes are missing goes on without them',
      NAME: 'of the database',
    },
    examples: ['tailrace source retry shop --token a-good-token'],
  },
  sink: {
    usage: 'sink replay NAME --to TIME | --lsn LSN | --offset N [options]',
    summary: 'set a sink back: what was committed there or later comes again',
    run: async (args) => (await import('./sink.ts')).sink(args),
    options: REPLAY_OPTIONS,
    words: { NAME: 'of the sink' },
    examples: ['tailrace sink replay orders --to 2025-02-03T04:05:06Z'],
  },
  function: {
    usage: 'function test | build | save FILE [options]',
    summary: 'run a function from a file on messages, put it and what it imports into one file, or save it in a running Tailrace',
    run: async (args) => (await import('./function.ts')).runFunction(args),
    options: FUNCTION_OPTIONS,
    words: {
      test: 'runs it and shows its results, what it prints, and where it fails; exits with 1 when a message failed',
      build: 'puts it and the libraries that it imports into one file, for the API or the configuration file',
      save: 'creates it in a running Tailrace, or updates the one of its name; what it imports goes with it',
      FILE: 'JavaScript or TypeScript with a default export; of an enrichment SQL',
    },
    examples: [
      'tailrace function test masked.ts --watch',
      'tailrace function test masked.ts --database demo --table customer',
      'tailrace function test route.ts --sink-type meilisearch --input messages.json',
      'tailrace function test names.sql --database shop --table public.product',
      'tailrace function build slugs.ts --minify',
      'tailrace function save masked.ts --sink customers',
    ],
  },
  config: {
    usage: 'config plan | apply | export | interpolate [FILE] [options]',
    summary: 'show what a configuration file would change in a running Tailrace, apply it, or export what is there',
    run: async (args) => (await import('./config.ts')).config(args),
    options: CONFIG_OPTIONS,
    words: {
      plan: 'shows what applying the file would change; exits with 1 when something in it is wrong',
      apply: 'shows it, asks, and does it: all or nothing; what the file lacks stays',
      export: 'prints what the account has as a file, without account and tokens',
      interpolate: 'prints the file with its variables replaced: ${VAR}, ${VAR:-default}',
      FILE: 'the configuration file, tailrace.yaml; "-": the standard input',
    },
    examples: [
      'tailrace config export > tailrace.yaml',
      'tailrace config plan',
      'tailrace config apply shop.yaml --token a-good-token --url http://127.0.0.1:7376',
      'tailrace config interpolate - < shop.yaml | tailrace config apply - --auto-approve',
    ],
  },
  types: {
    usage: 'types DATABASE [options]',
    summary: 'write the types of a database’s rows, for the editor in which functions are written',
    run: async (args) => (await import('./types.ts')).types(args),
    options: TYPES_OPTIONS,
    words: {
      DATABASE: 'a name in the configuration file, "demo", or a URL: postgresql://user:password@host:port/database?sslmode=require',
    },
    examples: ['tailrace types shop --output shop.ts'],
  },
  version: { usage: 'version', summary: 'print the version', run: () => print(version()) },
  help: {
    usage: 'help [COMMAND]',
    summary: 'print this, or all about a command, as COMMAND --help does',
    run: ([about]) => print(about !== undefined && Object.hasOwn(COMMANDS, about) ? helpOf(COMMANDS[about] as Command) : help()),
    words: { COMMAND: 'start, demo, source, sink, function, config, types or version' },
    examples: ['tailrace help function'],
  },
}

const HELP = { type: 'boolean', means: 'prints this' } as const

const print = (text: string): void => void process.stdout.write(`${text}\n`)

function help(): string {
  const width = Math.max(...Object.values(COMMANDS).map(({ usage }) => usage.length))
  const lines = Object.values(COMMANDS).map(({ usage, summary }) => `  tailrace ${usage.padEnd(width)}   ${summary}`)
  return [
    'usage:',
    ...lines,
    '',
    'COMMAND --help explains its options. Settings are environment variables: docs/configuration.md lists them.',
  ].join('\n')
}

function helpOf({ usage, summary, words = {}, options = {}, examples = [] }: Command): string {
  const width = Math.max(0, ...Object.keys(words).map(({ length }) => length))
  const parts = [
    `usage: tailrace ${usage}\n  ${summary}\n`,
    ...(Object.keys(words).length > 0 ? [Object.entries(words).map(([word, means]) => `  ${word.padEnd(width)}   ${means}\n`).join('')] : []), // prettier-ignore
    `options:\n${listed({ ...options, help: HELP })}`,
    ...(examples.length > 0 ? [`example${examples.length > 1 ? 's' : ''}:\n${examples.map((line) => `  ${line}\n`).join('')}`] : []),
  ]
  return parts.join('\n').trimEnd()
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
    const { options, words } = command
    parseArgs({ args: rest, strict: true, allowPositionals: words !== undefined, options: { help: { ...HELP, short: 'h' }, ...options } })
  } catch (error) {
    return misunderstood(`${name}: ${(error as Error).message}`)
  }
  if (rest.includes('--help') || rest.includes('-h')) return print(helpOf(command))
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
