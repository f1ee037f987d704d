/**
 * The certificate with which a port speaks TLS, from a file and that of its key. Both are read when they are named, and looked at again all the
 * time: who renews a certificate restarts nothing, and connections that are open stay so. Files that don't fit each other, as in the middle of
 * a renewal, change nothing: the certificate of before is served, and the log says what is wrong once they stay so.
 */
import { createPrivateKey, X509Certificate, type KeyObject } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { createSecureContext, type SecureContextOptions, type Server } from 'node:tls'
import { EngineError, errorText } from '../../engine/errors.ts'
import type { Logger } from '../../engine/logger.ts'

/** Where a certificate is, with those between it and its authority behind it, and where its key is; both in PEM. */
export type CertificateFiles = Readonly<{ certFile: string; keyFile: string }>
type Texts = Readonly<{ cert: string; key: string }>

/** The variables that name the files. */
const CERT_VARIABLE = 'TAILRACE_TLS_CERT_FILE'
const KEY_VARIABLE = 'TAILRACE_TLS_KEY_FILE'
const LOOK_EVERY_MS = 5_000
const DAY_MS = 86_400_000
/** Whoever renews certificates has done so before. */
const WARN_DAYS = 14

/** The certificate of the service, as its files have it. */
export class Certificate implements Disposable {
  readonly #files: CertificateFiles
  readonly #logger: Logger
  readonly #servers = new Set<Server>()
  readonly #timer: NodeJS.Timeout
  #texts: Texts
  /** why the files can't be used, and how often that was found */
  #refused: Readonly<{ reason: string; times: number }> | undefined
  #warnedAt = -Infinity

  /** @param lookEveryMs only tests look more often @throws EngineError SETTING_INVALID: a file can't be read or used, or the key is of another certificate */
  constructor(files: CertificateFiles, logger: Logger, lookEveryMs = LOOK_EVERY_MS) {
    this.#files = files
    this.#logger = logger
    this.#texts = {
      cert: readNamed(CERT_VARIABLE, files.certFile),
      key: readNamed(KEY_VARIABLE, files.keyFile),
    }
    checkTexts(this.#texts, files)
    this.#warnOfDates()
    let isLooking = false
    this.#timer = setInterval(() => {
      if (isLooking) return
      isLooking = true
      void this.#look().finally(() => (isLooking = false))
    }, lookEveryMs).unref()
  }

  /** What a server that begins to listen takes. */
  get options(): SecureContextOptions {
    return contextOf(this.#texts)
  }

  /** From now on a server takes each new certificate for the connections that come then. */
  renew(server: Server): void {
    this.#servers.add(server)
    server.once('close', () => this.#servers.delete(server))
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer)
  }

  async #look(): Promise<void> {
    this.#warnOfDates()
    try {
      const [cert, key] = await Promise.all([readFile(this.#files.certFile, 'utf8'), readFile(this.#files.keyFile, 'utf8')])
      if (cert !== this.#texts.cert || key !== this.#texts.key) this.#take({ cert, key })
      this.#refused = undefined
    } catch (error) {
      this.#tellRefused(errorText(error))
    }
  }

  /** @throws EngineError SETTING_INVALID: they can't be used, and those of before stay */
  #take(texts: Texts): void {
    checkTexts(texts, this.#files)
    this.#texts = texts
    for (const server of this.#servers) server.setSecureContext(contextOf(texts))
    this.#logger.info({ valid_to: new X509Certificate(texts.cert).validTo }, 'the certificate of the API was renewed from its files')
    this.#warnedAt = -Infinity
    this.#warnOfDates()
  }

  /** One file may be written some moments before the other: what is wrong twice is told, and once. */
  #tellRefused(reason: string): void {
    const times = this.#refused?.reason === reason ? this.#refused.times + 1 : 1
    this.#refused = { reason, times }
    if (times === 2) this.#logger.error({ reason }, 'the new certificate can’t be used: that of before is served on')
  }

  #warnOfDates(): void {
    const now = Date.now()
    if (now - this.#warnedAt < DAY_MS) return
    const { validFrom, validTo } = new X509Certificate(this.#texts.cert)
    const dates = { file: this.#files.certFile, valid_from: validFrom, valid_to: validTo }
    const leftMs = Date.parse(validTo) - now
    this.#warnedAt = now
    if (leftMs <= 0) this.#logger.warn(dates, 'the certificate of the API has expired: clients refuse it')
    else if (Date.parse(validFrom) > now) this.#logger.warn(dates, 'the certificate of the API is not valid yet: clients refuse it')
    else if (leftMs < WARN_DAYS * DAY_MS) this.#logger.warn(dates, `the certificate of the API expires in less than ${WARN_DAYS} days`)
  }
}

const contextOf = ({ cert, key }: Texts): SecureContextOptions => ({ cert, key, minVersion: 'TLSv1.2' })

/** Reads the certificate of an authority from the file that a variable names. @throws EngineError SETTING_INVALID */
export function readAuthority(variable: string, file: string): string {
  const text = readNamed(variable, file)
  parsedCertificate(variable, file, text)
  return text
}

/** @throws EngineError SETTING_INVALID */
function readNamed(variable: string, file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch (cause) {
    throw wrong(variable, errorText(cause), cause)
  }
}

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
