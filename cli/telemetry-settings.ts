/** The variables of OpenTelemetry, under the names of its standard, checked against each other. */
import { isHeader } from '../engine/net/http-header.ts'
import type { OtlpTarget, Sampling, TelemetrySettings } from '../engine/telemetry/settings.ts'

/** Values of OTEL_EXPORTER_OTLP_PROTOCOL. */
export const OTLP_PROTOCOLS = ['http/protobuf', 'http/json'] as const
/** Values of OTEL_TRACES_SAMPLER. */
export const SAMPLERS = [
  'always_on',
  'always_off',
  'traceidratio',
  'parentbased_always_on',
  'parentbased_always_off',
  'parentbased_traceidratio',
] as const

/** Share of the messages that are traced where nothing else is said: a busy service has too many for all of them. */
const USUAL_RATIO = 0.01

type Value = (name: string) => string | undefined
type Wrong = (name: string, reason: string) => void

/** Reads the settings of telemetry. @param wrong told of each wrong variable @returns undefined: nothing is sent */
export function telemetrySettings(value: Value, wrong: Wrong): TelemetrySettings | undefined {
  const metrics = targetOf('METRICS', value, wrong)
  const traces = targetOf('TRACES', value, wrong)
  const sampling = samplingOf(value, wrong)
  const given = pairsOf('OTEL_RESOURCE_ATTRIBUTES', value, wrong)
  const name = value('OTEL_SERVICE_NAME')
  if (value('OTEL_SDK_DISABLED') === 'true' || (!metrics && !traces)) return undefined
  return {
    protocol: OTLP_PROTOCOLS.find((one) => one === value('OTEL_EXPORTER_OTLP_PROTOCOL')) ?? 'http/protobuf',
    resource: { 'service.name': 'tailrace', ...given, ...(name !== undefined && { 'service.name': name }) },
    metrics: metrics && { ...metrics, everyMs: Number(value('OTEL_METRIC_EXPORT_INTERVAL') ?? 60_000) },
    traces: traces && sampling && { ...traces, sampling },
  }
}

function targetOf(signal: 'METRICS' | 'TRACES', value: Value, wrong: Wrong): OtlpTarget | undefined {
  const own = value(`OTEL_EXPORTER_OTLP_${signal}_ENDPOINT`)
  const base = value('OTEL_EXPORTER_OTLP_ENDPOINT')
  const names = ['OTEL_EXPORTER_OTLP_HEADERS', `OTEL_EXPORTER_OTLP_${signal}_HEADERS`]
  const headers = Object.assign({}, ...names.map((name) => headersOf(name, value, wrong))) as Record<string, string>
  const url = own ?? (base && `${base.replace(/\/$/, '')}/v1/${signal.toLowerCase()}`)
  return url === undefined ? undefined : { url, headers }
}

function headersOf(name: string, value: Value, wrong: Wrong): Readonly<Record<string, string>> {
  const pairs = pairsOf(name, value, wrong)
  if (Object.entries(pairs).some(([header, text]) => !isHeader(header, text))) wrong(name, 'has a header that HTTP does not allow')
  return pairs
}

/** Reads `name=value,name=value`, with %-encoded values, as the standard writes headers and attributes. A value is not told of. */
function pairsOf(name: string, value: Value, wrong: Wrong): Readonly<Record<string, string>> {
  const pairs: Record<string, string> = {}
  for (const pair of (value(name) ?? '').split(',').filter((each) => each.trim() !== '')) {
    const at = pair.indexOf('=')
    const key = pair.slice(0, Math.max(0, at)).trim()
    try {
      if (key === '' || /\s/.test(key)) throw new URIError(pair)
      pairs[decodeURIComponent(key)] = decodeURIComponent(pair.slice(at + 1).trim())
    } catch {
      wrong(name, 'is not of the form name=value,name=value with %-encoded values')
      return {}
    }
  }
  return pairs
}

/** @returns undefined: nothing is to be traced */
function samplingOf(value: Value, wrong: Wrong): Sampling | undefined {
  const sampler = value('OTEL_TRACES_SAMPLER') ?? 'parentbased_traceidratio'
  const arg = value('OTEL_TRACES_SAMPLER_ARG')
  const share = arg === undefined ? USUAL_RATIO : Number(arg)
  if (!(share >= 0 && share <= 1)) wrong('OTEL_TRACES_SAMPLER_ARG', 'takes a number from 0 to 1, the share of the messages that are traced')
  const byParent = sampler.startsWith('parentbased_')
  const ratio = sampler.endsWith('always_on') ? 1 : sampler.endsWith('always_off') ? 0 : share
  return ratio === 0 && !byParent ? undefined : { ratio, byParent }
}
