/**
 * The process that posts one message a request in a loop, over as many connections as a webhook sink has: what it
 * could do at best. It tells when it has warmed up, and when it is done.
 */
import { Pool } from 'undici'
import { receiveTask, runReader, tell } from '../reader.ts'
import { wallClock } from '../system.ts'
import { untilUp } from '../until-up.ts'

export type LoopTask = Readonly<{ origin: string; connections: number; requests: number; /** requests that don't count */ warmUp: number }>

/** A message like the workload's. */
const BODY = Buffer.from(
  JSON.stringify({
    record: {
      ...{
        id: 123_456,
        title: 'The quick brown fox jumps over the lazy dog. '.repeat(4),
        price: '1234.56',
        updated_at: '2025-02-03T04:05:06.789012',
      },
      ...{ attributes: { colour: 'green', size: 'XL', tags: ['new', 'summer', 'sale'] }, written_at: '2025-02-03T04:05:06.789012Z' },
    },
    changes: {},
    action: 'update',
    metadata: {
      ...{ table_schema: 'public', table_name: 'measured', commit_timestamp: '2025-02-03T04:05:06.789012Z', commit_lsn: 26_741_272 },
      ...{ commit_idx: 0, idempotency_key: 'MjY3NDEyNzI6MA==', record_pks: ['123456'], transaction_annotations: null, enrichment: null },
      ...{ database_name: 'bench', consumer: { id: '5f1d5bb8-4a8e-4f0e-9d0c-0d6f5c1f0a01', name: 'bench', annotations: {} } },
      database: { id: '5f1d5bb8-4a8e-4f0e-9d0c-0d6f5c1f0a01', name: 'bench', annotations: {}, database: 'bench', hostname: '127.0.0.1' },
    },
  }),
)

runReader(async () => {
  const { origin, connections, requests, warmUp } = await receiveTask<LoopTask>()
  const pool = new Pool(origin, { connections, pipelining: 1 })
  const headers = { 'content-type': 'application/json' }
  const post = async (): Promise<number> => {
    const answer = await pool.request({ path: '/', method: 'POST', headers, body: BODY })
    await answer.body.dump()
    return answer.statusCode
  }
  const loop = (count: number) => {
    let left = count
    const one = async () => {
      while (left-- > 0) await post()
    }
    return Promise.all(Array.from({ length: connections }, one))
  }
  await untilUp(post)
  await loop(warmUp)
  tell({ warm: wallClock() })
  await loop(requests)
  tell({ reached: wallClock() })
  await pool.close()
})
