/**
 * The services that a user's commands ask, by name: each an address and an API token. They are kept in one file, which only its
 * owner can read, and one of them may be selected: commands that are told nothing else ask it.
 */
import { chmodSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { dirname, join } from 'node:path'
import { EngineError } from '../engine/errors.ts'
import { fieldsOf } from '../engine/json.ts'
import { CommandFailed } from './command.ts'
import { readSettings } from './settings.ts'

/** A service that commands can ask. */
export type Context = Readonly<{ name: string; url: string; token: string }>
/** All contexts of a user. @property selected the name of the one that is asked when nothing else is said */
export type Contexts = Readonly<{ selected: string | undefined; all: readonly Context[] }>

/** Says where contexts are kept. */
export const contextsFile = (): string => join(readSettings().configHome ?? join(homedir(), '.config'), 'tailrace', 'contexts.json')

/** Reads the contexts of the user. @throws EngineError ARGUMENT_INVALID: the file is there and is not ours */
export function loadContexts(): Contexts {
  const file = contextsFile()
  let text: string
  try {
    text = readFileSync(file, 'utf8')
  } catch (error) {
    if (fieldsOf(error)['code'] === 'ENOENT' || fieldsOf(error)['code'] === 'ENOTDIR') return { selected: undefined, all: [] }
    throw new EngineError(
      'ARGUMENT_INVALID',
      `can't read the contexts in ${file}: ${String(fieldsOf(error)['code'])}`,
      {},
      { cause: error },
    )
  }
  try {
    const { selected, contexts } = fieldsOf(JSON.parse(text))
    const all = Object.entries(fieldsOf(contexts)).map(([name, given]): Context => {
      const { url, token } = fieldsOf(given)
      if (typeof url !== 'string' || typeof token !== 'string') throw new TypeError('a context has a url and a token')
      return { name, url, token }
    })
    return { selected: typeof selected === 'string' ? selected : undefined, all }
  } catch (cause) {
    // its text is not repeated, for it has tokens
    throw new EngineError('ARGUMENT_INVALID', `${file} holds no contexts: mend it, or delete it and add them again`, {}, { cause })
  }
}

/** Keeps the contexts of the user: the file is replaced as a whole, and is its owner's alone from its first byte. */
export function saveContexts({ selected, all }: Contexts): void {
  const file = contextsFile()
  mkdirSync(dirname(file), { recursive: true, mode: 0o700 })
  const contexts = Object.fromEntries(all.map(({ name, url, token }) => [name, { url, token }]))
  const next = `${file}.${process.pid}`
  writeFileSync(next, `${JSON.stringify({ selected, contexts }, undefined, 2)}\n`, { mode: 0o600 })
  chmodSync(next, 0o600) // a file of a run that was killed may have been there
  renameSync(next, file)
}

/** Finds a context by its name. @throws CommandFailed: there is none */
export function contextNamed(name: string, { all } = loadContexts()): Context {
  const found = all.find((one) => one.name === name)
  if (found) return found
  const known = all.length === 0 ? 'there are none' : `there are ${all.map((one) => one.name).join(', ')}`
  throw new CommandFailed(`no context "${name}": ${known} (tailrace context add NAME)`, 2)
}
