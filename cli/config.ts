/**
 * `tailrace config`: what a file would change in a running Tailrace (`plan`), changing it (`apply`), what is there as a file
 * (`export`), and a file with its variables replaced (`interpolate`).
 */
import { createInterface } from 'node:readline/promises'
import { parseArgs, styleText } from 'node:util'
import { EngineError } from '../engine/errors.ts'
import { configFile, configRequest, interpolatedText } from './config-file.ts'
import { isEmpty, planText, type Paint, type Plan } from './config-plan.ts'
import { CONFIG_OPTIONS } from './command-options.ts'
import { answered, service, type Access, type ServiceAnswer } from './running-service.ts'
import { writeText } from './text-file.ts'

const USAGE = 'usage: tailrace config plan | apply | export | interpolate [FILE] [options]   (tailrace config --help says more)'
const VERBS = ['plan', 'apply', 'export', 'interpolate'] as const
/** Where colours are wanted: a terminal, unless NO_COLOR is set. */
const paint: Paint = (style, text) => styleText(style, text, { stream: process.stdout })

/** @throws EngineError CONFIG_INVALID, ARGUMENT_INVALID, SERVICE_UNREACHABLE */
export async function config(args: readonly string[]): Promise<void> {
  const { values, positionals } = parseArgs({ args: [...args], allowPositionals: true, options: CONFIG_OPTIONS })
  const [verb, file, more] = positionals
  const known = VERBS.find((one) => one === verb)
  if (!known || more !== undefined || (known === 'export' && file !== undefined)) {
    process.stderr.write(`${USAGE}\n`)
    process.exitCode = 2
    return
  }
  if (known === 'export') return exported(values, values['show-sensitive'] ?? false)
  if (known !== 'interpolate') return changed(file, values, { isPlan: known === 'plan', isApproved: values['auto-approve'] ?? false })
  const text = interpolatedText(await configFile(file))
  if (values.output === undefined) process.stdout.write(text)
  else writeText(values.output, text)
}

async function exported(access: Access, isSensitive: boolean): Promise<void> {
  const ask = await service('config', access)
  const body = ask && checked(await ask('GET', `/config/export${isSensitive ? '?show-sensitive=true' : ''}`))
  if (body) process.stdout.write(body['yaml'] as string)
}

type Ways = Readonly<{ isPlan: boolean; isApproved: boolean }>

async function changed(given: string | undefined, access: Access, { isPlan, isApproved }: Ways): Promise<void> {
  const request = configRequest(await configFile(given))
  const ask = await service('config', access)
  const planned = ask && checked(await ask('POST', '/config/plan', request))
  if (!ask || !planned) return
  const plan = planned as unknown as Plan
  for (const notice of plan.notices) process.stderr.write(`${notice}\n`)
  process.stdout.write(planText(plan, paint))
  if (isPlan || isEmpty(plan)) return
  if (!isApproved && !(await approved(given === '-'))) {
    process.exitCode = 1
    return
  }
  const applied = checked(await ask('POST', '/config/apply', request))
  if (applied) process.stdout.write('Applied.\n')
}

/** Whether somebody says yes; who can't be asked is told how it goes without. */
async function approved(isInputUsed: boolean): Promise<boolean> {
  const { stdin: input, stdout: output } = process
  if (isInputUsed || !input.isTTY || !output.isTTY) {
    process.stderr.write('tailrace config: nothing was applied: there is no terminal to ask at; --auto-approve applies it without asking\n')
    return false
  }
  const terminal = createInterface({ input, output })
  const gone = new AbortController()
  terminal.once('close', () => gone.abort()) // Ctrl-C or Ctrl-D
  const answer = await terminal.question('Apply this? (yes or no) ', { signal: gone.signal }).catch(() => '')
  terminal.close()
  if (/^y(?:es)?$/i.test(answer.trim())) return true
  process.stdout.write('Nothing was applied.\n')
  return false
}

/** @throws EngineError CONFIG_INVALID: told as at the start */
function checked(answer: ServiceAnswer): ServiceAnswer['body'] | undefined {
  if (answer.body['code'] === 'CONFIG_INVALID') throw new EngineError('CONFIG_INVALID', String(answer.body['summary']))
  return answered('config', answer)
}
