/** `npm run docs`: writes the pages, and the dashboard, that are a table of the code, so that they can't drift from it. */
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { COMMANDS } from '../cli/main.ts'
import { IGNORED, VARIABLES } from '../cli/settings.ts'
import { ERRORS } from '../engine/errors.ts'
import { Metrics, type Subject } from '../engine/metrics.ts'
import { SinkSettings } from '../engine/state/resources.ts'
import { grafanaDashboard } from './grafana-dashboard.ts'
import { AGAIN, CELLS, FAULTS, LEFT_OUT, LOST, MEMORIES, type Cell } from './recovery-cells.ts'

/** Page, or other file of this folder, by its name. */
export function generatedPages(): Readonly<Record<string, string>> {
  return {
    'cli.md': commands(),
    'errors.md': errorCatalogue(),
    'metrics.md': metrics(),
    'monitoring/grafana-dashboard.json': grafanaDashboard(),
    'recovery.md': recovery(),
    'settings.md': settings(),
  }
}

const cell = (text: string): string => text.replaceAll('|', '\\|').replaceAll('\n', ' ')

function commands(): string {
  const list = Object.entries(COMMANDS).map(([name, { summary }]) => `| [\`${name}\`](#${name}) | ${cell(summary)} |`)
  const each = Object.entries(COMMANDS).map(([name, { help }]) => `## ${name}\n\n\`\`\`\n${help(name)}\n\`\`\`\n`)
  return `# The command

\`tailrace\`, or \`npx tailrace\` in a clone, runs the service and asks one that runs. \`tailrace COMMAND --help\` prints what stands below.
This page is made from the commands by \`npm run docs\`.

| command | what it does |
|---|---|
${list.join('\n')}

- **Which service.** Options (\`--url\`, \`--token\`) stand before the context that \`--context\` names, that before \`TAILRACE_URL\` and
  \`TAILRACE_TOKEN\`, and these before the context that is selected. Without any of them it is the service of this machine with its demo. A
  token on the command line is seen by all users of the machine: set \`TAILRACE_TOKEN\`, or keep it once with \`tailrace context add\`. Contexts are
  in \`~/.config/tailrace/contexts.json\`, which only its owner can read.
- **Exit codes.** 0: done. 1: it failed, or what was looked at is not well. 2: it was not understood, or something that it needs is missing, such as a token.
- **For programs.** \`--json\` prints JSON to the standard output, where a command has something to tell. What goes wrong, and progress, goes to the standard error. Colours
  and progress are for terminals alone; \`NO_COLOR\` turns colours off.
- **Completion** for bash, zsh and fish: [completion](#completion).

${each.join('\n')}`
}

function errorCatalogue(): string {
  const rows = Object.entries(ERRORS)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(
      ([code, { status, retry, meaning, remedy }]) =>
        `| \`${code}\` | ${status} | ${retry ? 'yes' : 'no'} | ${cell(meaning)} | ${cell(remedy)} |`,
    )
  return `# Errors

Every failure has a code. It stands in logs (\`code\`), in \`GET /info\` and in what the command prints; choose by it, never by the
text. A released code keeps its meaning and is never used for another. *Retry* says whether the same thing can succeed later by
itself: Tailrace then tries again on its own, and a client may too. The status is that of an HTTP answer which the failure causes.

Where a remedy says to touch rows: an update that changes nothing sends them again, see [rows from before the window](replay.md#rows-from-before-the-window).

This page is made from the table in \`engine/errors.ts\` by \`npm run docs\`.

| code | status | retry | what happened | what to do |
|---|---|---|---|---|
${rows.join('\n')}
`
}

const SUBJECTS: Readonly<Record<Subject, string>> = {
  source: '## Sources\n\nLabels `replication_slot_id`, `slot_name`; of the slot size `database_id`, `database_name` too.',
  stream:
    '## Streams\n\nLabels `stream` (its topic), `database_id`, `database_name`; of its readers `consumer_id`, `consumer_name` too. Told by the node that streams the database, as they were some seconds ago.',
  sink: '## Sinks\n\nLabels `consumer_id`, `consumer_name`; of the delivery latency also `success` (`ok`, `error`).',
  partition: '## Partitions of sinks\n\nLabels `consumer_id`, `consumer_name`, `partition`.',
  process: '## The process',
}

