/** The process of raw.ts that decodes every change with pg-logical-replication's own decoder, counts it and keeps nothing. */
import { LogicalReplicationService, PgoutputPlugin, type Pgoutput } from 'pg-logical-replication'
import { receiveTask, Recorder, runReader } from '../reader.ts'
import type { Task } from '../system.ts'

runReader(async () => {
  const { database, slot, publication, changes } = await receiveTask<Task>()
  const recorder = new Recorder(changes)
  // by itself it would confirm each message by one of its own
  const service = new LogicalReplicationService(database, { acknowledge: { auto: false, timeoutSeconds: 0 } })
  let open = 0
  service.on('data', (_lsn: string, { tag }: Pgoutput.Message) => {
    if (tag === 'insert' || tag === 'update' || tag === 'delete') open++
    else if (tag === 'commit') {
      recorder.add(open)
      open = 0
    }
  })
  service.on('heartbeat', (_lsn: string, _timestamp: number, shouldRespond: boolean) => {
    if (shouldRespond) void service.acknowledge('0/0')
  })
  await service.subscribe(new PgoutputPlugin({ protoVersion: 1, publicationNames: [publication], messages: true }), slot)
})
