/** The metrics as OpenTelemetry has them: the same names, labels and numbers as in Prometheus form. Nothing here does I/O. */
import { ValueType, type HrTime } from '@opentelemetry/api'
import { AggregationTemporality, DataPointType, type DataPoint, type Histogram, type MetricData } from '@opentelemetry/sdk-metrics'
import type { MetricValueWithName } from 'prom-client'
import type { Collected } from '../metrics.ts'

type Values = readonly MetricValueWithName<string>[]

/** Writes milliseconds, since the epoch or otherwise, as seconds and nanoseconds. */
export const hrTime = (ms: number): HrTime => [Math.floor(ms / 1_000), Math.round((ms % 1_000) * 1e6)]

/** Makes one metric of each family of a registry. @param nowMs since the epoch */
export function metricDataOf(families: Collected, nowMs: number): MetricData[] {
  const startTime = hrTime(performance.timeOrigin) // counters begin at 0 with the process
  const endTime = hrTime(nowMs)
  const pointOf = <T>(labels: MetricValueWithName<string>['labels'], value: T): DataPoint<T> => {
    const given = Object.entries(labels).flatMap(([name, label]) => (label === undefined ? [] : [[name, label] as const]))
    return { startTime, endTime, attributes: Object.fromEntries(given), value }
  }
  return families.map(({ name, help, type, values }): MetricData => {
    const kind: string = type as unknown as string // prom-client's enum has the numbers of its declaration, and gives names
    const common = {
      descriptor: { name, description: help, unit: '', valueType: ValueType.DOUBLE },
      aggregationTemporality: AggregationTemporality.CUMULATIVE,
    }
    if (kind === 'histogram') {
      const dataPoints = histogramsOf(values, name).map(({ labels, histogram }) => pointOf(labels, histogram))
      return { ...common, dataPointType: DataPointType.HISTOGRAM, dataPoints }
    }
    const dataPoints = values.map(({ labels, value }) => pointOf(labels, value))
    if (kind === 'counter') return { ...common, dataPointType: DataPointType.SUM, isMonotonic: true, dataPoints }
    return { ...common, dataPointType: DataPointType.GAUGE, dataPoints }
  })
}

/** Puts the lines of a histogram together, one for each set of labels: its buckets count up, those of OpenTelemetry each for itself. */
function histogramsOf(values: Values, name: string): { labels: MetricValueWithName<string>['labels']; histogram: Histogram }[] {
  const ofLine = ({ labels }: Values[number]) => JSON.stringify({ ...labels, le: undefined })
  return [...Map.groupBy(values, ofLine)].map(([key, lines]) => {
    const labels = JSON.parse(key) as MetricValueWithName<string>['labels']
    const buckets = lines.filter(({ labels }) => labels['le'] !== undefined)
    const counts = buckets.map(({ value }, i) => value - (buckets[i - 1]?.value ?? 0))
    const boundaries = buckets.map(({ labels }) => Number(labels['le'])).filter(Number.isFinite)
    const valueOf = (suffix: string) => lines.find(({ metricName }) => metricName === name + suffix)?.value ?? 0
    return { labels, histogram: { buckets: { boundaries, counts }, sum: valueOf('_sum'), count: valueOf('_count') } }
  })
}
