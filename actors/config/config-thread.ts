/** The thread in which `readGivenConfig` reads configurations: it says that it is there, and answers each text that it gets. */
import { parentPort } from 'node:worker_threads'
import { EngineError } from '../../engine/errors.ts'
import { readDocument } from './config-document.ts'
import type { ThreadAnswer, ThreadRequest } from './given-config.ts'

/* oxlint-disable unicorn/require-post-message-target-origin -- a thread has no origin */

function answerTo({ yaml, file, variables, files, stored, maxEntries, maxCharacters }: ThreadRequest): ThreadAnswer {
  let left = maxCharacters
  const read = (path: string): string => {
    const text = files && Object.hasOwn(files, path) ? files[path] : undefined
    if (text === undefined) throw new Error('the request does not contain this file')
    left -= text.length
    if (left < 0) throw new Error(`the files of the functions have more than ${maxCharacters} characters in total`)
    return text
  }
  try {
    return readDocument(yaml, { file, env: variables, stored, maxEntries, maxCharacters, ...(files && { read }) })
  } catch (error) {
    if (!(error instanceof EngineError)) throw error
    const { code, message, context } = error
    return { code, message, context }
  }
}

const engine = parentPort
if (!engine) throw new Error('this runs in a thread')
engine.on('message', (asked: ThreadRequest) => engine.postMessage(answerTo(asked)))
engine.postMessage('ready')
