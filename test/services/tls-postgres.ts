/** A PostgreSQL server that offers TLS, with a certificate for localhost and 127.0.0.1, or for somewhere else. */
import { chmod, copyFile, mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { startPostgres, type TestServer } from './postgres.ts'

const FILES = join(import.meta.dirname, 'tls')

export const authority = (name: 'ca' | 'other-ca'): Promise<string> => readFile(join(FILES, `${name}.crt`), 'utf8')

export async function startTlsPostgres(
  certificate: 'server' | 'elsewhere',
  settings: Readonly<Record<string, string | number>> = {},
): Promise<TestServer> {
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-tls-'))
  const key = join(folder, 'server.key')
  await copyFile(join(FILES, `${certificate}.key`), key)
  await chmod(key, 0o600) // a server takes no key that others may read, and a working copy keeps no such mode
  const tls = { ssl: 'on', ssl_cert_file: join(FILES, `${certificate}.crt`), ssl_key_file: key }
  const server = await startPostgres({ settings: { ...tls, ...settings } })
  const end = server[Symbol.asyncDispose].bind(server)
  return Object.defineProperty(server, Symbol.asyncDispose, {
    value: async () => {
      await end()
      await rm(folder, { recursive: true, force: true })
    },
  })
}
