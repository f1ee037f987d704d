/** `tailrace sink replay NAME`: sets a sink of a running Tailrace back, through its API. */
import { parseArgs } from 'node:util'
import { REPLAY_OPTIONS } from './command-options.ts'
import { post } from './running-service.ts'

const USAGE =
  'sink replay NAME --to TIME | --lsn LSN | --offset N [--partition P] [--generation G] [--token API_TOKEN] [--url http://127.0.0.1:7376]'

type Replayed = Readonly<{ partitions: number; messages: number; from: Readonly<{ lsn: string; time: string }> | null }>

/** @throws EngineError SERVICE_UNREACHABLE */
export async function sink(args: readonly string[]): Promise<void> {
  const { positionals, values } = parseArgs({ args: [...args], options: REPLAY_OPTIONS, allowPositionals: true })
  const { to, lsn, offset, partition, generation, ...access } = values
  const [command, name, ...more] = positionals
  const given = [to, lsn, offset].filter((way) => way !== undefined)
  if (command !== 'replay' || name === undefined || more.length > 0 || given.length !== 1) {
    process.stderr.write(`usage: tailrace ${USAGE}\n`)
    process.exitCode = 2
    return
  }
  const place = Object.fromEntries(
    Object.entries({ offset, partition, generation }).flatMap(([field, text]) => (text === undefined ? [] : [[field, numberOf(text)]])),
  )
  const asked = { ...(to === undefined ? {} : { time: to }), ...(lsn === undefined ? {} : { lsn }), ...place }
  const body = await post('sink', access, `/sinks/${encodeURIComponent(name)}/replay`, asked)
  if (body) process.stdout.write(told(name, body as Replayed))
}

/** What is no number goes as it is: the service says what is wrong with it. */
const numberOf = (text: string): number | string => (/^\d{1,15}$/.test(text) ? Number(text) : text)

function told(name: string, { partitions, messages, from }: Replayed): string {
  if (!from) return `Nothing has come to "${name}" since: it stays where it is.\n`
  const where = partitions === 1 ? '' : `, in ${partitions} partitions`
  const again = messages === 0 ? 'none of its messages was finished since' : `about ${messages} finished messages come again${where}`
  return `"${name}" is set back to ${from.lsn}, committed at ${from.time}: ${again}; what has been waiting comes as well.\n`
}
