/** A database as a command is told of it: by its name in the configuration file, as the demo, or by a URL. */
import { parseConfig } from '../actors/config/config-document.ts'
import { partsOfUrl } from '../actors/resources/connection-form.ts'
import { EngineError } from '../engine/errors.ts'
import type { Connection } from '../engine/postgres/client-config.ts'
import { withTlsChosen } from '../engine/postgres/tls-choice.ts'
import { loadDemoAccess } from './demo.ts'
import { DEMO } from './demo-database.ts'
import { configVariables, readSettings } from './settings.ts'
import { readText } from './text-file.ts'

const TLS_MODES = ['disable', 'require', 'verify-ca', 'verify-full'] as const

/** Finds the database that an argument of a command names. @throws EngineError ARGUMENT_INVALID: nothing knows it */
export async function databaseArgument(given: string): Promise<Readonly<{ name: string; connection: Connection }>> {
  if (/^postgres(?:ql)?:\/\//.test(given)) {
    const connection = ofUrl(given)
    return { name: connection.database, connection }
  }
  const { config, dataFolder } = readSettings()
  if (config) return { name: given, connection: await withTlsChosen(configured(given, config)) }
  const demo = given === DEMO.database ? await loadDemoAccess(dataFolder).catch(() => undefined) : undefined
  if (demo) return { name: given, connection: ofUrl(demo.databaseUrl) }
  const words = `no database "${given}": CONFIG_FILE_PATH is not set, so no configuration file is read; set it, or give a URL, postgresql://…`
  throw new EngineError('ARGUMENT_INVALID', given === DEMO.database ? `${words}, or start the demo: npm start` : words)
}

function ofUrl(text: string): Connection {
  const url = URL.parse(text)
  const mode = url?.searchParams.get('sslmode') ?? 'disable'
  const ssl = TLS_MODES.find((one) => one === mode)
  if (!ssl) throw new EngineError('ARGUMENT_INVALID', `sslmode in the URL of the database must be one of ${TLS_MODES.join(', ')}`)
  if (url) url.search = ''
  const parts = partsOfUrl(url?.href ?? text)
  if (typeof parts !== 'string') return { ...parts, ssl }
  throw new EngineError('ARGUMENT_INVALID', `the URL of the database ${parts}`)
}

function configured(name: string, config: NonNullable<ReturnType<typeof readSettings>['config']>): Connection {
  const document =
    'yaml' in config
      ? parseConfig(config.yaml, 'CONFIG_FILE_YAML', configVariables())
      : parseConfig(readText(config.path), config.path, configVariables(), () => '') // functions don't matter here
  const found = document.databases.find(({ input }) => input.name === name)
  if (found) return found.input.connection
  throw new EngineError(
    'ARGUMENT_INVALID',
    `the configuration file has no database "${name}"; it has ${document.databases.map(({ input }) => input.name).join(', ') || 'none'}`,
  )
}
