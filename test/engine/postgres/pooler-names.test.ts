/** Host names of poolers are known by their ends and what stands before; those of servers are let through. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { refusePoolerName } from '../../../engine/postgres/pooler.ts'

test('host names of poolers are refused, and those of servers beside them are not', () => {
  for (const name of [
    'aws-0-eu.pooler.supabase.com',
    'ep-cool-1-pooler.eu-central-1.aws.neon.tech',
    'EP-COOL-1-POOLER.neon.tech',
    'app.proxy-abc123.eu-west-1.rds.amazonaws.com',
    'app.proxy-abc123.cn-north-1.rds.amazonaws.com.cn',
    'eu-pooler.sql.xata.sh',
    'app-pool.db.ondigitalocean.com',
    'app-pool.x.db.ondigitalocean.com',
  ])
    assert.throws(() => refusePoolerName(name), { code: 'SOURCE_POOLED' }, name)
  for (const name of [
    'db.abc.supabase.co',
    'ep-cool-1.eu-central-1.aws.neon.tech',
    'app.abc123.eu-west-1.rds.amazonaws.com',
    'app.db.ondigitalocean.com',
  ])
    refusePoolerName(name)
})
