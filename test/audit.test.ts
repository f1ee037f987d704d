/** What `npm run audit` makes of a registry's answers, with the real npm and a registry of our own. */
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { createServer } from 'node:http'
import { once } from 'node:events'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { test } from 'node:test'
import { promisify } from 'node:util'

const audit = join(import.meta.dirname, 'audit.ts')

const GOODS = { name: 'goods', 'dist-tags': { latest: '1.0.0' }, versions: { '1.0.0': { name: 'goods', version: '1.0.0' } } }

/** An audit of a package that installs `goods` 1.0.0. @param answer to what is known of it; undefined: nobody answers */
async function audited(
  answer?: Readonly<{ status: number; severity?: string }>,
): Promise<{ code: number; stdout: string; stderr: string }> {
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-audit-'))
  const registry = createServer((request, response) => {
    request.resume()
    const severity = answer?.severity
    const advisory = { id: 1, url: 'https://example.com/1', title: 'it leaks', severity, vulnerable_versions: '<2.0.0', cwe: [], cvss: {} }
    const known = request.url?.includes('/advisories/') ? (severity ? { goods: [advisory] } : {}) : GOODS
    response.writeHead(answer?.status ?? 500, { 'content-type': 'application/json' }).end(JSON.stringify(known))
  })
  try {
    await once(registry.listen(0, '127.0.0.1'), 'listening')
    const { port } = registry.address() as AddressInfo
    if (!answer) registry.close()
    const dependencies = { goods: '1.0.0' }
    const shop = { name: 'shop', version: '1.0.0', dependencies }
    const goods = { version: '1.0.0', resolved: `http://127.0.0.1:${port}/goods/-/goods-1.0.0.tgz` }
    const packages = { '': shop, 'node_modules/goods': goods }
    await writeFile(join(folder, 'package.json'), JSON.stringify(shop))
    await writeFile(join(folder, 'package-lock.json'), JSON.stringify({ name: 'shop', version: '1.0.0', lockfileVersion: 3, packages }))
    const env = {
      ...process.env,
      npm_config_registry: `http://127.0.0.1:${port}/`,
      npm_config_cache: join(folder, 'cache'),
      npm_config_fetch_retries: '0',
    }
    const run = promisify(execFile)(process.execPath, [audit], { cwd: folder, env })
    return await run.then(
      (told) => ({ code: 0, ...told }),
      (ended: { code: number; stdout: string; stderr: string }) => ended,
    )
  } finally {
    registry.close()
    await rm(folder, { recursive: true, force: true })
  }
}

test('an audit fails where the registry knows of a grave vulnerability, and names it', async () => {
  const { code, stderr } = await audited({ status: 200, severity: 'high' })
  assert.equal(code, 1)
  assert.match(stderr, /^high: goods \S+$/m)
})

test('an audit fails for nothing less, and says what it has found', async () => {
  for (const severity of [undefined, 'moderate']) {
    const { code, stdout } = await audited({ status: 200, ...(severity && { severity }) })
    assert.deepEqual([code, stdout], [0, 'npm audit knows of no high or critical vulnerability in what the package installs\n'])
  }
})

test('an audit that the registry refuses or does not answer fails nothing, and says that nothing is known', async () => {
  for (const answer of [{ status: 405 }, undefined]) {
    const { code, stdout } = await audited(answer)
    assert.equal(code, 0)
    assert.match(stdout, /npm audit was SKIPPED/)
  }
})
