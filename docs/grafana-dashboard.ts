/** The Grafana dashboard as a table of its panels; `npm run docs` makes docs/monitoring/grafana-dashboard.json of it. */

type Unit = 'short' | 'bytes' | 'Bps' | 'ops' | 's' | 'ms' | 'µs' | 'percent'
/** Draws series over time. @property series query of each, and how its lines are named */
type Panel = Readonly<{ title: string; unit: Unit; says?: string; series: readonly (readonly [expr: string, legend: string])[] }>

const SLOT = 'slot_name=~"$slot"'
const SINK = 'consumer_name=~"$sink"'
const RATE = '[$__rate_interval]'

const perSlot = (metric: string): readonly [string, string] => [`max by (slot_name) (${metric}{${SLOT}})`, '{{slot_name}}']
const perSink = (metric: string): readonly [string, string] => [`sum by (consumer_name) (${metric}{${SINK}})`, '{{consumer_name}}']
const ratePerSlot = (metric: string): readonly [string, string] => [`sum by (slot_name) (rate(${metric}{${SLOT}}${RATE}))`, '{{slot_name}}']
const ratePerSink = (metric: string): readonly [string, string] => [
  `sum by (consumer_name) (rate(${metric}{${SINK}}${RATE}))`,
  '{{consumer_name}}',
]
/** @param labels of one part of the histogram, beginning with a comma */
const quantile = (share: number, metric: string, labels = ''): readonly [string, string] => [
  `histogram_quantile(${share}, sum by (consumer_name, le) (rate(${metric}_bucket{${SINK}${labels}}${RATE})))`,
  `{{consumer_name}} p${share * 100}`,
]

const ROWS: Readonly<Record<string, readonly Panel[]>> = {
  Health: [
    {
      title: 'What is not well',
      unit: 'short',
      says: '1 for each sink, database or slot with a warning or an error; nothing is drawn while all is well',
      series: [
        [
          'max by (entity_type, entity_name, status) (sequin_entity_health{status=~"warn|error"}) > 0',
          '{{entity_type}} {{entity_name}}: {{status}}',
        ],
      ],
    },
    {
      title: 'Errors answered by the API',
      unit: 'ops',
      series: [[`sum by (code) (rate(tailrace_error_answers_count${RATE}))`, '{{code}}']],
    },
  ],
  Sources: [
    { title: 'Changes read', unit: 'ops', series: [ratePerSlot('sequin_messages_ingested_count')] },
    { title: 'Bytes read', unit: 'Bps', series: [ratePerSlot('sequin_bytes_ingested_total')] },
    { title: 'From the commit to the log', unit: 'µs', series: [perSlot('sequin_ingestion_latency_us')] },
    {
      title: 'Behind the server',
      unit: 'bytes',
      says: "from the slot's confirmed position to the server's end of the log",
      series: [perSlot('tailrace_slot_confirmed_lag_bytes')],
    },
    { title: 'Write-ahead log kept for the slot', unit: 'bytes', series: [perSlot('sequin_replication_slot_size')] },
    { title: 'Until the slot is lost', unit: 's', series: [perSlot('tailrace_slot_seconds_until_lost')] },
    { title: 'Oldest open transaction', unit: 's', series: [perSlot('tailrace_slot_oldest_transaction_seconds')] },
    {
      title: 'Saturation',
      unit: 'percent',
      says: 'near 100 the log, or the core that decodes, takes no more',
      series: [
        [`max by (slot_name) (sequin_ingestion_saturation_percent{${SLOT}})`, '{{slot_name}} log'],
        [`max by (slot_name) (sequin_processing_saturation_percent{${SLOT}})`, '{{slot_name}} decoding'],
      ],
    },
    { title: 'Rows read by backfills', unit: 'ops', series: [ratePerSlot('tailrace_backfill_rows_read_count')] },
    {
      title: 'Backfills',
      unit: 'short',
      series: [[`sum by (slot_name, status) (tailrace_backfills{${SLOT}})`, '{{slot_name}} {{status}}']],
    },
  ],
  Sinks: [
    { title: 'Messages delivered', unit: 'ops', series: [ratePerSink('sequin_message_deliver_success_count')] },
    { title: 'Deliveries that came to nothing', unit: 'ops', series: [ratePerSink('sequin_message_deliver_failure_count')] },
    {
      title: 'Oldest unfinished message',
      unit: 'ms',
      series: [[`max by (consumer_name) (sequin_oldest_message_age_ms{${SINK}})`, '{{consumer_name}}']],
    },
    {
      title: 'From the commit to handing out',
      unit: 'µs',
      series: [quantile(0.5, 'sequin_internal_latency_us'), quantile(0.99, 'sequin_internal_latency_us')],
    },
    {
      title: 'From handing out to the answer',
      unit: 'µs',
      series: [quantile(0.5, 'sequin_delivery_latency_us', ',success="ok"'), quantile(0.99, 'sequin_delivery_latency_us', ',success="ok"')],
    },
    { title: 'With the destination', unit: 'short', series: [perSink('sequin_messages_in_delivery')] },
    { title: 'Wait for another delivery', unit: 'short', series: [perSink('sequin_messages_in_redelivery')] },
    { title: 'Parked', unit: 'short', series: [perSink('tailrace_partition_parked_messages')] },
    { title: 'Backlog', unit: 'bytes', series: [perSink('tailrace_reader_backlog_bytes')] },
    {
      title: 'Delivery saturation',
      unit: 'percent',
      says: 'share of the time in which messages lay ready and waited for the destination, or for a client to ask',
      series: [[`max by (consumer_name) (sequin_delivery_saturation_percent{${SINK}})`, '{{consumer_name}}']],
    },
    {
      title: 'Given up, and dropped',
      unit: 'short',
      series: [
        [`sum by (consumer_name) (increase(tailrace_messages_discarded_count{${SINK}}${RATE}))`, '{{consumer_name}} given up'],
        [`sum by (consumer_name) (increase(tailrace_messages_dropped_count{${SINK}}${RATE}))`, '{{consumer_name}} dropped'],
      ],
    },
    { title: 'Memory of read-ahead windows', unit: 'percent', series: [perSink('sequin_buffer_memory_utilization_percent')] },
  ],
  'Log and process': [
    {
      title: 'Appended',
      unit: 'Bps',
      series: [[`sum by (database_name) (rate(tailrace_stream_appended_bytes_total${RATE}))`, '{{database_name}}']],
    },
    { title: 'Kept', unit: 'bytes', series: [['sum by (database_name) (tailrace_stream_kept_bytes)', '{{database_name}}']] },
    { title: 'Kept for one sink alone', unit: 'bytes', series: [perSink('tailrace_reader_held_bytes')] },
    { title: 'Partitions by node', unit: 'short', series: [['sum by (node) (tailrace_partition_owner)', '{{node}}']] },
    { title: 'Event loop late by (p99)', unit: 's', series: [['max by (instance) (nodejs_eventloop_lag_p99_seconds)', '{{instance}}']] },
    { title: 'Memory', unit: 'bytes', series: [['sum by (instance) (process_resident_memory_bytes)', '{{instance}}']] },
    { title: 'Cores', unit: 'short', series: [[`sum by (instance) (rate(process_cpu_seconds_total${RATE}))`, '{{instance}}']] },
    { title: 'Versions', unit: 'short', series: [['count by (version) (tailrace_build_info)', '{{version}}']] },
  ],
}

