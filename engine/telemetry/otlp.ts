/**
 * Metrics and spans to a collector, as OTLP over HTTP. This module is loaded only where a collector is set: the packages of
 * OpenTelemetry do the queue of spans, the interval of metrics and the bytes on the wire; requests are made here, so that a stop ends
 * them.
 *
 *  I1. Nobody waits for the collector: spans are put into a queue of 2048, and what does not fit is left out.
 *  I2. Of a collector that fails there is one line in the log, and one when it takes again.
 *  I3. A stop sends what is left, and waits for that no longer than three seconds.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { ExportResultCode, type InstrumentationScope } from '@opentelemetry/core'
import {
  JsonMetricsSerializer,
  JsonTraceSerializer,
  ProtobufMetricsSerializer,
  ProtobufTraceSerializer,
  type ISerializer,
} from '@opentelemetry/otlp-transformer'
import { resourceFromAttributes, type Resource } from '@opentelemetry/resources'
import { PeriodicExportingMetricReader, type PushMetricExporter } from '@opentelemetry/sdk-metrics'
import { BatchSpanProcessor } from '@opentelemetry/sdk-trace'
import { backOff } from '../back-off.ts'
import { codeOf } from '../errors.ts'
import type { Logger } from '../logger.ts'
import type { Collected, Metrics } from '../metrics.ts'
import { metricDataOf } from './metric-data.ts'
import { readableSpan } from './readable-span.ts'
import type { OtlpTarget, TelemetrySettings } from './settings.ts'
import type { Span, Tracing } from './span.ts'

/** Holds what telemetry begins with. */
export type TelemetryOptions = Readonly<{
  settings: TelemetrySettings
  metrics: Metrics
  logger: Logger
  version: string
  /** names this process among those of a cluster */
  instance: string
}>

/** A collector has so long for what is sent at once, further tries included, and metrics no longer than their interval. */
const SEND_MS = 10_000
const PAUSE = { firstMs: 500, maxMs: 4_000 }
/** A stop waits so long for what is left. */
const FLUSH_MS = 3_000
/** Statuses of a collector that ask for another try later. */
const LATER = new Set([429, 502, 503, 504])

/** Sends what a process tells of itself, until it is disposed of. */
export class Telemetry implements AsyncDisposable {
  /** which messages are traced, and what takes their spans; undefined: none is to be */
  readonly tracing: Tracing | undefined
  readonly #stop = new AbortController()
  readonly #reader: PeriodicExportingMetricReader | undefined
  readonly #spanQueue: BatchSpanProcessor | undefined
  readonly #metrics: Metrics
  /** the last ones, which a stop has taken before it takes away what they are of */
  #lastMetrics: Collected | undefined
  #metricsEnded: Promise<unknown> | undefined

