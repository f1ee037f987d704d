/** Lists by pages, as a client walks through them. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { serveEverything, TOKENS } from './served-everything.ts'

type Page = Readonly<{ data: readonly Readonly<{ id: string; name: string }>[]; next_cursor?: string }>

test('a list comes whole, or in pages that have each once, whatever is deleted meanwhile', async () => {
  await using s = await serveEverything()
  const token = TOKENS.admin
  const asked = async (path: string) => (await s.call('GET', path, { token })).body as Page
  const endpoint = (name: string) => ({ token, body: { name, url: `https://${name}.example.com` } })
  for (const name of ['a', 'b', 'c', 'd', 'e']) await s.call('POST', '/api/destinations/http_endpoints', endpoint(name))
  const list = '/api/destinations/http_endpoints'
  const whole = await asked(list)
  assert.deepEqual([whole.data.length, 'next_cursor' in whole], [5, false])

  const first = await asked(`${list}?limit=2`)
  assert.equal(first.data.length, 2)
  await s.call('DELETE', `${list}/${first.data.at(-1)?.id}`, { token }) // the cursor stands on it
  const second = await asked(`${list}?limit=2&cursor=${first.next_cursor}`)
  const last = await asked(`${list}?limit=2&cursor=${second.next_cursor}`)
  const seen = [first, second, last].flatMap(({ data }) => data.map(({ name }) => name))
  assert.deepEqual([seen.toSorted(), last.next_cursor], [['a', 'b', 'c', 'd', 'e'], undefined])

  for (const path of ['/api/sinks', '/api/api_keys', '/api/postgres_databases', '/api/postgres_replications', '/api/functions']) {
    const all = (await asked(path)).data
    const paged: Page['data'][number][] = []
    for (let cursor = ''; ;) {
      const page = await asked(`${path}?limit=1${cursor}`)
      paged.push(...page.data)
      if (page.next_cursor === undefined) break
      cursor = `&cursor=${page.next_cursor}`
    }
    assert.deepEqual(paged.map(({ id }) => id).toSorted(), all.map(({ id }) => id).toSorted(), path)
    for (const query of ['limit=0', 'limit=1001', 'limit=ten', 'limit=1&cursor=%zz', 'cursor=', 'cursor=a'])
      assert.equal((await s.call('GET', `${path}?${query}`, { token })).status, 400, `${path}?${query}`)
  }
})
