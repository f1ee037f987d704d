/**
 * Places in a function as its author knows it. A bundle that the command made ends in a source map, which tells for each place
 * the file that it came from; without one the text is the author's own.
 */
import { SourceMap } from 'node:module'

/** Line and column from 1. @property file of a bundle */
export type SourcePlace = Readonly<{ line?: number | undefined; column?: number | undefined; file?: string | undefined }>

/** An empty object where the map knows nothing. */
type Entry = Readonly<{ originalLine?: number; originalColumn?: number; originalSource?: string }>

const MAP = '\n//# sourceMappingURL=data:application/json;base64,'
/** Functions that fail often fail at once: their maps are kept. */
const KEPT_MAPS = 8
const MAX_FILE = 200
const maps = new Map<string, SourceMap | undefined>()

/** @param code as it was run, whoever made it */
export function ownPlace(code: string, { line, column }: SourcePlace): SourcePlace {
  if (line === undefined) return {}
  const here = { line, ...(column !== undefined && { column }) }
  if (!code.includes(MAP)) return here
  try {
    const entry = mapOf(code)?.findEntry(line - 1, (column ?? 1) - 1) as Entry | undefined
    if (entry?.originalLine === undefined || typeof entry.originalSource !== 'string') return here
    return { line: entry.originalLine + 1, column: (entry.originalColumn ?? 0) + 1, file: entry.originalSource.slice(-MAX_FILE) }
  } catch {
    return here // no map that the command has made
  }
}

function mapOf(code: string): SourceMap | undefined {
  if (maps.has(code)) return maps.get(code)
  if (maps.size === KEPT_MAPS) maps.delete(maps.keys().next().value as string)
  const [text = ''] = code.slice(code.lastIndexOf(MAP) + MAP.length).split('\n')
  maps.set(code, undefined)
  const map = new SourceMap(JSON.parse(Buffer.from(text, 'base64').toString('utf8')) as ConstructorParameters<typeof SourceMap>[0])
  maps.set(code, map)
  return map
}

/** ` (line 3, column 5)`, or nothing. */
export function placeText({ file, line, column }: SourcePlace): string {
  if (line === undefined) return ''
  return ` (${file === undefined ? '' : `${file}, `}line ${line}${column === undefined ? '' : `, column ${column}`})`
}
