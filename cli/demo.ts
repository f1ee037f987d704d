/** `tailrace demo write|token`: plays with the demo of a running Tailrace, which it finds through the data folder. */
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Client } from 'pg'
import { EngineError } from '../engine/errors.ts'
import { print, printJson } from './command.ts'
import { readSettings } from './settings.ts'
import { writeDemoChanges } from './demo-database.ts'

/** Says how the demo is reached: kept in the data folder, in a file that only its owner can read. */
export type DemoAccess = Readonly<{ token: string; databaseUrl: string; serviceUrl: string }>

const file = (dataFolder: string) => join(dataFolder, 'demo.json')

/** Keeps how the demo is reached, for commands that play with it. */
export async function saveDemoAccess(dataFolder: string, access: DemoAccess): Promise<void> {
  await writeFile(file(dataFolder), `${JSON.stringify(access, null, 2)}\n`, { mode: 0o600 })
}

/** Finds the demo of a data folder. @throws EngineError DEMO_MISSING: no Tailrace with a demo was started on this data folder */
export async function loadDemoAccess(dataFolder: string): Promise<DemoAccess> {
  try {
    return JSON.parse(await readFile(file(dataFolder), 'utf8')) // as it was saved
  } catch (cause) {
    throw new EngineError('DEMO_MISSING', `no demo in the data folder ${dataFolder}`, { dataFolder }, { cause })
  }
}

/** Plays with the demo, or tells its token. @throws EngineError DEMO_MISSING, SERVICE_UNREACHABLE */
export async function demo(verb: 'write' | 'token', isJson: boolean): Promise<void> {
  const { dataFolder } = readSettings()
  const { token, databaseUrl } = await loadDemoAccess(dataFolder)
  if (verb === 'token') return isJson ? printJson({ token }) : print(token)
  const client = new Client({ connectionString: databaseUrl })
  client.on('error', () => undefined) // the query under way tells it
  try {
    await client.connect().catch((cause: Error) => {
      const text = `the demo of the data folder ${dataFolder} does not answer: ${cause.message}`
      throw new EngineError('SERVICE_UNREACHABLE', text, { dataFolder }, { cause })
    })
    const rows_changed = await writeDemoChanges(client)
    if (isJson) printJson({ rows_changed })
    else print(`${rows_changed} rows changed`)
  } finally {
    await client.end()
  }
}
