/** `npm run docs`: writes the pages that are a table of the code, so that they can't drift from it. */
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { ERRORS } from '../engine/errors.ts'

/** Page by file name. */
export function generatedPages(): Readonly<Record<string, string>> {
  return { 'errors.md': errorCatalogue() }
}

const cell = (text: string): string => text.replaceAll('|', '\\|').replaceAll('\n', ' ')

function errorCatalogue(): string {
  const rows = Object.entries(ERRORS)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(
      ([code, { status, retry, meaning, remedy }]) =>
        `| \`${code}\` | ${status} | ${retry ? 'yes' : 'no'} | ${cell(meaning)} | ${cell(remedy)} |`,
    )
  return `# Errors

Every failure has a code. It stands in logs (\`code\`), in \`GET /info\` and in what the command prints; choose by it, never by the
text. A released code keeps its meaning and is never used for another. *Retry* says whether the same thing can succeed later by
itself: Tailrace then tries again on its own, and a client may too. The status is that of an HTTP answer which the failure causes.

This page is made from the table in \`engine/errors.ts\` by \`npm run docs\`.

| code | status | retry | what happened | what to do |
|---|---|---|---|---|
${rows.join('\n')}
`
}

if (import.meta.main) for (const [name, text] of Object.entries(generatedPages())) await writeFile(join(import.meta.dirname, name), text)
