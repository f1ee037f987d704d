/** Trace contexts as W3C writes them in headers: `traceparent` names a span, `tracestate` has what vendors add. Pure. */

/** Names a span, its own or that of somebody else. */
export type TraceContext = Readonly<{
  /** 32 hexadecimal digits */
  traceId: string
  /** 16 hexadecimal digits */
  spanId: string
  isSampled: boolean
  /** of vendors, passed on as it came */
  state?: string | undefined
}>

const SAMPLED = 0x01
/** A longer one need not be passed on. */
const MAX_STATE = 512

/** Reads a trace context, whatever is given. @returns undefined: it is none */
export function readTraceContext(traceparent: unknown, tracestate?: unknown): TraceContext | undefined {
  if (typeof traceparent !== 'string') return undefined
  const [, version, traceId = '', spanId = '', flags = '', rest = ''] =
    /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/.exec(traceparent) ?? []
  // a later version may say more at its end
  if (version === undefined || version === 'ff' || (version === '00' && rest !== '')) return undefined
  if (/^0+$/.test(traceId) || /^0+$/.test(spanId)) return undefined
  const hasState = typeof tracestate === 'string' && tracestate.length <= MAX_STATE && /^[\x20-\x7e]+$/.test(tracestate)
  return { traceId, spanId, isSampled: (parseInt(flags, 16) & SAMPLED) !== 0, ...(hasState && { state: tracestate }) }
}

/** Writes a trace context as headers: name, value, name, value. */
export function traceHeaders({ traceId, spanId, isSampled, state }: TraceContext): readonly string[] {
  const parent = ['traceparent', `00-${traceId}-${spanId}-${isSampled ? '01' : '00'}`]
  return state === undefined ? parent : [...parent, 'tracestate', state]
}
