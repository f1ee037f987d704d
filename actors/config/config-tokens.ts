/**
 * The API tokens of a configuration file. Those that a file made go when it no longer names them: the file of the start says all of
 * them, one that a client applies only those of its section, for it may be a part. Tokens that were made by the API stay.
 */
import { EngineError } from '../../engine/errors.ts'
import { record } from '../../engine/state/audit.ts'
import { deleteToken, isTokenKnown, saveToken, tokensOf, type StoredToken, type TokenMaker } from '../../engine/state/token-store.ts'
import { hashToken, type Rights } from '../../engine/state/tokens.ts'
import type { Edit } from '../resources/resource-edits.ts'
import { tokenChange } from '../resources/token-edits.ts'
import { rightsOut } from '../resources/token-form.ts'
import type { ResourceChange } from './config-changes.ts'
import type { ConfigDocument } from './config-document.ts'

type ConfiguredToken = ConfigDocument['tokens'][number]

/**
 * Stores the tokens of a document. @param refused is told of one that can't be stored @param tell is told what a reader of a plan must not
 * miss, and in which line @returns how tokens change
 */
export async function writeTokens(
  { tokens, hasTokens }: Pick<ConfigDocument, 'tokens' | 'hasTokens'>,
  { query, account }: Pick<Edit, 'query' | 'account'>,
  {
    maker,
    refused,
    tell,
  }: Readonly<{
    maker: Exclude<TokenMaker, 'api'>
    refused: (token: ConfiguredToken, error: EngineError) => void
    tell: (text: string, line?: number) => void
  }>,
): Promise<readonly ResourceChange[]> {
  const changes: ResourceChange[] = []
  const stored = await tokensOf(query, account)
  const names = new Set(tokens.map(({ name }) => name))
  const left = maker === 'file' || hasTokens ? stored.filter(({ name, madeBy }) => madeBy === maker && !names.has(name)) : []
  for (const token of left) {
    await deleteToken(query, account, token.id)
    await record(query, [tokenChange(account, 'delete', token.name, { before: token })])
    const { name } = token
    changes.push({ resource_type: 'api_token', action: 'delete', name, old: { name, ...rightsOut(token) }, new: null })
    tell(`the API token "${name}" is revoked: the file that made it no longer names it`)
  }
  for (const given of tokens) {
    const { name, token, scopes, sinks } = given
    const before = stored.find((one) => one.name === name)
    const hasOtherText = before?.hash !== hashToken(token)
    if (hasOtherText && (await isTokenKnown(query, token))) {
      refused(given, new EngineError('VALIDATION_FAILED', 'this token is already in use under another name or account'))
      continue
    }
    if (before && !hasOtherText && isSame(before, given)) {
      if (before.madeBy === undefined) await saveToken(query, account, { ...before, token, madeBy: maker }) // of former versions: it is a file's from now on
      continue
    }
    await record(query, [
      tokenChange(account, before ? 'update' : 'create', name, {
        ...(before && { before }),
        after: given,
        hasOtherText: before !== undefined && hasOtherText,
      }),
    ])
    await saveToken(query, account, { name, token, scopes, sinks, expiresAt: before?.expiresAt, madeBy: maker })
    const now = { name, ...rightsOut({ scopes, sinks }) }
    if (!before) changes.push({ resource_type: 'api_token', action: 'create', name, old: null, new: now })
    else {
      const text = (of: string) => (hasOtherText ? { token: of } : {})
      const was = { name, ...rightsOut(before), ...text('(stored)') }
      changes.push({ resource_type: 'api_token', action: 'update', name, old: was, new: { ...now, ...text('(another one)') } })
      if (hasOtherText) tell(`the API token "${name}" gets another text: the former one is refused from then on`, given.line)
    }
  }
  return changes
}

function isSame(before: StoredToken, now: Rights): boolean {
  const text = ({ scopes, sinks }: Rights) => JSON.stringify([scopes.toSorted(), sinks.toSorted()])
  return text(before) === text(now)
}
