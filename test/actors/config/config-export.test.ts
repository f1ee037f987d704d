/** What is exported means itself when it is read again, whatever its texts hold. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from '../../services/fast-check.ts'
import { readDocument } from '../../../actors/config/config-document.ts'
import type { ConfiguredDatabase } from '../../../actors/config/config-document.ts'
import { exportedResources, exportYaml } from '../../../actors/config/config-export.ts'
import type { HttpEndpoint } from '../../../engine/state/destinations.ts'
import type { StoredFunction } from '../../../engine/state/functions.ts'
import type { Database } from '../../../engine/state/resources.ts'

const account = { id: 'a', name: 'shop' }
const own = { id: 'i', accountId: account.id }

function read(code: string, texts: Readonly<{ path: string; secret: string; note: unknown }>) {
  const fn: StoredFunction = {
    ...own,
    name: 'f',
    type: 'transform',
    description: texts.path,
    sinkType: null,
    code,
    compiled: '',
    usesMetadata: false,
  }
  const connection = { hostname: 'h', port: 5432, database: 'd', username: 'u', password: texts.secret, ssl: true } as const
  const slot = { id: 's', name: 's', publication: 'p', status: 'active' } as const
  const database: Database = { ...own, name: 'd', connection, poolSize: 10, annotations: { note: texts.note }, slot }
  const endpoint: HttpEndpoint = { ...own, name: 'e', kind: 'external', url: 'http://h/', headers: {}, encryptedHeaders: { a: 'a-header' } }
  const resources = exportedResources({ databases: [database], endpoints: [endpoint], functions: [fn], sinks: [] }, account.id, {
    partitions: 1,
  })
  const stored = { account, databases: [database], endpoints: [endpoint], sinks: [] }
  return [true, false].map((showSensitive) => {
    const yaml = exportYaml(resources, { showSensitive })
    const documents = [{ HOME: '/home' }, undefined].map((env) => readDocument(yaml, { file: 'x', env, stored }))
    return documents.map(({ document, problems }) => {
      assert.ok(document, JSON.stringify([problems, yaml]))
      const [{ input }, [exported], [sent]] = [
        document.databases[0] as Pick<ConfiguredDatabase, 'input'>,
        document.functions,
        document.endpoints,
      ]
      return [exported?.code, exported?.description, input.connection, input.annotations, sent?.input.encryptedHeaders]
    })
  })
}

const text = fc.oneof(
  { weight: 3, arbitrary: fc.string({ unit: 'binary', minLength: 1 }) },
  fc
    .array(
      fc.constantFrom(
        '${HOME}',
        '$',
        '{',
        '}',
        '${A:-b}',
        '\n',
        '\r\n',
        '\t',
        ' ',
        '  x',
        '# y',
        '---',
        ': ',
        '|',
        "'",
        '"',
        '\\',
        '&a',
        '*a',
        'ü',
      ),
    )
    .map((parts) => `x${parts.join('')}`),
  fc.constantFrom('yes', '007', 'null', '~', '1e3', '0x1f', '2025-02-03', '*****', 'abc******d', '<<', '\n', ' '),
)

test('texts of every kind come back as they were, secrets shown or not, variables replaced or not', () => {
  fc.assert(
    fc.property(text, text, text, fc.oneof(text, fc.jsonValue()), (code, path, secret, note) => {
      // an object in which -0 is 0, as JSON has it
      const plain = JSON.parse(JSON.stringify(note)) as unknown
      const connection = { hostname: 'h', port: 5432, database: 'd', username: 'u', password: secret, ssl: true }
      const expected = [code, path, connection, { note: plain }, { a: 'a-header' }]
      assert.deepEqual(read(code, { path, secret, note: plain }), [
        [expected, expected],
        [expected, expected],
      ])
    }),
    { numRuns: 100 },
  )
})
