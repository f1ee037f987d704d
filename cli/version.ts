/** The version of this Tailrace, from the package.json it came with: beside the sources, or one folder above dist/. */
import { readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

/** Finds the version of this Tailrace. */
export function version(): string {
  for (let folder = import.meta.dirname; ; folder = dirname(folder)) {
    const found = versionIn(join(folder, 'package.json'))
    if (found !== undefined) return found
    if (folder === dirname(folder)) return 'unknown'
  }
}

function versionIn(file: string): string | undefined {
  try {
    const { name, version: value }: { name?: string; version?: string } = JSON.parse(readFileSync(file, 'utf8'))
    return name === 'tailrace' ? value : undefined
  } catch {
    return undefined // most folders have none
  }
}