const COLUMNS = 24
const WIDTH = 8
const HEIGHT = 8
const DATASOURCE = { type: 'prometheus', uid: '${datasource}' }

/** Asks for the values of a label, to choose among them. */
const variable = (name: string, label: string, query: string): object => ({
  ...{ name, label, type: 'query', datasource: DATASOURCE, query: { query, refId: name }, definition: query },
  ...{ refresh: 2, sort: 1, multi: true, includeAll: true, allValue: '.*', current: { text: 'All', value: '$__all' } },
})

/** Makes the dashboard as Grafana imports it. */
export function grafanaDashboard(): string {
  const panels: object[] = []
  let y = 0
  for (const [row, members] of Object.entries(ROWS)) {
    panels.push({
      id: panels.length + 1,
      type: 'row',
      title: row,
      collapsed: false,
      panels: [],
      gridPos: { x: 0, y: y++, w: COLUMNS, h: 1 },
    })
    for (const [i, { title, unit, says, series }] of members.entries())
      panels.push({
        ...{ id: panels.length + 1, type: 'timeseries', title, ...(says && { description: says }), datasource: DATASOURCE },
        gridPos: { x: (i * WIDTH) % COLUMNS, y: y + Math.floor((i * WIDTH) / COLUMNS) * HEIGHT, w: WIDTH, h: HEIGHT },
        fieldConfig: { defaults: { unit, min: 0 }, overrides: [] },
        options: { legend: { displayMode: 'list', placement: 'bottom' }, tooltip: { mode: 'multi', sort: 'desc' } },
        targets: series.map(([expr, legendFormat], n) => ({
          refId: String.fromCharCode(65 + n),
          expr,
          legendFormat,
          datasource: DATASOURCE,
        })),
      })
    y += Math.ceil((members.length * WIDTH) / COLUMNS) * HEIGHT
  }
  const dashboard = {
    ...{ uid: 'tailrace', title: 'Tailrace', tags: ['tailrace'], schemaVersion: 39, version: 1, editable: true, graphTooltip: 1 },
    ...{ time: { from: 'now-1h', to: 'now' }, refresh: '30s', timezone: 'browser' },
    templating: {
      list: [
        { name: 'datasource', label: 'Prometheus', type: 'datasource', query: 'prometheus', current: {} },
        variable('slot', 'Slot', 'label_values(tailrace_source_owner, slot_name)'),
        variable('sink', 'Sink', 'label_values(sequin_messages_buffered, consumer_name)'),
      ],
    },
    panels,
  }
  return `${JSON.stringify(dashboard, null, 2)}\n`
}
