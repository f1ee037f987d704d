/** The commands of `tailrace`: finds the one that is meant and tells its failure in words, with the remedy. */
import { EngineError, ERRORS } from '../engine/errors.ts'
import { FUNCTION_FIELDS } from '../engine/state/function-kinds.ts'
import { columns, command, CommandFailed, flag, print, printJson, text, UsageError, type Command } from './command.ts'
import { SHELLS } from './completion.ts'
import { version } from './version.ts'

const ACCESS_OPTIONS = {
  token: text('API_TOKEN', 'token of the account; without it that in TAILRACE_TOKEN, or of the demo in the data folder'),
  url: text('URL', 'where Tailrace listens; without it that in TAILRACE_URL, of the selected context, or http://127.0.0.1:7376'),
  context: text('NAME', 'takes both from a context (tailrace context add); it may also stand before the command'),
} as const
const JSON_OPTION = { json: flag('prints what the API answers') } as const
const AS_JSON = { json: flag('prints JSON') } as const
const SOURCE_OPTIONS = { ...JSON_OPTION, ...ACCESS_OPTIONS } as const
const CONTEXT_OPTIONS = {
  url: text('URL', 'add: where Tailrace listens; without it that in TAILRACE_URL, or http://127.0.0.1:7376'),
  token: text(
    'API_TOKEN',
    'add: its token, which others see in the list of processes; without it that in TAILRACE_TOKEN, or it is asked for',
  ),
  select: flag('add: selects it, too; the first one is selected in any case'),
  ...AS_JSON,
} as const
const PLACES = {
  to: text('TIME', 'replay: what was committed then or later comes again: 2025-02-03T04:05:06Z'),
  lsn: text('LSN', 'replay: the same from a position in the write-ahead log on: 16/B374D848'),
  offset: text('N', 'replay: the same from a record of the log on, with --partition'),
  partition: text('P', 'replay: the partition that --offset is of'),
  generation: text('G', 'replay: the generation that --offset is of, where that is not the one delivered now'),
} as const
const REPLAY_OPTIONS = { ...PLACES, ...JSON_OPTION, ...ACCESS_OPTIONS } as const
const SINKS_OPTIONS = { yes: flag('delete: without asking'), ...REPLAY_OPTIONS } as const
const MESSAGES_OPTIONS = {
  state: text('STATE', 'all of a state: open (they wait), failing (of these, those that failed) or discarded; ls also delivered'),
  order: text('ORDER', 'ls: oldest first, or newest; oldest'),
  limit: text('N', 'ls: at most so many; 100'),
  ...JSON_OPTION,
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
const TAIL_OPTIONS = { json: flag('prints each message as a line of JSON, whole'), ...ACCESS_OPTIONS } as const
const TOP_OPTIONS = {
  once: flag('prints once, after a second; so does a standard output that is no terminal'),
  interval: text('SECONDS', 'between two looks; 2'),
  json: flag('prints once, as JSON'),
  ...ACCESS_OPTIONS,
} as const
const DOCTOR_OPTIONS = {
  slot: text('SLOT', 'of the DATABASE that is named: this slot, too'),
  publication: text('PUBLICATION', 'of the DATABASE that is named: this publication and its tables, too'),
  json: flag('prints every check as JSON'),
  ...ACCESS_OPTIONS,
} as const
const VERIFY_OPTIONS = {
  mode: text('MODE', 'count: how many there are; sample: some of the rows; full: every row, and every document; full'),
  sample: text('N', 'about so many rows, of --mode sample; 1000'),
  redeliver: flag('has the rows that are missing or different read again and delivered, by backfills of just these'),
  backfill: flag('the same'),
  limit: text('N', 'prints at most so many keys that differ; all of them are counted; 1000'),
  json: flag('prints what was found as JSON'),
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
  json: flag('prints JSON: the results of test, the file of build, what the API answers to save'),
  ...ACCESS_OPTIONS,
} as const
const CONFIG_OPTIONS = {
  'auto-approve': flag('apply: without asking'),
  'show-sensitive': flag('export: with secrets as they are; without it they are shown in part, and stay what they are when applied'),
  output: text('FILE', 'interpolate: where the result goes; the standard output'),
  json: flag('plan, apply: prints the plan as the API answers it; export, interpolate: the file as JSON'),
  ...ACCESS_OPTIONS,
} as const
const TOKEN_OPTIONS = {
  scopes: text('SCOPES', 'create: what it may do, with commas between: receive, read, manage, admin; without it, all'),
  sinks: text('SINKS', 'create: the sinks that the scope receive is for, with commas between; "*": all'),
  expires: text('TIME', 'create: it works until then: 2027-01-31T00:00:00Z; without it, until it is revoked'),
  json: flag('prints what the API answers'),
  ...ACCESS_OPTIONS,
} as const
const TYPES_OPTIONS = {
  schema: text('NAME', 'only tables of this schema'),
  output: text('FILE', 'where the types go; the standard output'),
  ...AS_JSON,
} as const

// Each command loads its own modules, so that `tailrace version` doesn't wait for a database driver.
/** The commands by their names. */
export const COMMANDS: Readonly<Record<string, Command>> = {
  start: command({
    summary: 'run the service: an embedded PostgreSQL with a demo, or what PG_URL and CONFIG_FILE_PATH say',
    examples: ['tailrace start', 'CONFIG_FILE_PATH=tailrace.yaml SERVER_PORT=8080 tailrace start'],
    run: async () => (await import('./start.ts')).start(),
  }),
  demo: command({
    usage: 'write | token',
    summary: 'make some changes in the demo database, or print its API token',
    verbs: { write: 'makes some changes in the demo database', token: 'prints the API token of the demo' },
    options: AS_JSON,
    examples: ['TOKEN=$(tailrace demo token)'],
    run: async ({ verb, values }) => (await import('./demo.ts')).demo(verb, values.json === true),
  }),
  source: command({
    usage: 'retry | accept-gap NAME [options]',
    summary: 'let the source of a database try again, or go on although changes are missing',
    verbs: {
      retry: 'a source that has given up, or waits, tries again at once',
      'accept-gap': 'a source that stopped because changes are missing goes on without them',
    },
    word: ['NAME', 'of the database'],
    options: SOURCE_OPTIONS,
    examples: ['tailrace source retry shop', 'tailrace source accept-gap shop'],
    run: async ({ verb, word, values }) => (await import('./source.ts')).source(verb, word, values),
  }),
  sink: command({
    usage: 'replay NAME --to TIME | --lsn LSN | --offset N [options]',
    summary: 'the same as sinks replay: what was committed there or later comes again',
    verbs: { replay: 'delivers again what was committed at a place or later' },
    word: ['NAME', 'of the sink'],
    options: REPLAY_OPTIONS,
    examples: ['tailrace sink replay orders --to 2025-02-03T04:05:06Z'],
    run: async ({ word, values }) => (await import('./sink.ts')).replay(word, values),
  }),
  context: command({
    usage: 'add | ls | select | info | rm [NAME] [options]',
    summary: 'name services with their tokens, and select the one that commands ask',
    verbs: {
      add: 'keeps an address and its token, in a file that only its owner can read; one of that name is replaced',
      ls: 'lists them; the selected one has a *',
      select: 'commands ask this one from now on',
      info: 'shows one, or the selected one, with enough of its token to know it',
      rm: 'forgets one',
    },
    word: ['[NAME]', 'of the context'],
    options: CONTEXT_OPTIONS,
    examples: [
      'tailrace context add prod --url https://tailrace.example.com',
      'tailrace context add local --url http://127.0.0.1:7376 < token.txt',
      'tailrace context select prod',
      'tailrace --context prod sinks ls',
    ],
    run: async ({ verb, word, values }) => (await import('./context.ts')).context(verb, word, values),
  }),
  sinks: command({
    usage: 'ls | get | pause | resume | create | delete | replay [SINK…|FILE] [options]',
    summary: 'show, pause, make, delete and set back sinks',
    verbs: {
      ls: 'lists them with their health',
      get: 'shows one with its settings and each check of its health',
      pause: 'delivers nothing until resume; what comes meanwhile is kept',
      resume: 'goes on',
      create: 'makes one from a file, as it would stand in the configuration file ("-": the standard input)',
      delete: 'deletes it, with everything that waits there',
      replay: 'sets it back: delivers again what was committed at a place or later',
    },
    word: ['[SINK]', 'its name; of create the file'],
    more: ['MORE', 'further sinks'],
    options: SINKS_OPTIONS,
    examples: [
      'tailrace sinks ls',
      'tailrace sinks get orders --json',
      'tailrace sinks pause orders customers',
      'tailrace sinks create orders.yaml',
      'tailrace sinks delete orders --yes',
      'tailrace sinks replay orders --to 2025-02-03T04:05:06Z',
    ],
    run: async ({ verb, word, more, values: { yes, to, lsn, offset, partition, generation, ...values } }) => {
      const place = { to, lsn, offset, partition, generation }
      const words = word === '' ? [] : [word, ...more]
      if (verb === 'replay') return (await import('./sink.ts')).replayed(words, { yes, ...place, ...values })
      const wrong = Object.entries(place).find(([, text]) => text !== undefined)
      if (wrong) throw new UsageError(`--${wrong[0]} is of replay, not of ${verb}`)
      return (await import('./sinks.ts')).sinks(verb, words, { ...(yes !== undefined && { yes }), ...values })
    },
  }),
  databases: command({
    usage: 'ls | get | tables | test [NAME] [options]',
    summary: 'show databases and their tables, and try to reach them',
    verbs: {
      ls: 'lists them',
      get: 'shows one with its settings; of its password only enough to know it',
      tables: 'lists its tables, with what is published of them and what identifies a row',
      test: 'tries all that reading it needs; exits with 1 and the reason when something is missing',
    },
    word: ['[NAME]', 'of the database'],
    options: SOURCE_OPTIONS,
    examples: ['tailrace databases ls', 'tailrace databases test shop', 'tailrace databases tables shop --json'],
    run: async ({ verb, word, values }) => (await import('./databases.ts')).databases(verb, word, values),
  }),
  messages: command({
    usage: 'ls | get | redeliver | acknowledge | discard SINK [ID…] [options]',
    summary: 'look at the messages of a sink that wait, failed, were given up or delivered, and edit them',
    verbs: {
      ls: 'lists those that wait outside the log, or were discarded',
      get: 'shows one with its content, what functions make of it, and its attempts',
      redeliver: 'delivers them again at once',
      acknowledge: 'drops them as if they had been delivered',
      discard: 'gives them up; they stay on record',
    },
    word: ['SINK', 'its name'],
    more: ['ID', 'of a message, as ls shows it'],
    options: MESSAGES_OPTIONS,
    examples: [
      'tailrace messages ls orders --state failing',
      'tailrace messages redeliver orders --state failing',
      'tailrace messages ls orders --json',
    ],
    run: async ({ verb, word, more, values }) => (await import('./messages.ts')).messages(verb, { sink: word, ids: more }, values),
  }),
  tail: command({
    usage: 'SINK [options]',
    summary: 'print what comes to a sink as it comes, behind its functions; it takes nothing from its clients and holds back nothing',
    word: ['SINK', 'its name'],
    options: TAIL_OPTIONS,
    examples: ['tailrace tail orders', 'tailrace tail orders --json | jq \'select(.action == "delete") | .message.record.id\''],
    run: async ({ word, values }) => (await import('./tail.ts')).tail(word, values),
  }),
  top: command({
    usage: '[options]',
    summary: 'show databases and sinks as they are: rates, lag, what fails',
    options: TOP_OPTIONS,
    examples: ['tailrace top', "tailrace top --json | jq '.sinks[] | select(.backlog_bytes > 1e9) | .name'"],
    run: async ({ values }) => (await import('./top.ts')).top(values),
  }),
  doctor: command({
    usage: '[DATABASE] [options]',
    summary: 'check this installation, the service that runs and its databases, with what mends what is wrong; exits with 1 at errors',
    word: [
      '[DATABASE]',
      'only this one, which Tailrace need not know: a name in the configuration file, "demo", or a URL, postgresql://user:password@host:port/database',
    ],
    options: DOCTOR_OPTIONS,
    examples: [
      'tailrace doctor',
      'tailrace doctor postgresql://tailrace@db.example.com/shop --slot tailrace --publication tailrace',
      'tailrace doctor --json | jq \'.checks[] | select(.status != "ok")\'',
    ],
    run: async ({ word, values }) => (await import('./doctor.ts')).doctor(word, values),
  }),
  verify: command({
    usage: 'SINK [TABLE] [options]',
    summary:
      'compare a table with what the destination of a sink has (Elasticsearch, OpenSearch, Meilisearch), or the stream of a pull sink; exits with 1 when something differs',
    word: ['SINK', 'its name'],
    more: ['TABLE', 'schema.table, without a schema that in public; it may be left out where the sink names just one'],
    options: VERIFY_OPTIONS,
    examples: [
      'tailrace verify products',
      'tailrace verify products --mode count',
      'tailrace verify products --sample 5000',
      'tailrace verify shop public.product --redeliver',
    ],
    run: async ({ word, more, values }) => (await import('./verify.ts')).verify(word, more, values),
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
  token: command({
    usage: 'create | ls | revoke [NAME] [options]',
    summary: 'create, list or revoke API tokens of the account; needs a token with the scope admin',
    verbs: {
      create: 'creates a token, and prints its text, which is shown once',
      ls: 'lists the tokens: what they may do, and when they were used last',
      revoke: 'ends a token: it works no more, in any process',
    },
    word: ['[NAME]', 'of the token; for revoke also its id'],
    options: TOKEN_OPTIONS,
    examples: [
      'tailrace token create search-worker --scopes receive --sinks products',
      'TAILRACE_TOKEN=$(tailrace token create ci --scopes manage)',
      'tailrace token ls',
      'tailrace token revoke search-worker',
    ],
    run: async ({ verb, word, values }) => (await import('./token.ts')).token(verb, word, values),
  }),
  user: command({
    usage: 'setup-code',
    summary: 'print the code by which the first user of the console is set up',
    verbs: { 'setup-code': 'prints it, from VAULT_KEY or the data folder; it is good while there is no user' },
    options: AS_JSON,
    examples: ['tailrace user setup-code'],
    run: async ({ values }) => (await import('./user.ts')).setupCode(values.json === true),
  }),
  vault: command({
    usage: 'rotate',
    summary: 'encrypt all secrets of the state database by another key, also while Tailrace runs',
    verbs: { rotate: 'encrypts them by VAULT_KEY, and reads them by VAULT_KEY_OTHER; without VAULT_KEY, by a new key of the data folder' },
    options: AS_JSON,
    examples: ['VAULT_KEY=$NEW_KEY VAULT_KEY_OTHER=$OLD_KEY tailrace vault rotate', 'tailrace vault rotate'],
    run: async ({ values }) => (await import('./vault.ts')).rotate(values.json === true),
  }),
  types: command({
    usage: 'DATABASE [options]',
    summary: 'write the types of a database’s rows, for the editor in which functions are written',
    word: ['DATABASE', 'a name in the configuration file, "demo", or a URL: postgresql://user:password@host:port/database?sslmode=require'],
    options: TYPES_OPTIONS,
    examples: ['tailrace types shop --output shop.ts'],
    run: async ({ word, values }) => (await import('./types.ts')).types(word, values),
  }),
  completion: command({
    usage: 'bash | zsh | fish',
    summary: 'print the script by which a shell completes these commands',
    verbs: SHELLS,
    examples: [
      'tailrace completion bash >> ~/.bashrc',
      'tailrace completion zsh >> ~/.zshrc',
      'tailrace completion fish > ~/.config/fish/completions/tailrace.fish',
    ],
    run: async ({ verb }) => void process.stdout.write((await import('./completion.ts')).completion(verb, COMMANDS)),
  }),
  version: command({
    summary: 'print the version',
    options: AS_JSON,
    run: ({ values }) => (values.json === true ? printJson({ version: version() }) : print(version())),
  }),
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

COMMAND --help explains its options. Exit codes: 0 done, 1 it failed, 2 it was not understood. Settings are environment variables: docs/configuration.md lists them.`

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
  const [first = 'help', ...args] = withContextBehind(argv)
  const name = ALIASES.get(first) ?? first
  const found = commandOf(name)
  if (!found) return failed(`tailrace: unknown command "${name}"\n\n${help()}`, 2)
  try {
    await found.run(name, args)
  } catch (error) {
    if (found.options['json'] !== undefined && args.includes('--json')) return failed(asJson(error), exitCodeOf(error))
    if (error instanceof UsageError) {
      const usage = `usage: tailrace ${name} ${found.usage}`.trimEnd()
      return failed(`${error.message === '' ? '' : `${error.message}\n`}${usage}   (tailrace ${name} --help says more)`, 2)
    }
    if (error instanceof CommandFailed) return failed(`tailrace ${name}: ${error.message}`, error.exitCode)
    if (error instanceof EngineError) return failed(inWords(error))
    failed(`tailrace ${name}: ${error instanceof Error ? error.stack : String(error)}`)
  }
}

/** Options stand behind a command; only that of the context may stand before it. */
function withContextBehind(argv: readonly string[]): readonly string[] {
  const [first = '', second, ...more] = argv
  if (first === '--context' && second !== undefined) return more.length > 0 ? [...more, first, second] : argv
  return first.startsWith('--context=') && second !== undefined ? [second, ...more, first] : argv
}

function failed(words: string, exitCode = 1): void {
  process.stderr.write(`${words}\n`)
  process.exitCode = exitCode
}

const exitCodeOf = (error: unknown): number => (error instanceof UsageError ? 2 : error instanceof CommandFailed ? error.exitCode : 1)

/** One line: the code of the engine or the API, or USAGE, or none; and what mends it, where that is known. */
function asJson(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error)
  if (error instanceof EngineError) return JSON.stringify({ error: { code: error.code, message, remedy: ERRORS[error.code].remedy } })
  const code = error instanceof UsageError ? 'USAGE' : error instanceof CommandFailed ? (error.code ?? null) : null
  return JSON.stringify({ error: { code, message } })
}

const inWords = ({ code, message }: EngineError): string =>
  `${code}:${message.includes('\n') ? '\n' : ' '}${message}\n  ${ERRORS[code].remedy}`
