/** The commands of `tailrace`: finds the one that is meant and tells its failure in words, with the remedy. */
import { EngineError, ERRORS } from '../engine/errors.ts'
import { FUNCTION_FIELDS } from '../engine/state/function-kinds.ts'
import { columns, command, CommandFailed, flag, print, text, UsageError, type Command } from './command.ts'
import { version } from './version.ts'

const ACCESS_OPTIONS = {
  token: text('API_TOKEN', 'token of the account; without it that in TAILRACE_TOKEN, or of the demo in the data folder'),
  url: text('URL', 'where Tailrace listens; http://127.0.0.1:7376, or the port in SERVER_PORT'),
} as const
const REPLAY_OPTIONS = {
  to: text('TIME', 'what was committed then or later comes again: 2025-02-03T04:05:06Z'),
  lsn: text('LSN', 'the same from a position in the write-ahead log on: 16/B374D848'),
  offset: text('N', 'the same from a record of the log on, with --partition'),
  partition: text('P', 'the partition that --offset is of'),
  generation: text('G', 'the generation that --offset is of, where that is not the one delivered now'),
  ...ACCESS_OPTIONS,
} as const
const BACKFILL_OPTIONS = {
  all: flag('start: of every table that is published and that the sink takes; pause, resume, cancel: all that have not ended'),
  where: text('SQL', 'start: only rows that fulfil it, such as "tenant_id = 7"'),
  'sort-column': text('COLUMN', 'start: reads in the order of this column, which needs an index, from --from on'),
  from: text('VALUE', 'start: the lowest value of --sort-column that is read'),
  'max-timeout-ms': text('MS', 'start: a query of the source takes no longer; 5000'),
  wait: flag('start, resume, get: until all of them have ended, and shows how far they are; exits with 1 when one was not completed'),
  json: flag('prints what the API answers'),
  ...ACCESS_OPTIONS,
} as const
const FUNCTION_OPTIONS = {
  type: text('TYPE', `one of ${FUNCTION_FIELDS.join(', ')}; without it, what the file looks like`),
  'sink-type': text('TYPE', 'of a routing function, the type of its sinks: webhook, elasticsearch or meilisearch'),
  input: text('FILE', 'test: messages to run it on: one, a list, one a line, or an answer of the API; without it, an example'),
  database: text('DATABASE', 'test: where a query runs, and --table is: a name in the configuration file, "demo", or a URL'),
  table: text('TABLE', 'test: instead of --input the first ten rows of this table (schema.table), as inserts'),
  watch: flag('test: runs it again whenever a file changes; Ctrl-C ends'),
  output: text('FILE', 'build: where the result goes; FILE.bundle.js beside it'),
  minify: flag('build: a smaller result'),
  name: text('NAME', 'save: under which name; without it, that of the file'),
  sink: text('SINK', 'save: gives it to this sink, too'),
  ...ACCESS_OPTIONS,
} as const
const CONFIG_OPTIONS = {
  'auto-approve': flag('apply: without asking'),
  'show-sensitive': flag('export: with secrets as they are; without it they are shown in part, and stay what they are when applied'),
  output: text('FILE', 'interpolate: where the result goes; the standard output'),
  ...ACCESS_OPTIONS,
} as const
const TYPES_OPTIONS = {
  schema: text('NAME', 'only tables of this schema'),
  output: text('FILE', 'where the types go; the standard output'),
} as const

