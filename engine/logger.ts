/**
 * The log of the process: one pino logger, made once and passed down, whose every line went through the redaction rule
 * (redaction.ts) before pino sees it. `console` is for people, `json` for machines.
 *
 * A line is `log.warn({ sink, partition, position, code }, 'what happened')`; an error goes under `err` (or alone, as the
 * first argument) and lends its code to the line when the line has none. Rows are never logged: log their position.
 */
import { pino, type DestinationStream, type Level, type Logger as PinoLogger } from 'pino'
import { fieldsOf } from './json.ts'
import { redact, redactError, redactText } from './redaction.ts'

/** The log of the process, or of a part of it. */
export type Logger = PinoLogger
/** The form of the lines of the log: for people, or for machines. */
export type LogFormat = 'console' | 'json'
/** The least that is logged. */
export type LogLevel = Level | 'silent'

type LoggerOptions = Readonly<{
  level: LogLevel
  format: LogFormat
  /** fields of every line */
  base?: Readonly<Record<string, unknown>>
  /** where lines go; standard output when absent */
  destination?: DestinationStream
  /** ANSI colours in the console format; by default when standard output is a terminal */
  colours?: boolean
}>

/** Lines are written before the call returns, so that the last words of a dying process are there. */
export function createLogger({ level, format, base, destination, colours }: LoggerOptions): Logger {
  const out = destination ?? pino.destination({ dest: 1, sync: true })
  const stream = format === 'json' ? out : consoleStream(out, colours ?? (!destination && process.stdout.isTTY))
  const logger = pino(
    {
      level,
      base: base ? fieldsOf(redact(base)) : null,
      messageKey: 'message',
      timestamp: () => `,"timestamp":"${new Date().toISOString()}"`,
      formatters: { level: (label) => ({ level: label }) },
      serializers: { err: (plain: unknown) => plain }, // pino's own would read the error anew
      hooks: {
        logMethod(args: unknown[], method) {
          const { fields, message } = redactedLine(args)
          method.call(this, fields, message)
        },
      },
    },
    stream,
  )
  // pino prints a child's bindings once, when it is made, and no formatter sees them; children inherit these two
  const { child, setBindings } = logger
  logger.child = function (this: Logger, bindings: object, ...rest: unknown[]) {
    return Reflect.apply(child, this, [redact(bindings), ...rest])
  } as Logger['child']
  logger.setBindings = function (this: Logger, bindings) {
    setBindings.call(this, fieldsOf(redact(bindings)))
  }
  return logger
}

/** Takes the arguments of a log call apart: `(fields, text, ...values)`, `(error, text?)` or `(text, ...values)`. */
function redactedLine(args: readonly unknown[]): { fields: Record<string, unknown>; message: string } {
  const [first, ...rest] = args
  const hasFields = typeof first === 'object' && first !== null
  const [text, ...values] = hasFields ? rest : args
  const fields = hasFields ? lineFields(first) : {}
  const own = first instanceof Error ? String(fieldsOf(fields['err'])['message']) : ''
  // values are put in here and not by pino: it prints objects as they are
  const message = typeof text === 'string' ? text.replace(/%[sdifjoO%]/g, (at) => (at === '%%' ? '%' : printed(values.shift()))) : own
  return { fields, message: redactText(message) }
}

function lineFields(first: object): Record<string, unknown> {
  if (first instanceof Error) return withCode({ err: redactError(first) }, first)
  const fields = redact(first)
  if (typeof fields !== 'object' || fields === null || Array.isArray(fields)) return { fields }
  const error = 'err' in first ? first.err : undefined
  return withCode(fieldsOf(fields), error)
}

function withCode(fields: Record<string, unknown>, error: unknown): Record<string, unknown> {
  if (fields['code'] !== undefined || !(error instanceof Error) || !('code' in error)) return fields
  return typeof error.code === 'string' ? { ...fields, code: redactText(error.code) } : fields
}

const printed = (value: unknown): string => {
  const safe = redact(value)
  return typeof safe === 'string' ? safe : (JSON.stringify(safe) ?? 'undefined')
}

const COLOUR: Readonly<Record<string, string>> = { fatal: '41;97', error: '31', warn: '33', info: '32', debug: '36', trace: '90' }

/** Turns pino's JSON lines into `12:04:05.678 WARN  message  sink=goods partition=3`, an error's frames below. */
function consoleStream(out: DestinationStream, colours: boolean): DestinationStream {
  const paint = (code: string, text: string) => (colours ? `\u001b[${code}m${text}\u001b[0m` : text)
  return {
    write(line) {
      const { level, timestamp, message, err, ...fields } = fieldsOf(JSON.parse(line))
      const time = String(timestamp).slice(11, 23)
      const name = String(level)
      const head = `${paint('90', time)} ${paint(COLOUR[name] ?? '0', name.toUpperCase().padEnd(5))} ${oneLine(String(message ?? ''))}`
      const tail = Object.entries(fields).map(([key, value]) => ` ${paint('90', `${key}=`)}${shown(value)}`)
      out.write(`${head}${tail.length > 0 ? ' ' : ''}${tail.join('')}\n${errorLines(err, String(message), '  ')}`)
    },
  }
}

function errorLines(err: unknown, said: string, indent: string): string {
  if (typeof err !== 'object' || err === null) return err === undefined ? '' : `${indent}${shown(err)}\n`
  const { type, message, stack, cause, errors, ...rest } = fieldsOf(err)
  const text = message === said ? '' : `: ${oneLine(String(message))}`
  const fields = Object.entries(rest).map(([key, value]) => ` ${key}=${shown(value)}`)
  const frames =
    typeof stack === 'string' && stack !== '' ? `${stack.replaceAll(/^\s+/gm, ' '.repeat(Math.min(indent.length, 2) + 2))}\n` : ''
  const below = [cause, ...(Array.isArray(errors) ? errors : [])].filter((item) => item !== undefined)
  const inner = '  caused by '
  return `${indent}${String(type)}${text}${fields.join('')}\n${frames}${below.map((item) => errorLines(item, '', inner)).join('')}`
}

/** A text from outside can't start a line of its own or colour the terminal. */
const oneLine = (text: string): string =>
  // oxlint-disable-next-line no-control-regex -- control characters are what this is about
  text.replaceAll(/[\u0000-\u001f\u007f-\u009f]/g, (at) =>
    JSON.stringify(at)
      .slice(1, -1)
      .replace(/^[\u007f-\u009f]$/, '?'),
  )

const shown = (value: unknown): string => {
  const text = typeof value === 'string' ? value : (JSON.stringify(value) ?? '')
  return typeof value === 'string' && (text === '' || /[\s"=]/.test(text)) ? oneLine(JSON.stringify(text)) : oneLine(text)
}
