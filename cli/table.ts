/** Tables for people to read. */
import { stripVTControlCharacters } from 'node:util'

const widthOf = (text: string): number => stripVTControlCharacters(text).length

/** Sets rows in columns under their heads; a column whose name ends in a space stands right. @param head none: the rows have no heads */
export function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const lines = head.length === 0 ? rows : [head.map((name) => name.trimEnd()), ...rows]
  const widths: number[] = []
  for (const line of lines) for (const [at, cell] of line.entries()) widths[at] = Math.max(widths[at] ?? 0, widthOf(cell))
  return lines
    .map((line) =>
      line
        .map((cell, at) => {
          const space = ' '.repeat((widths[at] ?? 0) - widthOf(cell))
          return head[at]?.endsWith(' ') === true ? space + cell : cell + space
        })
        .join('  ')
        .trimEnd(),
    )
    .join('\n')
}