// Each command loads its own modules, so that `tailrace version` doesn't wait for a database driver.
const COMMANDS: Readonly<Record<string, Command>> = {
  start: command({
    summary: 'run the service: an embedded PostgreSQL with a demo, or what PG_URL and CONFIG_FILE_PATH say',
    examples: ['tailrace start', 'CONFIG_FILE_PATH=tailrace.yaml SERVER_PORT=8080 tailrace start'],
    run: async () => (await import('./start.ts')).start(),
  }),
  demo: command({
    usage: 'write | token',
    summary: 'make some changes in the demo database, or print its API token',
    verbs: { write: 'makes some changes in the demo database', token: 'prints the API token of the demo' },
    examples: ['TOKEN=$(tailrace demo token)'],
    run: async ({ verb }) => (await import('./demo.ts')).demo(verb),
  }),
  source: command({
    usage: 'retry | accept-gap NAME [options]',
    summary: 'let the source of a database try again, or go on although changes are missing',
    verbs: {
      retry: 'a source that has given up, or waits, tries again at once',
      'accept-gap': 'a source that stopped because changes are missing goes on without them',
    },
    word: ['NAME', 'of the database'],
    options: ACCESS_OPTIONS,
    examples: ['tailrace source retry shop --token a-good-token'],
    run: async ({ verb, word, values }) => (await import('./source.ts')).source(verb, word, values),
  }),
  sink: command({
    usage: 'replay NAME --to TIME | --lsn LSN | --offset N [options]',
    summary: 'set a sink back: what was committed there or later comes again',
    verbs: { replay: 'delivers again what was committed at a place or later' },
    word: ['NAME', 'of the sink'],
    options: REPLAY_OPTIONS,
    examples: ['tailrace sink replay orders --to 2025-02-03T04:05:06Z'],
    run: async ({ word, values }) => (await import('./sink.ts')).replay(word, values),
  }),
  backfill: command({
    usage: 'start | ls | get | pause | resume | cancel | delete SINK [TABLE…] [options]',
    summary: 'read the rows that are there into a sink, beside the stream',
    verbs: {
      start: 'begins to read tables; without one, that of a sink which takes only one',
      ls: 'lists the backfills of the sink, newest first',
      get: 'shows how far they are; without a table, the newest',
      pause: 'stands still until resume; without a table, the only one that has not ended',
      resume: 'goes on where it was paused, or where it failed',
      cancel: 'ends it; rows that were read are delivered all the same',
      delete: 'forgets it, and cancels it before if it has not ended',
    },
    word: ['SINK', 'its name'],
    more: ['TABLE', 'schema.table, without a schema that in public; but for start also the id of a backfill'],
    options: BACKFILL_OPTIONS,
    examples: [
      'tailrace backfill start products --wait',
      'tailrace backfill start shop public.product public.customer',
      'tailrace backfill start shop --all',
      'tailrace backfill start shop product --where "tenant_id = 7"',
      'tailrace backfill start shop orders --sort-column placed_at --from 2025-01-01',
      'tailrace backfill ls shop',
      'tailrace backfill pause shop orders',
    ],
    run: async ({ verb, word, more, values }) => (await import('./backfill.ts')).backfill(verb, { sink: word, words: more }, values),
  }),
  function: command({
    usage: 'test | build | save FILE [options]',
    summary: 'run a function from a file on messages, put it and what it imports into one file, or save it in a running Tailrace',
    verbs: {
      test: 'runs it and shows its results, what it prints, and where it fails; exits with 1 when a message failed',
      build: 'puts it and the libraries that it imports into one file, for the API or the configuration file',
      save: 'creates it in a running Tailrace, or updates the one of its name; what it imports goes with it',
    },
    word: ['FILE', 'JavaScript or TypeScript with a default export; of an enrichment SQL'],
    options: FUNCTION_OPTIONS,
    examples: [
      'tailrace function test masked.ts --watch',
      'tailrace function test masked.ts --database demo --table customer',
      'tailrace function test route.ts --sink-type meilisearch --input messages.json',
      'tailrace function test names.sql --database shop --table public.product',
      'tailrace function build slugs.ts --minify',
      'tailrace function save masked.ts --sink customers',
    ],
    run: async ({ verb, word, values }) => (await import('./function.ts')).runFunction(verb, word, values),
  }),
  config: command({
    usage: 'plan | apply | export | interpolate [FILE] [options]',
    summary: 'show what a configuration file would change in a running Tailrace, apply it, or export what is there',
    verbs: {
      plan: 'shows what applying the file would change; exits with 1 when something in it is wrong',
      apply: 'shows it, asks, and does it: all or nothing; what the file lacks stays',
      export: 'prints what the account has as a file, without account and tokens',
      interpolate: 'prints the file with its variables replaced: ${VAR}, ${VAR:-default}',
    },
    word: ['[FILE]', 'the configuration file, tailrace.yaml; "-": the standard input'],
    options: CONFIG_OPTIONS,
    examples: [
      'tailrace config export > tailrace.yaml',
      'tailrace config plan',
      'tailrace config apply shop.yaml --token a-good-token --url http://127.0.0.1:7376',
      'tailrace config interpolate - < shop.yaml | tailrace config apply - --auto-approve',
    ],
    run: async ({ verb, word, values }) => (await import('./config.ts')).config(verb, word, values),
  }),
  types: command({
    usage: 'DATABASE [options]',
    summary: 'write the types of a database’s rows, for the editor in which functions are written',
    word: ['DATABASE', 'a name in the configuration file, "demo", or a URL: postgresql://user:password@host:port/database?sslmode=require'],
    options: TYPES_OPTIONS,
    examples: ['tailrace types shop --output shop.ts'],
    run: async ({ word, values }) => (await import('./types.ts')).types(word, values),
  }),
  version: command({ summary: 'print the version', run: () => print(version()) }),
  help: command({
    usage: '[COMMAND]',
    summary: 'print this, or all about a command, as COMMAND --help does',
    word: ['[COMMAND]', 'the name of a command'],
    examples: ['tailrace help function'],
    run: ({ word }) => print(commandOf(word)?.help(word) ?? help()),
  }),
}

const commandOf = (name: string): Command | undefined => (Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined)

const help = (): string => `usage:
${columns(Object.entries(COMMANDS).map(([name, { usage, summary }]) => [`tailrace ${name} ${usage}`.trimEnd(), summary]))}

COMMAND --help explains its options. Settings are environment variables: docs/configuration.md lists them.`

const ALIASES: ReadonlyMap<string, string> = new Map([
  ['--help', 'help'],
  ['-h', 'help'],
  ['--version', 'version'],
  ['-v', 'version'],
])

/**
 * Runs a command. Sets the exit code: 0, 1 when the command failed, 2 when it was not understood.
 * @param argv the arguments behind the program's name
 */
export async function main(argv: readonly string[]): Promise<void> {
  const [first = 'help', ...args] = argv
  const name = ALIASES.get(first) ?? first
  const found = commandOf(name)
  if (!found) return failed(`tailrace: unknown command "${name}"\n\n${help()}`, 2)
  try {
    await found.run(name, args)
  } catch (error) {
    if (error instanceof UsageError) {
      const usage = `usage: tailrace ${name} ${found.usage}`.trimEnd()
      return failed(`${error.message === '' ? '' : `${error.message}\n`}${usage}   (tailrace ${name} --help says more)`, 2)
    }
    if (error instanceof CommandFailed) return failed(`tailrace ${name}: ${error.message}`, error.exitCode)
    if (error instanceof EngineError) return failed(inWords(error))
    failed(`tailrace ${name}: ${error instanceof Error ? error.stack : String(error)}`)
  }
}

function failed(words: string, exitCode = 1): void {
  process.stderr.write(`${words}\n`)
  process.exitCode = exitCode
}

const inWords = ({ code, message }: EngineError): string =>
  `${code}:${message.includes('\n') ? '\n' : ' '}${message}\n  ${ERRORS[code].remedy}`
