/** A collector of OpenTelemetry as it is asked over HTTP, with OTLP in JSON: it keeps what came, and answers as a test tells it. */
import type { TelemetrySettings } from '../../engine/telemetry/settings.ts'
import { HttpReceiver, jsonOf, type Handler } from './http-receiver.ts'

type Value = Readonly<{ stringValue?: string; intValue?: number | string; doubleValue?: number; boolValue?: boolean }>
type KeyValues = readonly Readonly<{ key: string; value: Value }>[]
type WireSpan = Readonly<{
  traceId: string
  spanId: string
  parentSpanId?: string
  traceState?: string
  name: string
  kind: number
  startTimeUnixNano: string
  endTimeUnixNano: string
  attributes: KeyValues
  events: readonly Readonly<{ name: string; timeUnixNano: string; attributes: KeyValues }>[]
  links: readonly Readonly<{ traceId: string; spanId: string }>[]
  status: Readonly<{ code: number; message?: string }>
}>
type Point = Readonly<{ attributes: KeyValues; asDouble?: number; asInt?: number | string; count?: number; sum?: number }> &
  Readonly<{ bucketCounts?: readonly number[]; explicitBounds?: readonly number[] }>
type WireMetric = Readonly<{
  name: string
  description: string
  gauge?: { dataPoints: readonly Point[] }
  sum?: { dataPoints: readonly Point[]; isMonotonic: boolean; aggregationTemporality: number }
  histogram?: { dataPoints: readonly Point[] }
}>
type Scopes<K extends string, T> = readonly ({ resource: { attributes: KeyValues } } & Readonly<
  Record<K, readonly Readonly<Record<string, readonly T[]>>[]>
>)[]

export type GotSpan = Readonly<{ attributes: Readonly<Record<string, string | number | boolean>>; events: readonly string[] }> &
  Omit<WireSpan, 'attributes' | 'events'>

export const attributesOf = (pairs: KeyValues): Readonly<Record<string, string | number | boolean>> =>
  Object.fromEntries(
    pairs.map(({ key, value: { stringValue, boolValue, intValue, doubleValue } }) => [
      key,
      stringValue ?? boolValue ?? Number(intValue ?? doubleValue),
    ]),
  )

export class OtlpReceiver implements AsyncDisposable {
  readonly http: HttpReceiver

  private constructor(http: HttpReceiver) {
    this.http = http
  }

  static async start(handler: Handler = () => ({}), options: { port?: number } = {}): Promise<OtlpReceiver> {
    return new OtlpReceiver(await HttpReceiver.start(handler, options))
  }

  /** Settings that send everything here. */
  settings({ ratio = 1, byParent = true, everyMs = 86_400_000 } = {}): TelemetrySettings {
    const headers = { authorization: 'Bearer very-secret' }
    return {
      protocol: 'http/json',
      resource: { 'service.name': 'tailrace-test' },
      metrics: { url: `${this.http.url}/v1/metrics`, headers, everyMs },
      traces: { url: `${this.http.url}/v1/traces`, headers, sampling: { ratio, byParent } },
    }
  }

  /** The spans that came, in their order. */
  get spans(): readonly GotSpan[] {
    return this.#items<WireSpan>('/v1/traces', 'resourceSpans', 'scopeSpans', 'spans').map(({ attributes, events, ...span }) => ({
      ...span,
      attributes: attributesOf(attributes),
      events: events.map(({ name }) => name),
    }))
  }

  /** The metrics of the last time that they came. */
  get metrics(): readonly WireMetric[] {
    return this.#items<WireMetric>('/v1/metrics', 'resourceMetrics', 'scopeMetrics', 'metrics', -1)
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.http[Symbol.asyncDispose]()
  }

  #items<T>(path: string, resources: string, scopes: string, items: string, from = 0): readonly T[] {
    return this.http.requests
      .filter((request) => request.path === path)
      .slice(from)
      .flatMap((request) => (jsonOf(request) as Record<string, Scopes<string, T>>)[resources] ?? [])
      .flatMap((each) => each[scopes] ?? [])
      .flatMap((scope) => scope[items] ?? [])
  }
}
