/** The variables of sign-in by OIDC, checked against each other, and those of who signs in by passwords (docs/oidc.md). */
import type { IssuerPolicy } from '../actors/resources/issuer-rights.ts'
import type { IssuerOptions } from '../api/oidc/issuer.ts'
import { isRole } from '../engine/state/users.ts'

/** Says by which issuer users sign in, and who may. */
export type OidcSettings = Readonly<{ issuer: IssuerOptions; policy: IssuerPolicy }>

/** The variable that switches sign-in by OIDC on: the others are refused without it. */
const ISSUER = 'TAILRACE_OIDC_ISSUER'
const NEEDED = ['TAILRACE_OIDC_CLIENT_ID', 'TAILRACE_PUBLIC_URL'] as const
const OTHERS = [
  ...NEEDED,
  'TAILRACE_OIDC_CLIENT_SECRET',
  'TAILRACE_OIDC_SCOPES',
  'TAILRACE_OIDC_EMAIL_CLAIM',
  'TAILRACE_OIDC_NAME_CLAIM',
  'TAILRACE_OIDC_GROUPS_CLAIM',
  'TAILRACE_OIDC_UNVERIFIED_EMAILS',
  'TAILRACE_OIDC_DOMAINS',
  'TAILRACE_OIDC_GROUPS',
  'TAILRACE_OIDC_ROLES',
  'TAILRACE_OIDC_DEFAULT_ROLE',
  'TAILRACE_OIDC_ACCOUNT',
] as const

/**
 * Reads the settings of sign-in by OIDC. @param value of a variable; undefined: not set
 * @param wrong told of each wrong variable
 * @returns undefined: nobody signs in so
 */
export function oidcSettings(
  value: (name: string) => string | undefined,
  wrong: (name: string, reason: string) => void,
): OidcSettings | undefined {
  const issuer = value(ISSUER)
  if (issuer === undefined) {
    for (const name of OTHERS) if (value(name) !== undefined) wrong(name, `is set without ${ISSUER}, which says who signs users in`)
    if (value('TAILRACE_PASSWORD_SIGN_IN') === 'false')
      wrong('TAILRACE_PASSWORD_SIGN_IN', `is false without ${ISSUER}: nobody could sign in`)
    return undefined
  }
  if (!isIssuer(issuer))
    wrong(
      ISSUER,
      'is no issuer; takes https://host/path as the issuer calls itself, without "?", "#" or credentials (http on this machine only)',
    )
  for (const name of NEEDED) if (value(name) === undefined) wrong(name, `is missing; ${ISSUER} needs it`)
  const scopes = value('TAILRACE_OIDC_SCOPES') ?? 'openid email profile'
  if (!scopes.split(/\s+/).includes('openid')) wrong('TAILRACE_OIDC_SCOPES', 'lacks openid, without which no issuer says who somebody is')
  const roles = rolesOf(value('TAILRACE_OIDC_ROLES'), wrong)
  const groups = listed(value('TAILRACE_OIDC_GROUPS'))
  const needsGroups = groups.length > 0 || roles.length > 0
  if (!needsGroups && value('TAILRACE_OIDC_GROUPS_CLAIM') !== undefined)
    wrong('TAILRACE_OIDC_GROUPS_CLAIM', 'has no meaning without TAILRACE_OIDC_GROUPS or TAILRACE_OIDC_ROLES')
  const defaultRole = value('TAILRACE_OIDC_DEFAULT_ROLE')
  return {
    issuer: {
      issuer,
      clientId: value('TAILRACE_OIDC_CLIENT_ID') ?? '',
      clientSecret: value('TAILRACE_OIDC_CLIENT_SECRET'),
      scopes,
      publicUrl: value('TAILRACE_PUBLIC_URL') ?? '',
      claims: {
        email: value('TAILRACE_OIDC_EMAIL_CLAIM') ?? 'email',
        name: value('TAILRACE_OIDC_NAME_CLAIM') ?? 'name',
        groups: needsGroups ? (value('TAILRACE_OIDC_GROUPS_CLAIM') ?? 'groups') : undefined,
      },
      trustsEmails: value('TAILRACE_OIDC_UNVERIFIED_EMAILS') === 'trust',
    },
    policy: {
      domains: listed(value('TAILRACE_OIDC_DOMAINS')).map((domain) => domain.toLowerCase().replace(/^@/, '')),
      groups,
      roles,
      defaultRole: defaultRole !== undefined && isRole(defaultRole) ? defaultRole : undefined,
      account: value('TAILRACE_OIDC_ACCOUNT'),
    },
  }
}

/** TLS keeps the secret of the client and the tokens; on one machine nobody is between. */
function isIssuer(text: string): boolean {
  const url = URL.parse(text)
  if (!url || url.search !== '' || url.hash !== '' || url.username !== '' || url.password !== '') return false
  return url.protocol === 'https:' || (url.protocol === 'http:' && /^(?:localhost|127\.[\d.]+|\[::1\])$/.test(url.hostname))
}

function rolesOf(text: string | undefined, wrong: (name: string, reason: string) => void): IssuerPolicy['roles'] {
  return listed(text).flatMap((entry) => {
    const at = entry.lastIndexOf('=')
    const [group, role] = [entry.slice(0, at).trim(), entry.slice(at + 1).trim()]
    if (at > 0 && group !== '' && isRole(role)) return [{ group, role }]
    wrong('TAILRACE_OIDC_ROLES', `"${entry.slice(0, 100)}" is no group with a role; takes group=viewer, group=editor or group=admin`)
    return []
  })
}

const listed = (text = ''): string[] =>
  text
    .split(',')
    .map((entry) => entry.trim())
    .filter((entry) => entry !== '')
