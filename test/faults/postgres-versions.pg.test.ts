/** The stream and a kill on each PostgreSQL installation of this machine; the other tests run on the embedded one. */
import { test } from 'node:test'
import { createDatabase, machinePostgres, startPostgres } from '../services/postgres.ts'
import { Scenario, withSeed } from './scenario.ts'

for (const binaries of machinePostgres()) {
  test(`PostgreSQL ${binaries.version} streams through a SIGKILL, a clean stop and a restart of the server`, async () => {
    await withSeed(Number(binaries.version), 'postgres-versions.pg.test.ts', async () => {
      await using server = await startPostgres({ binaries })
      await using source = await createDatabase(undefined, { server: server.url })
      await using scenario = await Scenario.create({ seed: Number(binaries.version), source })
      const { service } = scenario
      await service.startReady()
      scenario.write()
      scenario.receive()
      await scenario.untilMore(200)
      await service.kill()
      await service.startReady()
      await scenario.untilMore(100)
      await service.stop()
      await server.stop('fast')
      await server.start()
      await service.startReady()
      await scenario.untilMore(100)
      await scenario.settle()
    })
  })
}
