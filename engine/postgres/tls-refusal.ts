/**
 * Why no TLS connection to a server comes about that could be trusted, and what to do about it. Trying again doesn't help:
 * the certificate, or what it is checked with, has to change first.
 */
import { EngineError, codeOf } from '../errors.ts'
import { fieldsOf } from '../json.ts'

/** OpenSSL's words for a chain that leads to no authority we have been given, or not validly. */
const UNTRUSTED = new Set([
  'DEPTH_ZERO_SELF_SIGNED_CERT',
  'SELF_SIGNED_CERT_IN_CHAIN',
  'UNABLE_TO_VERIFY_LEAF_SIGNATURE',
  'UNABLE_TO_GET_ISSUER_CERT',
  'UNABLE_TO_GET_ISSUER_CERT_LOCALLY',
  'CERT_SIGNATURE_FAILURE',
  'CERT_UNTRUSTED',
  'CERT_REJECTED',
  'CERT_CHAIN_TOO_LONG',
  'PATH_LENGTH_EXCEEDED',
  'INVALID_CA',
  'INVALID_PURPOSE',
])
const OUT_OF_TIME = new Set(['CERT_HAS_EXPIRED', 'CERT_NOT_YET_VALID'])
const WRONG_NAME = new Set(['ERR_TLS_CERT_ALTNAME_INVALID', 'HOSTNAME_MISMATCH'])
/** pg's own constant for an answer of one byte; it comes without a code. */
const NO_TLS = 'The server does not support SSL connections'

/** Says in our words why TLS failed. @returns undefined: the error is not about TLS */
export function tlsRefusal(error: unknown, where = 'the server'): EngineError | undefined {
  if (!(error instanceof Error)) return undefined
  const code = codeOf(error) ?? ''
  const text = reason(error, code)
  return text === undefined
    ? undefined
    : new EngineError('TLS_REFUSED', `${where}: ${text}`, code === '' ? {} : { reason: code }, { cause: error })
}

function reason(error: Error, code: string): string | undefined {
  if (WRONG_NAME.has(code)) {
    const { host, cert } = fieldsOf(error)
    const { subjectaltname: named } = fieldsOf(cert)
    const names = typeof named === 'string' && named !== '' ? `, but for ${named}` : ''
    return `its certificate is not for ${typeof host === 'string' ? host : 'this host name'}${names}; set hostname to a name it is for, or ssl: verify-ca, which does not look at names`
  }
  if (UNTRUSTED.has(code))
    return `its certificate is not signed by an authority that is known here (${error.message.split(';')[0]}); put the authority's certificate into ca_cert, for the state database into a file that NODE_EXTRA_CA_CERTS names`
  if (OUT_OF_TIME.has(code)) return `its certificate is out of its time (${error.message}); renew it there, and check the clocks`
  if (error.message === NO_TLS)
    return 'it does not offer TLS; switch it on there (ssl = on), or set ssl: disable if the way to it is safe without'
  if (code.startsWith('ERR_SSL_'))
    return `no TLS connection comes about (${error.message}); versions and ciphers of both sides have to meet`
  return undefined
}
