/**
 * The kinds of functions. Its table is the one place that says what a kind is; other places are derived from it. A new kind is a row
 * here, what a sink does with its results in transforms/stage.ts, and its type for editors in transforms/types.ts. Nothing is
 * imported here, for the processes that run functions load it, too.
 */

/** Describes a kind of functions. */
type Kind = Readonly<{
  /** what such a function does, after the words "name of the function" */
  purpose: string
}> &
  (
    | Readonly<{
        /** SQL: it gets the primary keys of the messages of a table and answers rows, before any code runs */
        written: 'query'
      }>
    | Readonly<{
        /** JavaScript or TypeScript that a sandbox runs: it gets one message, as action, record, changes and metadata */
        written: 'code'
        /** its place in the order in which a message goes through such functions */
        step: number
        /** what it may answer. decision: true, which keeps the message, or false, which drops it. value: whatever JSON has a form for */
        answers: 'decision' | 'object' | 'value'
        /** what messages to people call one function of the kind */
        noun: string
        /** the names by which a function is found in code that exports none */
        functionNames: readonly string[]
        /** the type that code in TypeScript imports */
        importedType: string
      }>
  )

/**
 * Describes every kind of functions. The key is the setting by which a sink names such a function, and the type of functions that are written
 * as the row says. Requests, exports and messages to people name the kinds in this order.
 */
export const FUNCTION_KINDS = {
  filter: {
    purpose: 'that keeps or drops messages',
    written: 'code',
    step: 1,
    answers: 'decision',
    noun: 'filter',
    functionNames: ['filter'],
    importedType: 'Filter',
  },
  transform: {
    purpose: 'that makes what is delivered',
    written: 'code',
    step: 3,
    answers: 'value',
    noun: 'transform',
    functionNames: ['transform'],
    importedType: 'Transform',
  },
  routing: {
    purpose: 'that says where each message goes',
    written: 'code',
    step: 2,
    answers: 'object',
    noun: 'routing function',
    functionNames: ['route', 'routing'],
    importedType: 'Route',
  },
  enrichment: { purpose: 'whose query finds a row of the source for each message', written: 'query' },
} as const satisfies Readonly<Record<string, Kind>>

/** A kind of functions, which is also the name of the setting of sinks that takes them. */
export type FunctionKind = keyof typeof FUNCTION_KINDS
/** A kind whose functions run in a sandbox. */
export type SandboxKind = { [K in FunctionKind]: (typeof FUNCTION_KINDS)[K]['written'] extends 'code' ? K : never }[FunctionKind]
/** The type of a stored function: its kind, or a path, which is a short way to write a transform. */
export type FunctionType = FunctionKind | 'path'

/** The settings of a sink that name functions. */
export const FUNCTION_FIELDS = Object.keys(FUNCTION_KINDS) as readonly FunctionKind[] // the keys of a literal
/** Every type of functions. */
export const FUNCTION_TYPES: readonly FunctionType[] = ['path', ...FUNCTION_FIELDS]

const isSandboxKind = (kind: FunctionKind): kind is SandboxKind => FUNCTION_KINDS[kind].written === 'code'
/** The kinds that a sandbox runs, in the order in which a message goes through them. */
export const SANDBOX_KINDS: readonly SandboxKind[] = FUNCTION_FIELDS.filter(isSandboxKind).toSorted(
  (a, b) => FUNCTION_KINDS[a].step - FUNCTION_KINDS[b].step,
)

/** Gives the kind of a type of functions. */
export const kindOfType = (type: FunctionType): FunctionKind => (type === 'path' ? 'transform' : type)
/** Gives what a sandbox runs a type of functions as; undefined: it is a query, which no sandbox runs. */
export function sandboxKindOf(type: FunctionType): SandboxKind | undefined {
  const kind = kindOfType(type)
  return isSandboxKind(kind) ? kind : undefined
}
/** Whether functions of a kind say no more of a message than whether it is kept. */
export const onlyDecides = (kind: SandboxKind): boolean => FUNCTION_KINDS[kind].answers === 'decision'
