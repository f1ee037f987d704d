/** `tailrace sinks replay NAME`, also `sink replay`: sets a sink of a running Tailrace back, through its API. */
import { isObject } from '../engine/json.ts'
import { print, printJson, UsageError } from './command.ts'
import { service, type Access } from './running-service.ts'

type Place = Readonly<Partial<Record<'to' | 'lsn' | 'offset' | 'partition' | 'generation', string | undefined>>>

/** Sets a sink back to a place. @throws UsageError: none, or several; EngineError SERVICE_UNREACHABLE */
export async function replay(
  name: string,
  { to, lsn, offset, partition, generation, json, ...access }: Place & Access & Readonly<{ json?: boolean }>,
): Promise<void> {
  if ([to, lsn, offset].filter((place) => place !== undefined).length !== 1) throw new UsageError('give one of --to, --lsn and --offset')
  const numbers = Object.entries({ offset, partition, generation }).flatMap(([field, text]) =>
    text === undefined ? [] : [[field, numberOf(text)]],
  )
  const ask = await service(access)
  // what is left out is no member of the JSON
  const answer = await ask('POST', `/sinks/${encodeURIComponent(name)}/replay`, {
    time: to,
    lsn,
    ...Object.fromEntries(numbers),
  })
  if (json === true) return printJson(answer)
  const { partitions, messages, from } = answer
  if (!isObject(from)) return print(`Nothing has come to "${name}" since: it stays where it is.`)
  const where = partitions === 1 ? '' : `, in ${String(partitions)} partitions`
  const again =
    messages === 0 ? 'none of its messages was finished since' : `about ${String(messages)} finished messages come again${where}`
  print(
    `"${name}" is set back to ${String(from['lsn'])}, committed at ${String(from['time'])}: ${again}; what has been waiting comes as well.`,
  )
}

/** Sets the one sink that is named back. @throws UsageError: none is, or several are */
export async function replayed(
  [name, another]: readonly string[],
  { yes, ...options }: Parameters<typeof replay>[1] & Readonly<{ yes?: boolean | undefined }>,
): Promise<void> {
  if (name === undefined) throw new UsageError('SINK is missing: its name')
  if (another !== undefined) throw new UsageError(`"${another}" is one argument too many`)
  if (yes !== undefined) throw new UsageError('--yes is of delete, not of replay')
  return replay(name, options)
}

/** What is no number goes as it is: the service says what is wrong with it. */
const numberOf = (text: string): number | string => (/^\d{1,15}$/.test(text) ? Number(text) : text)
