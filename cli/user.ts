/** `tailrace user setup-code`: the code by which the first user of the console is set up. */
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { setupCodeOf } from '../actors/resources/user-edits.ts'
import { folderKey } from '../engine/state/secrets.ts'
import { CommandFailed, print, printJson } from './command.ts'
import { readSettings } from './settings.ts'

/** Prints the code. @throws CommandFailed: there is no key here */
export function setupCode(isJson: boolean): void {
  const { vaultKey, dataFolder } = readSettings()
  if (!vaultKey && !existsSync(join(dataFolder, 'vault.key')))
    throw new CommandFailed(`${dataFolder} has no key: set VAULT_KEY, or TAILRACE_DATA to the data folder of the service`, 2)
  const setup_code = setupCodeOf(vaultKey ?? folderKey(dataFolder))
  if (isJson) printJson({ setup_code })
  else print(setup_code)
}
