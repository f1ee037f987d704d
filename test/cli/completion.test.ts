/** The scripts that shells complete by: bash's is run by bash, as a user's Tab does it. */
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { test } from 'node:test'
import { completion, SHELLS } from '../../cli/completion.ts'
import { COMMANDS } from '../../cli/main.ts'
import { tailrace } from './command.ts'

/** What bash offers for words of which the last one is being typed. */
async function offered(...words: string[]): Promise<readonly string[]> {
  const { code, out } = await tailrace('completion', 'bash')
  assert.equal(code, 0)
  const script = `${out}\nCOMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tailrace; printf '%s\\n' "\${COMPREPLY[@]}"`
  const { status, stdout, stderr } = spawnSync('bash', ['-euo', 'pipefail', '-c', script, 'bash', 'tailrace', ...words], {
    encoding: 'utf8',
  })
  assert.deepEqual([status, stderr], [0, ''])
  return stdout.split('\n').filter((line) => line !== '')
}

test('bash completes commands, then their verbs, and options anywhere behind', async () => {
  assert.deepEqual(await offered(''), Object.keys(COMMANDS))
  assert.deepEqual(await offered('mess'), ['messages'])
  assert.deepEqual(await offered('sinks', ''), ['ls', 'get', 'pause', 'resume', 'create', 'delete', 'replay'])
  assert.deepEqual(await offered('sinks', 'p'), ['pause'])
  assert.deepEqual(await offered('messages', 'ls', 'orders', '--st'), ['--state'])
  assert.deepEqual(await offered('help', 'comp'), ['completion'])
  assert.deepEqual(await offered('sinks', 'get', ''), [], 'the shell completes by itself what we don’t know')
})

test('the scripts of all shells name every command, verb and option', () => {
  for (const shell of Object.keys(SHELLS) as (keyof typeof SHELLS)[]) {
    const words = new Set(completion(shell, COMMANDS).match(/[\w-]+/g))
    for (const [name, { verbs, options }] of Object.entries(COMMANDS))
      for (const word of [name, ...verbs, ...Object.keys(options)])
        assert.ok(words.has(word) || words.has(`--${word}`), `${shell} lacks ${word}`)
  }
})

for (const [shell, args] of [
  ['zsh', ['-n']],
  ['fish', ['--no-execute']],
] as const)
  // prettier-ignore
  test(`${shell} takes its script`, { skip: spawnSync(shell, ['--version']).error && `there is no ${shell} here` }, () => {
    const { status, stderr } = spawnSync(shell, [...args, '/dev/stdin'], { input: completion(shell, COMMANDS), encoding: 'utf8' })
    assert.equal(status, 0, stderr)
  })

test('an unknown shell is refused', async () => {
  const { code, err } = await tailrace('completion', 'csh')
  assert.equal(code, 2)
  assert.match(err, /"csh" is not known: give bash or zsh or fish/)
})
