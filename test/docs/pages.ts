/** The project's pages as a reader has them: README, docs/ and the pages of the folders. */
import { globSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

export const root = dirname(dirname(import.meta.dirname))

export type Page = Readonly<{ file: string; text: string }>

export const pages: readonly Page[] = globSync(['*.md', 'docs/*.md', 'bench/*.md'], { cwd: root })
  .sort()
  .map((file) => ({ file, text: readFileSync(join(root, file), 'utf8') }))

/** The blocks that start with "```sh run", in order. */
export const runnable = ({ text }: Page): string[] =>
  [...text.matchAll(/^```sh run\n(.*?)^```$/gms)].map(([, commands]) => commands as string)
