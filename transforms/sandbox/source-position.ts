/**
 * Places in a function as its author knows it. A bundle that the command made ends in a source map, which tells for each place
 * the file that it came from; without one the text is the author's own.
 */
import { SourceMap } from 'node:module'
import { isObject } from '../../engine/json.ts'

/** Line and column from 1. @property file of a bundle */
export type SourcePlace = Readonly<{ line?: number | undefined; column?: number | undefined; file?: string | undefined }>

const MAP = '\n//# sourceMappingURL=data:application/json;base64,'
/** Functions that fail often fail at once: their maps are kept. */
const KEPT_MAPS = 8
const MAX_FILE = 200
const maps = new Map<string, SourceMap | undefined>()

/** Finds the place as the author knows it. @param code as it was run, whoever made it */
export function ownPlace(code: string, { line, column }: SourcePlace): SourcePlace {
  if (line === undefined) return {}
  const here = { line, ...(column !== undefined && { column }) }
  if (!code.includes(MAP)) return here
  try {
    const entry: unknown = mapOf(code)?.findEntry(line - 1, (column ?? 1) - 1)
    const { originalLine: own, originalColumn = 0, originalSource: file } = isObject(entry) ? entry : {}
    if (typeof own !== 'number' || typeof file !== 'string') return here // the map knows nothing of it
    return { line: own + 1, column: Number(originalColumn) + 1, file: file.slice(-MAX_FILE) }
  } catch {
    return here // no map that the command has made
  }
}

function mapOf(code: string): SourceMap | undefined {
  if (maps.has(code)) return maps.get(code)
  const [oldest] = maps.keys()
  if (oldest !== undefined && maps.size === KEPT_MAPS) maps.delete(oldest)
  const [text = ''] = code.slice(code.lastIndexOf(MAP) + MAP.length).split('\n')
  maps.set(code, undefined)
  const map = new SourceMap(JSON.parse(Buffer.from(text, 'base64').toString('utf8')))
  maps.set(code, map)
  return map
}

/** Writes a place for people: ` (line 3, column 5)`, or nothing. */
export function placeText({ file, line, column }: SourcePlace): string {
  if (line === undefined) return ''
  return ` (${file === undefined ? '' : `${file}, `}line ${line}${column === undefined ? '' : `, column ${column}`})`
}
