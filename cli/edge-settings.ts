/** The variables of what stands between the service and those who ask it, checked against each other. */
import type { CertificateFiles } from '../api/http/certificate.ts'

/** Says how the service is reached. */
export type EdgeSettings = Readonly<{
  /** absent: HTTP without TLS */
  tls: CertificateFiles | undefined
  /** the port of /metrics speaks TLS, too */
  hasMetricsTls: boolean
  /** in PEM, of the authority that signs the certificates of a cluster; absent: any that Node trusts */
  peerCaFile: string | undefined
}>

/**
 * Reads the settings of the edge. @param value of a variable; undefined: not set
 * @param wrong told of each wrong variable
 */
export function edgeSettings(value: (name: string) => string | undefined, wrong: (name: string, reason: string) => void): EdgeSettings {
  const certFile = value('TAILRACE_TLS_CERT_FILE')
  const keyFile = value('TAILRACE_TLS_KEY_FILE')
  if ((certFile === undefined) !== (keyFile === undefined))
    wrong(certFile === undefined ? 'TAILRACE_TLS_CERT_FILE' : 'TAILRACE_TLS_KEY_FILE', 'is missing; a certificate and its key go together')
  const tls = certFile !== undefined && keyFile !== undefined ? { certFile, keyFile } : undefined
  const hasMetricsTls = value('TAILRACE_METRICS_TLS') === 'true'
  if (hasMetricsTls && certFile === undefined && keyFile === undefined)
    wrong('TAILRACE_METRICS_TLS', 'needs a certificate: set TAILRACE_TLS_CERT_FILE and TAILRACE_TLS_KEY_FILE')
  if (tls && value('TAILRACE_NODE_ADDRESS')?.startsWith('http:'))
    wrong('TAILRACE_NODE_ADDRESS', 'begins with http, but with TAILRACE_TLS_CERT_FILE the others reach this process by https alone')
  return { tls, hasMetricsTls, peerCaFile: value('TAILRACE_PEER_CA_FILE') }
}
