/** Options of the commands, each with what it means: for who parses a command, for who only checks it, and for `--help`. */

/** @property value what stands for its value in the help; absent: it has none */
type Option = Readonly<{ type: 'string' | 'boolean'; value?: string; means: string }>
export type Options = Readonly<Record<string, Option>>

const text = <V extends string>(value: V, means: string) => ({ type: 'string', value, means }) as const
const flag = (means: string) => ({ type: 'boolean', means }) as const

export const ACCESS_OPTIONS = {
  token: text('API_TOKEN', 'token of the account; without it that in TAILRACE_TOKEN, or of the demo in the data folder'),
  url: text('URL', 'where Tailrace listens; http://127.0.0.1:7376, or the port in SERVER_PORT'),
} as const
export const REPLAY_OPTIONS = {
  to: text('TIME', 'what was committed then or later comes again: 2025-02-03T04:05:06Z'),
  lsn: text('LSN', 'the same from a position in the write-ahead log on: 16/B374D848'),
  offset: text('N', 'the same from a record of the log on, with --partition'),
  partition: text('P', 'the partition that --offset is of'),
  generation: text('G', 'the generation that --offset is of, where that is not the one delivered now'),
  ...ACCESS_OPTIONS,
} as const
export const FUNCTION_OPTIONS = {
  type: text('TYPE', 'filter, transform, routing or enrichment; without it, what the file looks like'),
  'sink-type': text('TYPE', 'of a routing function, the type of its sinks: webhook, elasticsearch or meilisearch'),
  input: text('FILE', 'test: messages to run it on: one, a list, one a line, or an answer of the API; without it, an example'),
  database: text('DATABASE', 'test: where a query runs, and --table is: a name in the configuration file, "demo", or a URL'),
  table: text('TABLE', 'test: instead of --input the first ten rows of this table (schema.table), as inserts'),
  watch: flag('test: runs it again whenever a file changes; Ctrl-C ends'),
  output: text('FILE', 'build: where the result goes; FILE.bundle.js beside it'),
  minify: flag('build: a smaller result'),
  name: text('NAME', 'save: under which name; without it, that of the file'),
  sink: text('SINK', 'save: gives it to this sink, too'),
  token: text('API_TOKEN', 'save: token of the account; without it that in TAILRACE_TOKEN, or of the demo in the data folder'),
  url: text('URL', 'save: where Tailrace listens; http://127.0.0.1:7376, or the port in SERVER_PORT'),
} as const
export const CONFIG_OPTIONS = {
  'auto-approve': flag('apply: without asking'),
  'show-sensitive': flag('export: with secrets as they are; without it they are shown in part, and stay what they are when applied'),
  output: text('FILE', 'interpolate: where the result goes; the standard output'),
  ...ACCESS_OPTIONS,
} as const
export const TYPES_OPTIONS = {
  schema: text('NAME', 'only tables of this schema'),
  output: text('FILE', 'where the types go; the standard output'),
} as const

/** A line for each option. */
export function listed(options: Options): string {
  const names = Object.entries(options).map(([name, { value }]) => `--${name}${value === undefined ? '' : ` ${value}`}`)
  const width = Math.max(...names.map(({ length }) => length))
  return Object.values(options)
    .map(({ means }, i) => `  ${(names[i] as string).padEnd(width)}   ${means}\n`)
    .join('')
}
