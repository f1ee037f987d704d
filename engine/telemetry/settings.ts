/** The settings of telemetry: which collector gets it, and which messages are traced. */

/** Says where one signal goes. @property headers of its requests: a secret, for they sign in */
export type OtlpTarget = Readonly<{ url: string; headers: Readonly<Record<string, string>> }>

/** Says which messages are traced. */
export type Sampling = Readonly<{
  /** share of the messages whose trace begins here, from 0 to 1 */
  ratio: number
  /** a message that has the trace context of its writer is traced when that is */
  byParent: boolean
}>

/** Holds the settings of OpenTelemetry. */
export type TelemetrySettings = Readonly<{
  protocol: 'http/protobuf' | 'http/json'
  /** attributes of the process, its service name included */
  resource: Readonly<Record<string, string>>
  /** absent: metrics are scraped alone */
  metrics: (OtlpTarget & Readonly<{ everyMs: number }>) | undefined
  /** absent: nothing is traced */
  traces: (OtlpTarget & Readonly<{ sampling: Sampling }>) | undefined
}>
