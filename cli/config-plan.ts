/** Writes for people what a configuration file would change: a line for each resource, and what differs in it line by line. Text only. */
import type { ResourceChange } from '../actors/config/config-changes.ts'
import { yamlOf } from '../actors/config/config-export.ts'
import { NOUN_OF } from '../engine/state/resource-store.ts'
import { BUNDLE_MARK } from '../transforms/compile.ts'

/** Holds what the service says that a file would change. */
export type Plan = Readonly<{
  changes: readonly ResourceChange[]
  actions: readonly Readonly<{ description: string }>[]
  notices: readonly string[]
}>
type Style = 'green' | 'red' | 'yellow' | 'dim' | 'bold'
/** Puts a text into a style, where the terminal has styles. */
export type Paint = (style: Style, text: string) => string
type Line = Readonly<{ sign: ' ' | '+' | '-'; text: string }>

const NOUNS = { ...NOUN_OF, api_token: 'API token', user: 'user' } as const
const STYLES = { '+': 'green', '-': 'red', ' ': 'dim' } as const
/** Lines around one that differs. */
const CONTEXT = 2
/** At most so many lines of one resource are shown; more say nothing to a reader. */
const MAX_LINES = 100
const MAX_WIDTH = 200
/** Above, all lines are told as different: comparing takes the square. */
const MAX_COMPARED = 2_000

/** Gives what is made on the servers of databases: the notices, which are told apart, stand among the actions, too. */
const madeOn = ({ actions, notices }: Plan) => actions.filter(({ description }) => !notices.includes(description))

/** Tells whether applying a plan would do nothing. */
export const isEmpty = (plan: Plan): boolean => madeOn(plan).length === 0 && plan.changes.every(stays)

/** Whether it isn't in the file, and stays all the same; a token goes. */
const stays = ({ resource_type, action }: ResourceChange): boolean => action === 'delete' && resource_type !== 'api_token'

/** Writes a plan for people. */
export function planText(plan: Plan, paint: Paint): string {
  const { changes } = plan
  const parts = changes.map((change) => changeText(change, paint))
  const made = madeOn(plan).map(({ description }) => `${paint('green', '+')} ${description}\n`)
  const count = (action: ResourceChange['action']) => changes.filter((change) => change.action === action).length
  const missing = changes.filter(stays).length
  const [created, updated, revoked] = [count('create'), count('update'), count('delete') - missing]
  const does = [
    ...(created > 0 ? [`${created} to create`] : []),
    ...(updated > 0 ? [`${updated} to change`] : []),
    ...(revoked > 0 ? [`${revoked} to revoke`] : []),
  ]
  const rest = missing > 0 ? `; ${missing} not in the file, which ${missing === 1 ? 'stays' : 'stay'}` : ''
  const sum = isEmpty(plan) ? 'Nothing to change' : does.join(', ') || 'Only to make what is named above'
  return `${[...parts, ...made].join('')}${parts.length + made.length > 0 ? '\n' : ''}${sum}${rest}.\n`
}

function changeText({ resource_type, action, name, old, new: now }: ResourceChange, paint: Paint): string {
  const title = `${NOUNS[resource_type]} ${paint('bold', name)}`
  if (action === 'delete' && resource_type === 'api_token') return `${paint('red', '-')} ${title}\n`
  if (action === 'delete') return `${paint('dim', '·')} ${title} ${paint('dim', 'is not in the file, and stays')}\n`
  const lines =
    action === 'create'
      ? linesOf(withoutBundle(now)).map((text): Line => ({ sign: '+', text }))
      : hunks(difference(linesOf(old), linesOf(now)))
  const shown = lines.slice(0, MAX_LINES).map(({ sign, text }) => `    ${paint(STYLES[sign], `${sign} ${shortened(text)}`)}\n`)
  const more = lines.length > MAX_LINES ? `    ${paint('dim', `  … and ${lines.length - MAX_LINES} more lines`)}\n` : ''
  return `${action === 'create' ? paint('green', '+') : paint('yellow', '~')} ${title}\n${shown.join('')}${more}`
}

/** Nobody reads libraries. */
function withoutBundle(form: ResourceChange['new']): ResourceChange['new'] {
  const { code } = form ?? {}
  return typeof code === 'string' && code.startsWith(BUNDLE_MARK) ? { ...form, code: `(bundled: ${Buffer.byteLength(code)} bytes)` } : form
}

const linesOf = (form: ResourceChange['new']): readonly string[] => yamlOf(form).trimEnd().split('\n')

/** Without what a terminal would take for a command. */
const shortened = (text: string): string => {
  const plain = text.replaceAll(/(?!\t)\p{Cc}/gu, '\u{fffd}')
  return plain.length <= MAX_WIDTH ? plain : `${plain.slice(0, MAX_WIDTH)}… (${plain.length} characters)`
}

/** All lines of both, those in common once. */
function difference(old: readonly string[], now: readonly string[]): readonly Line[] {
  const least = Math.min(old.length, now.length)
  let start = 0
  while (start < least && old[start] === now[start]) start++
  let end = 0
  while (end < least - start && old.at(-1 - end) === now.at(-1 - end)) end++
  const same = (texts: readonly string[]) => texts.map((text): Line => ({ sign: ' ', text }))
  const middle = compared(old.slice(start, old.length - end), now.slice(start, now.length - end))
  return [...same(old.slice(0, start)), ...middle, ...same(old.slice(old.length - end))]
}

function compared(old: readonly string[], now: readonly string[]): readonly Line[] {
  const lines: Line[] = []
  const [height, width] = [old.length, now.length]
  if (Math.max(height, width) > MAX_COMPARED)
    return [...old.map((text): Line => ({ sign: '-', text })), ...now.map((text): Line => ({ sign: '+', text }))]
  // longest common part of what is left of both, from each pair of places on
  const common = Array.from({ length: height + 1 }, () => new Uint16Array(width + 1))
  const at = (i: number, j: number): number => common[i]?.[j] ?? 0
  for (let i = height - 1; i >= 0; i--) {
    const row = common[i] ?? new Uint16Array()
    for (let j = width - 1; j >= 0; j--) row[j] = old[i] === now[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1))
  }
  let [i, j] = [0, 0]
  while (i < height || j < width)
    if (i < height && j < width && old[i] === now[j]) {
      lines.push({ sign: ' ', text: old[i++] ?? '' })
      j++
    } else if (i < height && (j === width || at(i + 1, j) >= at(i, j + 1))) lines.push({ sign: '-', text: old[i++] ?? '' })
    else lines.push({ sign: '+', text: now[j++] ?? '' })
  return lines
}

/** The lines that differ, with some lines around them. */
function hunks(lines: readonly Line[]): readonly Line[] {
  const near = new Set(
    lines.flatMap(({ sign }, at) => (sign === ' ' ? [] : Array.from({ length: 2 * CONTEXT + 1 }, (_, i) => at - CONTEXT + i))),
  )
  return lines.flatMap((line, at): Line[] => {
    if (near.has(at)) return [line]
    return at === 0 || near.has(at - 1) ? [{ sign: ' ', text: '…' }] : []
  })
}
