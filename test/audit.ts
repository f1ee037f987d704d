/**
 * Fails where npm's registry knows of high or critical vulnerabilities in what the package installs with it (`npm run audit`,
 * a step of CI). A registry that doesn't answer, as on a laptop without a line or behind a mirror, fails nothing, and that is said.
 */
import { spawnSync } from 'node:child_process'

const LIMIT_MS = 120_000
const GRAVE = ['high', 'critical'] as const

type Report = Readonly<{
  metadata?: Readonly<{ vulnerabilities?: Readonly<Record<string, number>> }>
  vulnerabilities?: Readonly<Record<string, Readonly<{ severity: string; range: string }>>>
}>

const { stdout } = spawnSync('npm', ['audit', '--omit=dev', '--json'], { encoding: 'utf8', timeout: LIMIT_MS })
const report = parsed(stdout ?? '')
const counts = report.metadata?.vulnerabilities
if (!counts) {
  process.stdout.write(
    '\n*** npm audit was SKIPPED: the registry does not answer it. Nothing is known of vulnerabilities in dependencies. ***\n\n',
  )
} else if (GRAVE.some((severity) => (counts[severity] ?? 0) > 0)) {
  for (const [name, { severity, range }] of Object.entries(report.vulnerabilities ?? {}))
    if (GRAVE.some((grave) => grave === severity)) process.stderr.write(`${severity}: ${name} ${range}\n`)
  process.stderr.write('npm audit knows of these in what the package installs: "npm audit --omit=dev" says more\n')
  process.exitCode = 1
} else {
  process.stdout.write('npm audit knows of no high or critical vulnerability in what the package installs\n')
}

function parsed(text: string): Report {
  try {
    return JSON.parse(text) as Report
  } catch {
    return {}
  }
}
