/**
 * Debezium's embedded engine in a JVM of its own (debezium/CountChanges.java): it decodes, makes JSON, hands it to a callback
 * that counts, and keeps no log; there is no client. Its jars come from Maven Central, its program is compiled once.
 */
import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { existsSync, readFileSync } from 'node:fs'
import { mkdtemp, rename, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { text } from 'node:stream/consumers'
import { jarFolder, run } from '../../test/services/java.ts'
import type { Running, System, Task } from '../system.ts'

const WITHOUT = 'Debezium needs a JDK from 17 on, and Maven for the first time'
const SOURCES = join(import.meta.dirname, 'debezium')
const PROGRAM = 'CountChanges'
const MEMORY = ['-Xms256M', '-Xmx2G']
/** characters of what the JVM complains about that a failure shows */
const SHOWN_OF_ERRORS = 2_000

/** @returns the system, or why there is none on this machine */
export async function debezium(): Promise<System | string> {
  try {
    const pom = join(SOURCES, 'pom.xml')
    const [, version] = /<artifactId>debezium-embedded<\/artifactId><version>([^<]+)/.exec(readFileSync(pom, 'utf8')) ?? []
    const jars = await jarFolder(pom, 'tailrace-debezium-jars', WITHOUT)
    const classPath = [join(jars, '*'), await compiled(jars)].join(':')
    return {
      name: 'Debezium',
      description: `embedded engine ${version} (pgoutput, JSON without schemas, ${MEMORY.join(' ')}), a callback counts and marks; no log, no client`,
      start: (task) => start(task, classPath),
    }
  } catch (error) {
    return (error as Error).message
  }
}

/** @returns the folder with the program's classes, named by its source */
async function compiled(jars: string): Promise<string> {
  const source = join(SOURCES, `${PROGRAM}.java`)
  const folder = join(tmpdir(), `tailrace-debezium-${createHash('sha256').update(readFileSync(source)).digest('hex').slice(0, 12)}`)
  if (existsSync(folder)) return folder
  const compiling = await mkdtemp(`${folder}.`)
  run('javac', ['-cp', join(jars, '*'), '-d', compiling, source], WITHOUT)
  await rename(compiling, folder).catch(() => rm(compiling, { recursive: true, force: true })) // another process was first
  return folder
}

async function start(task: Task, classPath: string): Promise<Running> {
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-debezium-run-'))
  const settings = join(folder, 'engine.properties')
  await writeFile(settings, properties(task, folder))
  const child = spawn('java', [...MEMORY, '-cp', classPath, PROGRAM, settings, String(task.changes)], {
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const ended = once(child, 'exit')
  const errors = text(child.stderr)
  const { promise: reached, resolve, reject } = Promise.withResolvers<number>()
  createInterface(child.stdout).on('line', (line) => {
    const [, at] = /^reached (\S+)$/.exec(line) ?? []
    if (at !== undefined) resolve(Number(at))
  })
  child.on('error', reject)
  child.on(
    'exit',
    () => void errors.then((said) => reject(new Error(`Debezium ended before all changes came: ${said.slice(-SHOWN_OF_ERRORS)}`))),
  )
  reached.catch(() => {}) // it may be asked for later
  return {
    processes: { service: () => [child.pid ?? 0] },
    reached,
    [Symbol.asyncDispose]: async () => {
      child.kill('SIGKILL') // it keeps nothing worth a goodbye
      await ended
      await rm(folder, { recursive: true, force: true })
    },
  }
}

function properties({ database, slot, publication, table }: Task, folder: string): string {
  const settings = {
    name: 'bench',
    'connector.class': 'io.debezium.connector.postgresql.PostgresConnector',
    'topic.prefix': 'bench',
    'database.hostname': database.host,
    'database.port': database.port,
    'database.user': database.user,
    'database.password': database.password,
    'database.dbname': database.database,
    'plugin.name': 'pgoutput',
    'slot.name': slot,
    'publication.name': publication,
    'publication.autocreate.mode': 'disabled',
    'table.include.list': table,
    'snapshot.mode': 'no_data',
    'tombstones.on.delete': false,
    'key.converter.schemas.enable': false,
    'value.converter.schemas.enable': false,
    'max.batch.size': 4096,
    'max.queue.size': 16384,
    'poll.interval.ms': 5,
    'offset.storage': 'org.apache.kafka.connect.storage.FileOffsetBackingStore',
    'offset.storage.file.filename': join(folder, 'offsets'),
  }
  return Object.entries(settings)
    .map(([name, value]) => `${name}=${String(value).replaceAll('\\', '\\\\')}\n`)
    .join('')
}
