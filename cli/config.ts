/**
 * `tailrace config`: what a file would change in a running Tailrace (`plan`), changing it (`apply`), what is there as a file
 * (`export`), and a file with its variables replaced (`interpolate`).
 */
import { createInterface } from 'node:readline/promises'
import { styleText } from 'node:util'
import { parse } from 'yaml'
import { CommandFailed, print, printJson, UsageError } from './command.ts'
import { configFile, configRequest, interpolatedText } from './config-file.ts'
import { isEmpty, planText, type Paint, type Plan } from './config-plan.ts'
import { service, type Access } from './running-service.ts'
import { writeText } from './text-file.ts'

/** Where colours are wanted: a terminal, unless NO_COLOR is set. */
const paint: Paint = (style, text) => styleText(style, text, { stream: process.stdout })

type Options = Access & Readonly<{ 'auto-approve'?: boolean; 'show-sensitive'?: boolean; output?: string; json?: boolean }>

/** Does with a configuration file what the verb says. @throws UsageError; EngineError CONFIG_INVALID, ARGUMENT_INVALID, SERVICE_UNREACHABLE */
export async function config(verb: 'plan' | 'apply' | 'export' | 'interpolate', file: string, options: Options): Promise<void> {
  const { output, json: isJson = false, 'show-sensitive': isSensitive = false, 'auto-approve': isApproved = false } = options
  if (verb === 'export') {
    if (file !== '') throw new UsageError(`config export takes no file ("${file}" came): it prints to the standard output`)
    const ask = await service(options)
    const { yaml } = await ask('GET', `/config/export${isSensitive ? '?show-sensitive=true' : ''}`)
    if (isJson) printJson(parse(String(yaml)))
    else process.stdout.write(String(yaml))
  } else if (verb === 'interpolate') {
    const yaml = interpolatedText(await configFile(file))
    const text = isJson ? `${JSON.stringify(parse(yaml), undefined, 2)}\n` : yaml
    if (output === undefined) process.stdout.write(text)
    else writeText(output, text)
  } else {
    const request = configRequest(await configFile(file))
    const ask = await service(options)
    const plan = (await ask('POST', '/config/plan', request)) as Plan // of the same release
    for (const notice of plan.notices) process.stderr.write(`${notice}\n`)
    if (isJson) printJson(plan)
    else process.stdout.write(planText(plan, paint))
    if (verb === 'plan' || isEmpty(plan)) return
    if (!isApproved && !(await approved(file === '-'))) {
      process.stderr.write('Nothing was applied.\n')
      process.exitCode = 1
      return
    }
    await ask('POST', '/config/apply', request)
    if (!isJson) print('Applied.')
  }
}

/** Asks whether to go on. @throws CommandFailed: nobody can be asked, and how it goes without */
async function approved(isInputUsed: boolean): Promise<boolean> {
  const { stdin: input, stdout: output } = process
  if (isInputUsed || !input.isTTY || !output.isTTY)
    throw new CommandFailed('nothing was applied: there is no terminal to ask at; --auto-approve applies it without asking')
  const terminal = createInterface({ input, output })
  const gone = new AbortController()
  terminal.once('close', () => gone.abort()) // Ctrl-C or Ctrl-D
  const answer = await terminal.question('Apply this? (yes or no) ', { signal: gone.signal }).catch(() => '')
  terminal.close()
  return /^y(?:es)?$/i.test(answer.trim())
}
