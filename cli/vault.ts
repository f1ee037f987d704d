/** The key that encrypts secrets at rest, and `tailrace vault rotate`, which changes it (docs/security.md). */
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Connection } from '../engine/postgres/client-config.ts'
import { isAlive, postmasterOf } from '../engine/postgres/postmaster.ts'
import { folderKey, folderKeys, keepNextFolderKey, nextFolderKey, Vault } from '../engine/state/secrets.ts'
import { openStore } from '../engine/state/store.ts'
import { rotateSecrets } from '../engine/state/vault-rotation.ts'
import { CommandFailed, print, printJson } from './command.ts'
import { readSettings, type Settings } from './settings.ts'

type Keys = Pick<Settings, 'vaultKey' | 'otherVaultKey'>
const EMBEDDED_STATE = 'tailrace'

/** Makes the vault of a service: by the key that is set, or that of its data folder, and with the key that may take its place. */
export function vaultOf({ vaultKey, otherVaultKey }: Keys, folder: string): Vault {
  if (vaultKey) return new Vault(vaultKey, () => (otherVaultKey ? [otherVaultKey] : []))
  return new Vault(folderKey(folder), () => folderKeys(folder))
}

/** Encrypts all secrets by another key. @throws CommandFailed: a key, or the state database, is missing */
export async function rotate(isJson: boolean): Promise<void> {
  const settings = readSettings()
  const { dataFolder, vaultKey, otherVaultKey } = settings
  if (vaultKey && !otherVaultKey)
    throw new CommandFailed('VAULT_KEY_OTHER is missing: VAULT_KEY is the new key, and VAULT_KEY_OTHER the one that is in use', 2)
  if (!vaultKey && !existsSync(join(dataFolder, 'vault.key')))
    throw new CommandFailed(
      `${dataFolder} has no key: set VAULT_KEY and VAULT_KEY_OTHER, or TAILRACE_DATA to the data folder of the service`,
      2,
    )
  const connection = settings.state?.connection ?? embeddedState(dataFolder)
  await using store = await openStore(connection, 1, () => undefined)
  const vault = vaultKey ? vaultOf(settings, dataFolder) : new Vault(nextFolderKey(dataFolder), () => folderKeys(dataFolder))
  const count = await store.transaction((query) => rotateSecrets(query, vault))
  if (!vaultKey) keepNextFolderKey(dataFolder)
  if (isJson) return printJson({ secrets: count })
  const next = vaultKey
    ? 'Start all processes with this VAULT_KEY now; then VAULT_KEY_OTHER is needed no more.'
    : 'The new key is in the data folder.'
  print(`${count} secret${count === 1 ? ' is' : 's are'} encrypted by the new key. ${next}`)
}

/** Finds the embedded PostgreSQL of a service that runs. @throws CommandFailed: none does */
function embeddedState(dataFolder: string): Connection {
  const folder = join(dataFolder, 'postgres')
  const running = postmasterOf(join(folder, 'cluster'))
  if (!running || !isAlive(running.pid))
    throw new CommandFailed(
      'the state database is the embedded PostgreSQL, which runs with Tailrace alone: start Tailrace, and rotate while it runs',
    )
  const password = readFileSync(join(folder, 'password'), 'utf8')
  return { hostname: '127.0.0.1', port: running.port, database: EMBEDDED_STATE, username: 'postgres', password, ssl: false }
}