function metrics(): string {
  const { families } = new Metrics({ version: '', processMetrics: false })
  const sections = Object.entries(SUBJECTS).map(([subject, title]) => {
    const rows = families.filter(({ of }) => of === subject).map(({ name, kind, help }) => `| \`${name}\` | ${kind} | ${cell(help)} |`)
    return `${title}\n\n| metric | kind | meaning |\n|---|---|---|\n${rows.join('\n')}\n`
  })
  return `# Metrics

In Prometheus form at \`/metrics\` of the metrics port ([configuration](configuration.md#metrics-and-logs)), and where a collector of
OpenTelemetry is set [there](telemetry.md#opentelemetry), too. Every process tells of what
it does itself: counts of a sink add up over the nodes that serve its partitions, and a source is told of by the node that streams it.
Counters begin at 0 with the process. Beside these there are Node's own figures; the lag of its event loop (\`nodejs_eventloop_lag_…\`) is looked
for ten times a second, and 0 when the loop is on time.

Total latency is the internal latency, which begins at the commit, and the delivery latency.

An acknowledged delivery counts as an attempt and a success. One that comes to nothing is a failure, and its message's next delivery
another attempt. An ack that comes after the visibility time counts as a success too, so successes can be as many as messages while
failures tell how often clients were too slow.

This page is made from \`engine/metrics.ts\` by \`npm run docs\`.

${sections.join('\n')}`
}

/** What a page needs to know of a JSON schema. */
type Described = Readonly<{
  description?: string
  type?: string
  const?: unknown
  anyOf?: readonly Described[]
  items?: Described
  minimum?: number
  maximum?: number
  default?: unknown
}>

function takes(schema: Described): string {
  if (schema.anyOf) return schema.anyOf.map((one) => (one.description ? `${takes(one)} (${one.description})` : takes(one))).join(', ')
  if (schema.const !== undefined) return `\`${String(schema.const)}\``
  if (schema.type === 'array') return `list of ${takes(schema.items ?? {})}`
  if (schema.type !== 'integer') return { string: 'text', boolean: '`true`, `false`' }[schema.type ?? ''] ?? schema.type ?? 'any'
  const { minimum, maximum } = schema
  return maximum === undefined ? `whole number from ${minimum}` : `whole number from ${minimum} to ${maximum}`
}

function settings(): string {
  const variables = Object.entries(VARIABLES).map(([name, { schema }]) => {
    const described = schema as Described
    return `| \`${name}\` | ${cell(takes(described))} | ${cell(described.description ?? '')} |`
  })
  const keys = Object.entries(SinkSettings.properties).map(([name, schema]) => {
    const { default: preset, description = '', ...described } = schema as Described
    return `| \`${name}\` | ${cell(takes(described))} | ${preset === undefined ? '' : `\`${JSON.stringify(preset)}\``} | ${cell(description)} |`
  })
  return `# Every setting

[Configuration](configuration.md) says how they work together. This page is made from the schemas that check them, by \`npm run docs\`.

## Environment variables

A wrong value stops the start, and all wrong ones are told at once. An empty variable counts as unset.

| variable | takes | meaning (default) |
|---|---|---|
${variables.join('\n')}

Taken in without effect, and named in the log when set: ${IGNORED.map((name) => `\`${name}\``).join(', ')}.

## Keys of a sink

Beside \`destination\`, which says where the messages go. Without a default a key is required, or empty.

| key | takes | default | meaning |
|---|---|---|---|
${keys.join('\n')}
`
}

function recovery(): string {
  const sections = Object.entries(MEMORIES).map(([memory, title]) => {
    const cells = Object.values<Cell>(CELLS).filter((one) => one.memory === memory)
    cells.sort((a, b) => FAULTS.indexOf(a.fault) - FAULTS.indexOf(b.fault) || a.log.localeCompare(b.log))
    const rows = cells.map(({ fault, log, how, code, notice, remedy, lost, again, why }) =>
      [
        memory === 'log' && log === 'kafka' ? `${fault} (Kafka)` : fault,
        `${how} ${why}`,
        code !== undefined
          ? `[\`${code}\`](errors.md)`
          : notice !== undefined
            ? `in its log: the slot “${notice}”`
            : 'nothing: it goes on by itself',
        remedy ?? '',
        LOST[lost],
        AGAIN[again],
      ].map(cell),
    )
    const table = rows.map((row) => `| ${row.join(' | ')} |`).join('\n')
    return `## ${title}\n\n| | what happens | what Tailrace says | what mends it | lost at the most | comes again |\n|---|---|---|---|---|---|\n${table}\n`
  })
  return `# What happens when something is lost, swapped or set back

Three memories know of each other. The **source** knows its slot, and how far that was confirmed. The **log** holds what was confirmed and
is not delivered. The **state database** knows how far the source was read, which log that went into, and what is parked. They are compared
before anything is read or sent: what doesn't fit is an error with a name, and never a silent gap.

"Lost at the most" is what is missing after the remedy and before rows are touched; [touching rows](replay.md#rows-from-before-the-window)
brings every row that the source still has. Deletes that are missing don't come that way. "Comes again" are messages that were acknowledged
before. What is written after the remedy is never skipped.

Each line is a test: it happens to a service at work, the remedy is followed as the error says it, and every row is counted.
This page is made from the table of those tests by \`npm run docs\`.

${sections.join('\n')}
## What is not in the tables

${LEFT_OUT.map(({ what, why }) => `- ${what}. ${why}`).join('\n')}
`
}

if (import.meta.main) for (const [name, text] of Object.entries(generatedPages())) await writeFile(join(import.meta.dirname, name), text)
