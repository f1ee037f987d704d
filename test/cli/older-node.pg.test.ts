/** The command under a Node that is too old to run it: it starts the Node that came along, and is one with it. */
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { globSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import { test } from 'node:test'
import { COMMAND, CommandStage } from './running-command.ts'

const older = (process.env['PATH'] ?? '')
  .split(delimiter)
  .flatMap((folder) => globSync(join(folder, 'node')))
  .find((node) => Number(/^v(\d+)/.exec(spawnSync(node, ['--version'], { encoding: 'utf8' }).stdout)?.[1]) < 24)
const options = { skip: older === undefined }
const start = (stage: CommandStage) => stage.start(older as string, [COMMAND, 'start'])

test('signals reach what runs, and how it ended is how the command ends', options, async () => {
  await using stage = await CommandStage.create()
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    const { outer, ended, gone, inner } = await start(stage)
    assert.notEqual(inner, outer.pid)
    outer.kill(signal)
    assert.deepEqual(await ended, [0, null])
    await gone
  }
  const { inner, ended } = await start(stage)
  process.kill(inner, 'SIGKILL')
  assert.deepEqual(await ended, [null, 'SIGKILL'])
})

test('what runs does not outlive the command', options, async () => {
  await using stage = await CommandStage.create()
  const { outer, gone } = await start(stage)
  outer.kill('SIGKILL')
  await gone
})

test('a Ctrl-C that arrives from the terminal and from the command is one; it ends cleanly', options, async () => {
  await using stage = await CommandStage.create()
  const { outer, ended, inner } = await start(stage)
  process.kill(inner, 'SIGINT')
  outer.kill('SIGINT')
  assert.deepEqual(await ended, [0, null])
})
