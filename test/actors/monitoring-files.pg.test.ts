/** The dashboard and the alert rules of docs/monitoring name what a running service tells, and nothing else. */
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { parser } from '@prometheus-io/lezer-promql'
import { parse } from 'yaml'
import { Metrics } from '../../engine/metrics.ts'
import { pages, root } from '../docs/pages.ts'
import { anchorsOf } from '../docs/anchors.ts'
import { createDatabase, createState } from '../services/postgres.ts'
import { until } from '../waiting.ts'
import { applyYaml, databaseEntry, startNode } from './engine-node.ts'

type Rule = Readonly<{
  alert: string
  expr: string
  for?: string
  labels: { severity: string }
  annotations: Readonly<Record<string, string>>
}>
type Panel = Readonly<{ title: string; targets?: readonly Readonly<{ expr: string; legendFormat: string }>[] }>
type Query = Readonly<{ where: string; expr: string; shown: string }>

const read = (name: string): string => readFileSync(join(root, 'docs', 'monitoring', name), 'utf8')
const rules = (parse(read('alert-rules.yml')) as { groups: readonly { rules: readonly Rule[] }[] }).groups.flatMap((group) => group.rules)
const dashboard = JSON.parse(read('grafana-dashboard.json')) as {
  panels: readonly Panel[]
  templating: { list: readonly { definition?: string }[] }
}

const queries: readonly Query[] = [
  ...rules.map(({ alert, expr, annotations }) => ({ where: alert, expr, shown: Object.values(annotations).join(' ') })),
  ...dashboard.panels.flatMap(({ title, targets = [] }) =>
    targets.map(({ expr, legendFormat }) => ({ where: title, expr: expr.replaceAll('$__rate_interval', '1m'), shown: legendFormat })),
  ),
  ...dashboard.templating.list.flatMap(({ definition }) => {
    const [, metric, label] = /^label_values\((\w+), (\w+)\)$/.exec(definition ?? '') ?? []
    return metric === undefined ? [] : [{ where: 'a variable', expr: metric, shown: `{{${label}}}` }]
  }),
]

/** What an expression names: its metrics, and labels of whatever it selects or keeps. @throws AssertionError: it can't be parsed */
function namedIn({ where, expr, shown }: Query): Readonly<{ metrics: readonly string[]; labels: readonly string[] }> {
  const metrics: string[] = []
  const labels = [...shown.matchAll(/\{\{ *(?:\$labels\.)?(\w+)(?=[ }])/g)].map(([, label]) => label as string)
  parser.parse(expr).iterate({
    enter: ({ name, type, from, to, node }) => {
      const text = expr.slice(from, to)
      assert.ok(!type.isError, `${where}: "${expr}" is wrong at ${from}`)
      if (name === 'Identifier' && node.parent?.name === 'VectorSelector') metrics.push(text)
      if (name === 'LabelName') labels.push(text)
    },
  })
  return { metrics, labels }
}

/** Prometheus adds these itself. */
const OF_PROMETHEUS = ['instance', 'job']

/** Label names by metric, as a scrape has them. */
function scraped(text: string): ReadonlyMap<string, ReadonlySet<string>> {
  const labels = new Map<string, Set<string>>()
  for (const [, name] of text.matchAll(/^# TYPE (\w+)/gm)) labels.set(name as string, new Set())
  for (const [, name, list = ''] of text.matchAll(/^(\w+)(?:\{(.*)\})? /gm)) {
    const known = labels.get(name as string) ?? new Set()
    for (const [, label] of list.matchAll(/(\w+)="/g)) known.add(label as string)
    labels.set(name as string, known)
  }
  return labels
}

test('every query of the dashboard and the alert rules parses, and names metrics and labels of a running service', async () => {
  await using state = await createState()
  await using source = await createDatabase('create table goods (id int primary key)')
  await applyYaml(
    state.connection,
    `
account: { name: shop }
databases: [${databaseEntry(source)}]
sinks:
  - { name: goods, database: shop, source: {}, destination: { type: sequin_stream } }
`,
  )
  await using node = await startNode({ name: 'only', state: state.connection })
  node.metrics.errorAnswered('NOT_FOUND')
  const text = await until('the service tells of its slot, its streams and their readers', async () => {
    const now = await node.metrics.text()
    const names = ['sequin_replication_slot_size', 'tailrace_reader_backlog_bytes', 'tailrace_partition_parked_messages']
    return names.every((name) => now.includes(`\n${name}{`)) ? now : undefined
  })
  const told = scraped(text)
  const ofProcess = scraped(await new Metrics({ version: '1' }).text())
  const subjects = Map.groupBy(node.metrics.families, ({ of }) => of)
  /** of a metric that has no line at the moment, the labels of what else is told of the same things */
  const labelsOf = (metric: string): ReadonlySet<string> => {
    const own = told.get(metric) ?? ofProcess.get(metric) ?? new Set()
    const subject = node.metrics.families.find(({ name }) => name === metric)?.of
    if (own.size > 0 || subject === undefined) return own
    return new Set((subjects.get(subject) ?? []).flatMap(({ name }) => [...(told.get(name) ?? [])]))
  }
  const unknown: string[] = []
  for (const query of queries) {
    const { metrics, labels } = namedIn(query)
    assert.ok(metrics.length > 0, `${query.where} names no metric`)
    for (const metric of metrics) {
      if (!told.has(metric) && !ofProcess.has(metric)) unknown.push(`${query.where}: ${metric}`)
      const known = labelsOf(metric)
      const isNamed = (label: string) => known.has(label) || OF_PROMETHEUS.includes(label)
      for (const label of labels.filter((each) => !isNamed(each))) unknown.push(`${query.where}: ${label} of ${metric}`)
    }
  }
  assert.deepEqual(unknown, [])
})

test('every alert says what to do, for how grave it is, and where to read on', () => {
  assert.equal(new Set(rules.map(({ alert }) => alert)).size, rules.length, 'each has a name of its own')
  for (const { alert, labels, annotations, for: lasts = '0s' } of rules) {
    assert.match(alert, /^Tailrace[A-Z]\w+$/)
    assert.match(lasts, /^\d+[smh]$/)
    assert.match(labels.severity, /^(?:critical|warning)$/)
    const { summary = '', description = '', runbook = '' } = annotations
    assert.ok(summary.length > 10 && description.length > 40, `${alert} says too little`)
    const [file = '', heading = ''] = runbook.split('#')
    const page = pages.find((each) => each.file === file)
    assert.ok(page && anchorsOf(page.text).has(heading), `${alert} leads to ${runbook}, which is not there`)
  }
})

test('the expressions of a rule that names no metric, or is not PromQL, are found', () => {
  assert.throws(() => namedIn({ where: 'a rule', expr: 'sum by (x (y)', shown: '' }), /a rule: .* is wrong at/)
  const wrong = namedIn({ where: 'a rule', expr: 'rate(some_count{kind="x"}[5m]) > on (node) other', shown: '{{ $labels.stream }}' })
  assert.deepEqual(wrong, { metrics: ['some_count', 'other'], labels: ['stream', 'kind', 'node'] })
})
