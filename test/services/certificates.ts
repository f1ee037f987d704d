/** Authorities and certificates made by openssl for one test, in a folder that goes with its scope. */
import { execFile } from 'node:child_process'
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import type { CertificateFiles } from '../../api/http/certificate.ts'

const run = promisify(execFile)
const NEW_KEY = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes']
/** What "openssl ca" wants of an authority, which alone can set both dates of a certificate. */
const AUTHORITY_FILE = `[ca]
default_ca = here
[here]
dir = .
database = $dir/index.txt
new_certs_dir = $dir
certificate = $dir/ca.crt
private_key = $dir/ca.key
rand_serial = yes
default_md = sha256
policy = any
unique_subject = no
[any]
commonName = supplied
`

export class TestAuthority implements AsyncDisposable {
  readonly #folder: string
  /** its own certificate */
  readonly file: string
  readonly pem: string
  #issued = 0

  private constructor(folder: string, pem: string) {
    this.#folder = folder
    this.file = join(folder, 'ca.crt')
    this.pem = pem
  }

  static async create(): Promise<TestAuthority> {
    const folder = await mkdtemp(join(tmpdir(), 'tailrace-authority-'))
    await writeFile(join(folder, 'ca.cnf'), AUTHORITY_FILE)
    await writeFile(join(folder, 'index.txt'), '')
    const subject = ['-subj', '/CN=Tailrace test authority', '-addext', 'basicConstraints=critical,CA:TRUE']
    await run('openssl', ['req', '-x509', ...NEW_KEY, '-keyout', 'ca.key', '-out', 'ca.crt', '-days', '2', ...subject], { cwd: folder })
    return new TestAuthority(folder, await readFile(join(folder, 'ca.crt'), 'utf8'))
  }

  /**
   * @param names as in a certificate, such as "DNS:localhost" or "IP:127.0.0.1"
   * @param dates of its begin and end, as openssl writes them; two days from now on when absent
   */
  async issue(names: readonly string[], dates?: readonly [from: string, to: string]): Promise<CertificateFiles> {
    const folder = join(this.#folder, String(++this.#issued))
    await mkdir(folder)
    const [certFile, keyFile, request, extensions] = ['tls.crt', 'tls.key', 'tls.csr', 'ext'].map((name) => join(folder, name)) as [
      string,
      string,
      string,
      string,
    ]
    await run('openssl', ['req', ...NEW_KEY, '-keyout', keyFile, '-out', request, '-subj', `/CN=certificate ${this.#issued}`])
    await writeFile(extensions, `subjectAltName=${names.join(',')}\n`)
    const validity = dates ? ['-startdate', dates[0], '-enddate', dates[1]] : ['-days', '2']
    const files = ['-in', request, '-out', certFile, '-extfile', extensions]
    await run('openssl', ['ca', '-config', 'ca.cnf', '-batch', '-notext', ...files, ...validity], { cwd: this.#folder })
    return { certFile, keyFile }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await rm(this.#folder, { recursive: true, force: true })
  }
}
