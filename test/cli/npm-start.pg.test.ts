/** npm runs a script through a shell, which passes no signal on. */
import { test } from 'node:test'
import { COMMAND, CommandStage } from './running-command.ts'

const SCRIPT = `"$NODE" "$COMMAND" start; exit $?` // a shell that stays
const env = { NODE: process.execPath, COMMAND, npm_lifecycle_event: 'start' }

for (const signal of ['SIGTERM', 'SIGKILL'] as const)
  test(`the service stops when the shell that npm started it by ends of ${signal}`, { skip: process.platform === 'win32' }, async () => {
    await using stage = await CommandStage.create()
    const { outer, gone } = await stage.start('sh', ['-c', SCRIPT], env)
    outer.kill(signal)
    await gone
  })
