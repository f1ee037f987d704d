/** The users of a configuration file: they are created, and get the password and the role that it says. None is ever deleted. */
import { Type, type Static } from 'typebox'
import { EngineError } from '../../engine/errors.ts'
import { isObject } from '../../engine/json.ts'
import { record, type FieldChanges } from '../../engine/state/audit.ts'
import { hashPassword, isPassword, MAX_PASSWORD } from '../../engine/state/passwords.ts'
import { addUser, emailOf, ROLES, setPassword, setRole, userByEmail, type Role } from '../../engine/state/users.ts'
import { checker, readOnly, type FileSection } from '../resources/form.ts'
import type { Edit } from '../resources/resource-edits.ts'
import type { ResourceChange } from './config-changes.ts'
import type { ConfigDocument } from './config-document.ts'

/** The schema of what a file says of a user. */
export const UserEntry = Type.Object(
  {
    email: Type.String({ pattern: '^[^@\\s]{1,64}@[^@\\s]{1,190}$', description: 'an email address' }),
    password: Type.String({ minLength: 1, maxLength: MAX_PASSWORD }),
    role: Type.Optional(
      Type.Unsafe<Role>(
        Type.Union(
          Object.keys(ROLES).map((role) => Type.Literal(role)),
          { default: 'admin' },
        ),
      ),
    ),
    ...readOnly('name'),
  },
  { additionalProperties: false },
)
const check = checker(UserEntry)

type ConfiguredUser = Readonly<{ email: string; password: string; role: Static<typeof UserEntry>['role'] }>

/** The section of users. Messages name an entry by its email. */
export const USERS: FileSection<Readonly<{ name: string }>, ConfiguredUser> = {
  section: 'users',
  noun: 'user',
  schema: UserEntry,
  ignored: [{ path: ['account'], why: 'users are of the account that the file names' }],
  flat: (entry) => (isObject(entry) ? { ...entry, name: entry['email'] } : entry),
  read: (entry) => {
    const { email, password, role } = check(entry)
    return { email: emailOf(email), password, role }
  },
}

/** Stores the users of a document. @param refused is told of one that can't be stored @returns how users change */
export async function writeUsers(
  { users }: Pick<ConfigDocument, 'users'>,
  { query, account }: Pick<Edit, 'query' | 'account'>,
  refused: (user: ConfigDocument['users'][number], error: EngineError) => void,
): Promise<readonly ResourceChange[]> {
  const changes: ResourceChange[] = []
  for (const given of users) {
    const { email, password, role } = given
    const known = await userByEmail(query, email)
    if (!known) {
      const made = await addUser(query, account, { email, password: await hashPassword(password), role: role ?? 'admin' })
      if (made) changes.push({ resource_type: 'user', action: 'create', name: email, old: null, new: { email, role: made.role } })
    } else if (known.account.id !== account.id)
      refused(given, new EngineError('VALIDATION_FAILED', 'this email is that of a user of another account'))
    else {
      const hasOther = !(await isPassword(password, known.password))
      if (hasOther) await setPassword(query, known.id, await hashPassword(password))
      const to = role ?? known.role
      if (to !== known.role) await setRole(query, known.id, to)
      const secret = (text: string) => (hasOther ? { password: text } : {})
      const [was, now] = [
        { email, role: known.role, ...secret('(stored)') },
        { email, role: to, ...secret('(another one)') },
      ]
      if (hasOther || to !== known.role) changes.push({ resource_type: 'user', action: 'update', name: email, old: was, new: now })
    }
  }
  await record(
    query,
    changes.map(({ action, name, old, new: now }) => ({ accountId: account.id, action, kind: 'user', name, changes: fieldsOf(old, now) })),
  )
  return changes
}

function fieldsOf(old: ResourceChange['old'], now: ResourceChange['new']): FieldChanges {
  const names = Object.keys({ ...old, ...now }).filter((name) => old?.[name] !== now?.[name])
  return Object.fromEntries(names.map((name) => [name, { old: old?.[name] ?? null, new: now?.[name] ?? null }]))
}
