/** Starts the server of a folder, tells its process id and waits to be killed, or to be told to exit. */
import { embeddedBinaries } from '../../../engine/postgres/binaries.ts'
import { PostgresServer } from '../../../engine/postgres/server.ts'

const server = new PostgresServer({ binaries: embeddedBinaries(), folder: process.argv[2] as string })
await server.start()
process.send?.(server.pid)
process.on('message', () => process.exit(1))
