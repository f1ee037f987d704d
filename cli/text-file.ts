/** Files that a command was given by name: what can't be read or written is told in words. */
import { readFileSync, writeFileSync } from 'node:fs'
import { EngineError } from '../engine/errors.ts'
import { fieldsOf } from '../engine/json.ts'

const WORDS: Readonly<Record<string, string>> = {
  ENOENT: 'there is no such file or folder',
  EISDIR: 'it is a folder',
  ENOTDIR: 'a part of its path is not a folder',
  EACCES: 'this user has no right to',
}

/** Reads a text file. @throws EngineError ARGUMENT_INVALID */
export const readText = (file: string): string => done('read', file, () => readFileSync(file, 'utf8'))

/** Writes a text file. @throws EngineError ARGUMENT_INVALID */
export const writeText = (file: string, text: string): void => done('write', file, () => writeFileSync(file, text))

function done<T>(what: string, file: string, work: () => T): T {
  try {
    return work()
  } catch (cause) {
    const { code, message } = fieldsOf(cause)
    throw new EngineError('ARGUMENT_INVALID', `can't ${what} ${file}: ${WORDS[String(code)] ?? String(message)}`, {}, { cause })
  }
}
