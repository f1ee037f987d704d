/** Describes how the brokers are reached: what an operator sets, checked where the settings are read (cli/settings.ts). */

export type BrokerAddress = Readonly<{ host: string; port: number }>

type KafkaTls = Readonly<{
  /** PEM texts; without `ca` the authorities Node trusts */
  ca?: string | undefined
  cert?: string | undefined
  key?: string | undefined
  /** false: any certificate is taken; for trials only */
  verify?: boolean | undefined
}>

/** Says how we log in to the brokers. */
export type KafkaSasl =
  | Readonly<{ mechanism: 'plain' | 'scram-sha-256' | 'scram-sha-512'; username: string; password: string }>
  /** @property token asked for at every new connection */
  | Readonly<{ mechanism: 'oauthbearer'; token: () => Promise<string> }>

/** Says how the brokers of a cluster are reached. */
export type KafkaConnection = Readonly<{
  /** where to begin; the cluster tells the rest */
  brokers: readonly BrokerAddress[]
  /** names us in the brokers' logs and quotas */
  clientId: string
  tls?: KafkaTls | undefined
  sasl?: KafkaSasl | undefined
}>

/** Reads the address of a broker. @returns undefined: not of the form host:port, [IPv6]:port or host (port 9092) */
export function parseBroker(text: string): BrokerAddress | undefined {
  const [, v6, name, digits] = /^(?:\[([0-9a-f:.]+)\]|([^\s:/[\]@]+))(?::(\d{1,5}))?$/i.exec(text) ?? []
  const host = v6 ?? name
  const port = digits === undefined ? 9092 : Number(digits)
  return host === undefined || port < 1 || port > 65_535 ? undefined : { host, port }
}

/** Writes a broker's address as people do. */
export const addressOf = ({ host, port }: BrokerAddress): string => `${host}:${port}`
