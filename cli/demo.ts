/** `tailrace demo write|token`: plays with the demo of a running Tailrace, which it finds through the data folder. */
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Client } from 'pg'
import { EngineError } from '../engine/errors.ts'
import { readSettings } from './settings.ts'
import { writeDemoChanges } from './demo-database.ts'

/** What the demo's owner may know: kept in the data folder, readable by its owner alone. */
export type DemoAccess = Readonly<{ token: string; databaseUrl: string; serviceUrl: string }>

const file = (dataFolder: string) => join(dataFolder, 'demo.json')

export async function saveDemoAccess(dataFolder: string, access: DemoAccess): Promise<void> {
  await writeFile(file(dataFolder), `${JSON.stringify(access, null, 2)}\n`, { mode: 0o600 })
}

/** @throws EngineError DEMO_MISSING: no Tailrace with a demo was started on this data folder */
export async function loadDemoAccess(dataFolder: string): Promise<DemoAccess> {
  try {
    return JSON.parse(await readFile(file(dataFolder), 'utf8')) as DemoAccess
  } catch (cause) {
    throw new EngineError('DEMO_MISSING', `no demo in the data folder ${dataFolder}`, { dataFolder }, { cause })
  }
}

export async function demo(args: readonly string[]): Promise<void> {
  const { dataFolder } = readSettings()
  const [command] = args
  const access = await loadDemoAccess(dataFolder)
  if (command === 'token') {
    process.stdout.write(`${access.token}\n`)
  } else if (command === 'write') {
    const client = new Client({ connectionString: access.databaseUrl })
    client.on('error', () => undefined) // the query under way tells it
    try {
      await client.connect().catch((cause: Error) => {
        const text = `the demo of the data folder ${dataFolder} does not answer: ${cause.message}`
        throw new EngineError('SERVICE_UNREACHABLE', text, { dataFolder }, { cause })
      })
      process.stdout.write(`${await writeDemoChanges(client)} rows changed\n`)
    } finally {
      await client.end()
    }
  } else {
    process.stderr.write(
      'usage: tailrace demo write    make some changes in the demo database\n       tailrace demo token    print the API token of the demo\n',
    )
    process.exitCode = 2
  }
}
