/** What differs between the search servers that tests start: Elasticsearch, or OpenSearch with TEST_SEARCH=opensearch. */
import { cp, mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'

export type SearchFlavor = Readonly<{
  name: 'elasticsearch' | 'opensearch'
  /** what its variables begin with */
  prefix: 'ES' | 'OPENSEARCH'
  settings: Readonly<Record<string, string | number | boolean | readonly string[]>>
  /** Writes who may do what into its configuration. @param home the server's files */
  writeUsers: (users: Users, home: string, config: string) => Promise<void>
  /** its start command ends before it answers */
  isReadyLate: boolean
}>

/** @property hash bcrypt of everybody's password. @property reader may look at indexes and write into none */
export type Users = Readonly<{ hash: string; superuser: string; reader: string }>

const ELASTICSEARCH: SearchFlavor = {
  name: 'elasticsearch',
  prefix: 'ES',
  isReadyLate: false,
  settings: {
    'xpack.security.enabled': true,
    'xpack.security.autoconfiguration.enabled': false,
    'xpack.security.http.ssl.enabled': false,
  },
  writeUsers: async ({ hash, superuser, reader }, _home, config) => {
    await writeFile(join(config, 'users'), [superuser, reader].map((name) => `${name}:${hash}\n`).join(''))
    await writeFile(join(config, 'users_roles'), `superuser:${superuser}\nreader:${reader}\n`)
    const role = { cluster: ['monitor'], indices: [{ names: ['*'], privileges: ['read'] }] }
    await writeFile(join(config, 'roles.yml'), JSON.stringify({ reader: role })) // JSON is YAML
  },
}

const OPENSEARCH: SearchFlavor = {
  name: 'opensearch',
  prefix: 'OPENSEARCH',
  isReadyLate: true,
  settings: {
    'plugins.security.allow_default_init_securityindex': true,
    'plugins.security.nodes_dn': ['CN=*'],
    'plugins.security.ssl.http.enabled': false,
    'plugins.security.ssl.transport.enforce_hostname_verification': false,
    'plugins.security.ssl.transport.pemcert_filepath': 'server.crt',
    'plugins.security.ssl.transport.pemkey_filepath': 'server.key',
    'plugins.security.ssl.transport.pemtrustedcas_filepath': 'ca.crt',
  },
  writeUsers: async ({ hash, superuser, reader }, home, config) => {
    const folder = join(config, 'opensearch-security')
    await mkdir(folder)
    await cp(join(home, 'plugins', 'opensearch-security', 'config'), folder, { recursive: true })
    for (const file of ['server.crt', 'server.key', 'ca.crt']) await cp(join(import.meta.dirname, 'tls', file), join(config, file))
    const write = (file: string, type: string, content: object) =>
      writeFile(join(folder, file), JSON.stringify({ _meta: { type, config_version: 2 }, ...content }))
    await write('internal_users.yml', 'internalusers', { [superuser]: { hash, backend_roles: ['admin'] }, [reader]: { hash } })
    const role = { cluster_permissions: ['cluster_monitor'], index_permissions: [{ index_patterns: ['*'], allowed_actions: ['read'] }] }
    await write('roles.yml', 'roles', { reader: role })
    await write('roles_mapping.yml', 'rolesmapping', { all_access: { backend_roles: ['admin'] }, reader: { users: [reader] } })
  },
}

/** What the server says: each has its own words for the same. */
export const inItsWords = (elasticsearch: RegExp, opensearch: RegExp): RegExp => (SEARCH.name === 'opensearch' ? opensearch : elasticsearch)

/** The one that this run of the tests is about. */
export const SEARCH: SearchFlavor = process.env['TEST_SEARCH'] === 'opensearch' ? OPENSEARCH : ELASTICSEARCH
