/** A PostgreSQL server that offers TLS, with a certificate for localhost and 127.0.0.1, or for somewhere else. */
import { chmod, chown, copyFile, mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { startPostgres, type TestServer } from './postgres.ts'

const NOBODY = 65534
const FILES = join(import.meta.dirname, 'tls')

export const authority = (name: 'ca' | 'other-ca'): Promise<string> => readFile(join(FILES, `${name}.crt`), 'utf8')

export async function startTlsPostgres(
  certificate: 'server' | 'elsewhere',
  settings: Readonly<Record<string, string | number>> = {},
): Promise<TestServer> {
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-tls-'))
  const key = join(folder, 'server.key')
  const crt = join(folder, 'server.crt')
  await copyFile(join(FILES, `${certificate}.key`), key)
  await copyFile(join(FILES, `${certificate}.crt`), crt)
  if (process.getuid?.() === 0) {
    // the server of root is another user's, and takes a key of root that its group may read
    for (const file of [folder, key, crt]) await chown(file, 0, NOBODY)
    await chmod(folder, 0o710)
    await chmod(key, 0o640)
    await chmod(crt, 0o640)
  } else await chmod(key, 0o600) // a server takes no key that others may read, and a working copy keeps no such mode
  const tls = { ssl: 'on', ssl_cert_file: crt, ssl_key_file: key }
  const server = await startPostgres({ settings: { ...tls, ...settings } })
  const end = server[Symbol.asyncDispose].bind(server)
  return Object.defineProperty(server, Symbol.asyncDispose, {
    value: async () => {
      await end()
      await rm(folder, { recursive: true, force: true })
    },
  })
}
