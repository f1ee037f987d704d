/** Which people of an OIDC issuer may sign in, and what they may do: decided by what the issuer says of them. Nothing here does I/O. */
import { EngineError } from '../../engine/errors.ts'
import type { Identity } from '../../engine/state/user-identities.ts'
import { emailOf, ROLES, type Role } from '../../engine/state/users.ts'

/** Somebody who has signed in at the issuer. @property isEmailVerified the email is known to be theirs */
export type Person = Identity &
  Readonly<{ email: string | undefined; isEmailVerified: boolean; name: string | undefined; groups: readonly string[] }>

/** Says who may sign in by the issuer, and as what. */
export type IssuerPolicy = Readonly<{
  /** of emails, in lower case; none: of any */
  domains: readonly string[]
  /** one of these is needed; none: no group is */
  groups: readonly string[]
  /** what the members of a group become */
  roles: readonly Readonly<{ group: string; role: Role }>[]
  /** of whom no group gives a role; undefined: they have to be invited, or be users */
  defaultRole: Role | undefined
  /** new users belong to it, and no others may sign in; undefined: the only one that there is */
  account: string | undefined
}>

/** Gives the email of a person by which a user is found or made. @throws EngineError OIDC_EMAIL_UNVERIFIED */
export function verifiedEmail({ email, isEmailVerified }: Person): string {
  if (email === undefined) throw new EngineError('OIDC_EMAIL_UNVERIFIED', 'the issuer tells no email address of you')
  if (!isEmailVerified) throw new EngineError('OIDC_EMAIL_UNVERIFIED', 'the issuer does not say that your email address is verified')
  return emailOf(email)
}

/** Looks at the lists of domains and groups. @throws EngineError OIDC_NOT_ALLOWED, OIDC_EMAIL_UNVERIFIED */
export function refuseStranger(person: Person, { domains, groups }: IssuerPolicy): void {
  if (domains.length > 0) {
    const [domain = ''] = verifiedEmail(person).split('@').slice(-1)
    if (!domains.includes(domain)) throw new EngineError('OIDC_NOT_ALLOWED', `nobody signs in here with an email address of ${domain}`)
  }
  if (groups.length > 0 && !person.groups.some((group) => groups.includes(group)))
    throw new EngineError('OIDC_NOT_ALLOWED', 'you are in none of the groups that may sign in here')
}

/** Gives the highest role that the groups of a person have. @returns undefined: none has one */
export function roleOfGroups({ groups }: Pick<Person, 'groups'>, { roles }: Pick<IssuerPolicy, 'roles'>): Role | undefined {
  const given = roles.filter(({ group }) => groups.includes(group)).map(({ role }) => role)
  return RANKED.findLast((role) => given.includes(role))
}
/** From the least to the most. */
const RANKED = Object.keys(ROLES) as Role[] // its keys are the roles
