/** `tailrace function save`: a function from a file in a running Tailrace, created or updated by its name, and given to a sink. */
import { basename } from 'node:path'
import { functionText, tellOutside } from './bundle.ts'
import { answered, service, type Access } from './running-service.ts'

/** @property kind type of the function, which is the field of a sink that has one @property routes of a routing function: type of its sinks */
type Saved = Readonly<{ file: string; kind: string; routes: string | undefined }>
type Options = Access & Readonly<{ name?: string | undefined; sink?: string | undefined }>

/** @throws EngineError VALIDATION_FAILED: it can't be bundled; SERVICE_UNREACHABLE */
export async function saveFunction({ file, kind, routes }: Saved, { name = nameOf(file), sink, ...access }: Options): Promise<void> {
  const code = functionText(file, tellOutside)
  const ask = await service('function', access)
  if (!ask) return
  const path = `/functions/${encodeURIComponent(name)}`
  const form = { type: kind, code, ...(routes !== undefined && { sink_type: routes }) }
  const isKnown = (await ask('GET', path)).status === 200
  const saved = answered('function', isKnown ? await ask('PATCH', path, form) : await ask('POST', '/functions', { name, ...form }))
  if (!saved) return
  const users = saved['used_by'] as readonly string[]
  process.stdout.write(
    `${name}: ${isKnown ? 'updated' : 'saved'}, type ${kind}${users.length > 0 ? `; sinks that have it: ${users.join(', ')}` : ''}\n`,
  )
  for (const warning of (saved['warnings'] ?? []) as readonly string[]) process.stderr.write(`it fails ${warning}\n`)
  if (sink === undefined || users.includes(sink)) return
  if (answered('function', await ask('PATCH', `/sinks/${encodeURIComponent(sink)}`, { [kind]: name })))
    process.stdout.write(`${sink}: has it now\n`)
}

const nameOf = (file: string): string => basename(file).replace(/(?:\.bundle)?\.[^.]+$/, '')
