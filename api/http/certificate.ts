/**
 * The certificate with which a port speaks TLS, from a file and that of its key, and the authority of a cluster. Their files are watched: who renews
 * a certificate restarts nothing, and connections that are open stay so.
 */
import { createPrivateKey, X509Certificate, type KeyObject } from 'node:crypto'
import { createSecureContext, type SecureContextOptions, type Server } from 'node:tls'
import { EngineError, errorText } from '../../engine/errors.ts'
import type { Logger } from '../../engine/logger.ts'
import { WatchedFiles } from './watched-files.ts'

/** Where a certificate is, with those between it and its authority behind it, and where its key is; both in PEM. */
export type CertificateFiles = Readonly<{ certFile: string; keyFile: string }>
type Texts = Readonly<{ cert: string; key: string }>

/** The variables that name the files. */
const CERT_VARIABLE = 'TAILRACE_TLS_CERT_FILE'
const KEY_VARIABLE = 'TAILRACE_TLS_KEY_FILE'
const AUTHORITY_VARIABLE = 'TAILRACE_PEER_CA_FILE'
const LOOK_AT_DATES_MS = 60_000
const DAY_MS = 86_400_000
/** Whoever renews certificates has done so before. */
const WARN_DAYS = 14

/** The certificate of the service, as its files have it. */
export class Certificate implements Disposable {
  readonly #certFile: string
  readonly #logger: Logger
  readonly #servers = new Set<Server>()
  readonly #watched: WatchedFiles
  readonly #timer: NodeJS.Timeout
  #warnedAt = -Infinity

  /** @param lookEveryMs only tests look more often @throws EngineError SETTING_INVALID: a file can't be read or used, or the key is of another certificate */
  constructor(files: CertificateFiles, logger: Logger, lookEveryMs?: number) {
    this.#certFile = files.certFile
    this.#logger = logger
    this.#watched = new WatchedFiles({
      files: [
        { variable: CERT_VARIABLE, file: files.certFile },
        { variable: KEY_VARIABLE, file: files.keyFile },
      ],
      check: (texts) => checkTexts(textsOf(texts), files),
      refused: 'the new certificate can’t be used: that of before is served on',
      ...{ logger, lookEveryMs },
    })
    this.#watched.watch(() => this.#take())
    this.#warnOfDates()
    this.#timer = setInterval(() => this.#warnOfDates(), LOOK_AT_DATES_MS).unref()
  }

  /** What a server that begins to listen takes. */
  get options(): SecureContextOptions {
    return contextOf(textsOf(this.#watched.texts))
  }

  /** From now on a server takes each new certificate for the connections that come then. */
  renew(server: Server): void {
    this.#servers.add(server)
    server.once('close', () => this.#servers.delete(server))
  }

  [Symbol.dispose](): void {
    this.#watched[Symbol.dispose]()
    clearInterval(this.#timer)
  }

  #take(): void {
    for (const server of this.#servers) server.setSecureContext(this.options)
    this.#logger.info({ valid_to: this.#parsed.validTo }, 'the certificate of the API was renewed from its files')
    this.#warnedAt = -Infinity
    this.#warnOfDates()
  }

  get #parsed(): X509Certificate {
    return new X509Certificate(textsOf(this.#watched.texts).cert)
  }

  #warnOfDates(): void {
    const now = Date.now()
    if (now - this.#warnedAt < DAY_MS) return
    const { validFrom, validTo } = this.#parsed
    const dates = { file: this.#certFile, valid_from: validFrom, valid_to: validTo }
    const leftMs = Date.parse(validTo) - now
    this.#warnedAt = now
    if (leftMs <= 0) this.#logger.warn(dates, 'the certificate of the API has expired: clients refuse it')
    else if (Date.parse(validFrom) > now) this.#logger.warn(dates, 'the certificate of the API is not valid yet: clients refuse it')
    else if (leftMs < WARN_DAYS * DAY_MS) this.#logger.warn(dates, `the certificate of the API expires in less than ${WARN_DAYS} days`)
  }
}

const contextOf = ({ cert, key }: Texts): SecureContextOptions => ({ cert, key, minVersion: 'TLSv1.2' })

const textsOf = ([cert = '', key = '']: readonly string[]): Texts => ({ cert, key })

/** Watches the certificate of the authority by which the processes of a cluster know each other. @throws EngineError SETTING_INVALID */
export const openAuthority = (file: string, logger: Logger, lookEveryMs?: number): WatchedFiles =>
  new WatchedFiles({
    files: [{ variable: AUTHORITY_VARIABLE, file }],
    check: ([text = '']) => void parsedCertificate(AUTHORITY_VARIABLE, file, text),
    refused: 'the new certificate of the authority of the cluster can’t be used: that of before counts on',
    ...{ logger, lookEveryMs },
  })

/** @throws EngineError SETTING_INVALID */
function checkTexts({ cert, key }: Texts, { certFile, keyFile }: CertificateFiles): void {
  const certificate = parsedCertificate(CERT_VARIABLE, certFile, cert)
  let privateKey: KeyObject
  try {
    privateKey = createPrivateKey(key)
  } catch (cause) {
    throw wrong(KEY_VARIABLE, `${keyFile} has no private key in PEM, or one with a passphrase`, cause)
  }
  if (!certificate.checkPrivateKey(privateKey))
    throw wrong(KEY_VARIABLE, `the key in ${keyFile} does not belong to the first certificate in ${certFile}`)
  try {
    createSecureContext(contextOf({ cert, key }))
  } catch (cause) {
    throw wrong(CERT_VARIABLE, `${certFile} can’t be used: ${errorText(cause)}`, cause)
  }
}

/** @throws EngineError SETTING_INVALID */
function parsedCertificate(variable: string, file: string, text: string): X509Certificate {
  try {
    return new X509Certificate(text)
  } catch (cause) {
    throw wrong(variable, `${file} has no certificate in PEM`, cause)
  }
}

const wrong = (variable: string, reason: string, cause?: unknown): EngineError =>
  new EngineError('SETTING_INVALID', `${variable}: ${reason}`, { variables: variable }, { cause })
