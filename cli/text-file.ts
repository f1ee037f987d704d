/** Files that a command was given by name: what can't be read or written is told in words. */
import { readFileSync, writeFileSync } from 'node:fs'
import { EngineError } from '../engine/errors.ts'

const WORDS: Readonly<Record<string, string>> = {
  ENOENT: 'there is no such file or folder',
  EISDIR: 'it is a folder',
  ENOTDIR: 'a part of its path is not a folder',
  EACCES: 'this user may not',
}

/** @throws EngineError ARGUMENT_INVALID */
export const readText = (file: string): string => told('read', file, () => readFileSync(file, 'utf8'))

/** @throws EngineError ARGUMENT_INVALID */
export const writeText = (file: string, text: string): void => told('write', file, () => writeFileSync(file, text))

function told<T>(what: string, file: string, work: () => T): T {
  try {
    return work()
  } catch (error) {
    const { code = '', message } = error as NodeJS.ErrnoException
    throw new EngineError('ARGUMENT_INVALID', `can not ${what} ${file}: ${WORDS[code] ?? message}`, {}, { cause: error })
  }
}