  constructor({ settings, metrics, logger, version, instance }: TelemetryOptions) {
    this.#metrics = metrics
    const { protocol, metrics: metricsTo, traces: tracesTo } = settings
    const resource = resourceFromAttributes({ 'service.version': version, 'service.instance.id': instance, ...settings.resource })
    const scope = { name: 'tailrace', version }
    const isJson = protocol === 'http/json'
    const common = { isJson, logger, stopping: this.#stop.signal }
    if (metricsTo) {
      const serializer = isJson ? JsonMetricsSerializer : ProtobufMetricsSerializer
      const outlet = new Outlet(metricsTo, { ...common, signal: 'metrics', serializer, limitMs: Math.min(SEND_MS, metricsTo.everyMs) })
      const collected = async () => this.#lastMetrics ?? (await metrics.collected())
      this.#reader = readerOf(collected, { resource, scope, everyMs: metricsTo.everyMs, outlet })
    }
    if (tracesTo) {
      const serializer = isJson ? JsonTraceSerializer : ProtobufTraceSerializer
      const queue = new BatchSpanProcessor({
        exporter: new Outlet(tracesTo, { ...common, signal: 'traces', serializer, limitMs: SEND_MS }),
      })
      this.#spanQueue = queue
      const spans = { ended: (span: Span) => queue.onEnd(readableSpan(span, resource, scope)) }
      this.tracing = { spans, sampling: tracesTo.sampling }
    }
  }

  /** The service begins to stop: the metrics are sent for the last time, as they are when this settles. */
  async endMetrics(): Promise<void> {
    if (!this.#reader || this.#metricsEnded) return
    this.#lastMetrics = await this.#metrics.collected()
    this.#metricsEnded ??= this.#reader.shutdown().catch(() => undefined)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const late = setTimeout(() => this.#stop.abort(), FLUSH_MS)
    await this.endMetrics()
    await Promise.allSettled([this.#metricsEnded, this.#spanQueue?.shutdown()])
    clearTimeout(late)
    this.#stop.abort()
  }
}

type ReaderOptions = Readonly<{ resource: Resource; scope: InstrumentationScope; everyMs: number; outlet: PushMetricExporter }>

function readerOf(collected: () => Promise<Collected>, { resource, scope, everyMs, outlet }: ReaderOptions): PeriodicExportingMetricReader {
  const reader = new PeriodicExportingMetricReader({ exporter: outlet, exportIntervalMillis: everyMs, exportTimeoutMillis: everyMs })
  reader.setMetricProducer({
    collect: async () => {
      const scopeMetrics = [{ scope, metrics: metricDataOf(await collected(), Date.now()) }]
      return { resourceMetrics: { resource, scopeMetrics }, errors: [] }
    },
  })
  return reader
}

type OutletOptions<T> = Readonly<{
  signal: 'metrics' | 'traces'
  isJson: boolean
  serializer: Pick<ISerializer<T, unknown>, 'serializeRequest'>
  logger: Logger
  stopping: AbortSignal
  /** for what is sent at once, further tries included */
  limitMs: number
}>

/** Sends what is given to it to a collector. */
class Outlet<T> {
  readonly #target: OtlpTarget
  readonly #options: OutletOptions<T>
  #isFailing = false

  constructor(target: OtlpTarget, options: OutletOptions<T>) {
    this.#target = target
    this.#options = options
  }

  export(items: T, ended: (result: { code: ExportResultCode; error?: Error }) => void): void {
    const { signal, logger, stopping, serializer } = this.#options
    this.#sent(serializer.serializeRequest(items)).then(
      () => {
        if (this.#isFailing) logger.info({ signal }, 'the OpenTelemetry collector takes them again')
        this.#isFailing = false
        ended({ code: ExportResultCode.SUCCESS })
      },
      (error: Error) => {
        if (!this.#isFailing && !stopping.aborted)
          logger.warn(
            { code: 'TELEMETRY_REFUSED', signal, reason: error.message },
            'the OpenTelemetry collector takes nothing: what it does not take is left out until it does',
          )
        this.#isFailing = true
        ended({ code: ExportResultCode.FAILED, error })
      },
    )
  }

  async forceFlush(): Promise<void> {}
  async shutdown(): Promise<void> {}

  /** @throws Error: it was not taken; its message says why, without what was sent */
  async #sent(body: Uint8Array | undefined): Promise<void> {
    const endsAt = performance.now() + this.#options.limitMs
    for (let tries = 1; ; tries++) {
      const refused = await this.#post(body, endsAt - performance.now())
      if (!refused) return
      const pauseMs = backOff(PAUSE, tries)
      // one that fails since long is not asked again and again: the next ones follow soon enough
      if (!refused.mayPass || this.#isFailing || performance.now() + pauseMs >= endsAt) throw new Error(refused.reason)
      await delay(pauseMs, undefined, { signal: this.#options.stopping })
    }
  }

  /** @returns why it was not taken */
  async #post(body: Uint8Array | undefined, limitMs: number): Promise<Readonly<{ reason: string; mayPass: boolean }> | undefined> {
    const { isJson, stopping } = this.#options
    const { url, headers } = this.#target
    try {
      const answer = await fetch(url, {
        method: 'POST',
        headers: { ...headers, 'content-type': isJson ? 'application/json' : 'application/x-protobuf' },
        body: body as Uint8Array<ArrayBuffer> | undefined,
        redirect: 'error',
        signal: AbortSignal.any([stopping, AbortSignal.timeout(Math.max(1, Math.ceil(limitMs)))]),
      })
      await answer.body?.cancel()
      return answer.ok ? undefined : { reason: `status ${answer.status}`, mayPass: LATER.has(answer.status) }
    } catch (error) {
      const isLate = error instanceof DOMException && error.name === 'TimeoutError'
      const cause = error instanceof Error ? error.cause : undefined
      return { reason: isLate ? 'no answer in time' : (codeOf(cause) ?? 'no connection'), mayPass: !isLate }
    }
  }
}
