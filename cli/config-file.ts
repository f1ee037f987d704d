/**
 * A configuration file as `tailrace config` is given it: read here, with the variables and the functions' files that it names,
 * and checked by the service. Errors name the places in the file as it is, for it is sent as it is.
 */
import { existsSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import { text } from 'node:stream/consumers'
import { functionFiles, interpolated } from '../actors/config/config-document.ts'
import { ConfigReader } from '../actors/config/config-reader.ts'
import { errorText } from '../engine/errors.ts'
import { functionText, tellOutside } from './bundle.ts'
import { configVariables } from './settings.ts'
import { readText } from './text-file.ts'

/** @property folder what its functions' files are relative to */
type ConfigFile = Readonly<{ name: string; folder: string; source: string }>
/** What the API takes. */
type ConfigRequest = Readonly<{
  yaml: string
  file: string
  variables: Readonly<Record<string, string>>
  files: Readonly<Record<string, string>>
}>

/** The file that is taken where none is named; the second is what the original calls it. */
const NAMES = ['tailrace.yaml', 'sequin.yaml'] as const

/** Reads a configuration file. @param given a path; `-`: the standard input; '': the usual name. @throws EngineError ARGUMENT_INVALID */
export async function configFile(given: string): Promise<ConfigFile> {
  if (given === '-') return { name: 'stdin', folder: process.cwd(), source: await text(process.stdin) }
  const name = given || (NAMES.find((one) => existsSync(one)) ?? NAMES[0])
  return { name, folder: dirname(resolve(name)), source: readText(name) }
}

/**
 * Makes the request that sends a configuration file to the service. @throws EngineError CONFIG_INVALID: it is not YAML, or files of
 * functions can't be read or bundled
 */
export function configRequest({ name, folder, source }: ConfigFile): ConfigRequest {
  const env = configVariables()
  const named = [...new ConfigReader(source, name).variables()]
  const reader = interpolated(source, name, env)
  const files: Record<string, string> = {}
  let isWhole = true
  for (const { path, offset, named } of functionFiles(reader))
    try {
      files[path] = functionText(resolve(folder, path), tellOutside)
    } catch (error) {
      reader.wrong(offset, `${named}: file ${path} can't be read: ${errorText(error)}`)
      isWhole = false
    }
  if (!isWhole) reader.refuse() // with the variables that are missing
  const variables = Object.fromEntries(named.flatMap((variable) => (env[variable] === undefined ? [] : [[variable, env[variable]]])))
  return { yaml: source, file: name, variables, files }
}

/** Replaces the variables of a file. @throws EngineError CONFIG_INVALID: some aren't set, or it is not YAML */
export function interpolatedText({ name, source }: ConfigFile): string {
  const reader = interpolated(source, name, configVariables())
  reader.refuse()
  return reader.printed()
}
