/**
 * The types of functions, each described once. A new one is a row here, a setting of sinks that takes it (resources.ts), what is
 * done with its results (transforms/stage.ts, and sandbox/runtime.ts where a sandbox runs it), and a migration: the state database
 * checks the types that it stores. It has no imports: the processes that run functions load it, too.
 */
export const FUNCTION_TYPES = ['path', 'transform', 'filter', 'routing', 'enrichment'] as const
/** The type of a function. */
export type FunctionType = (typeof FUNCTION_TYPES)[number]
/** The settings of a sink that name functions; each is also the type of the functions that a file is taken for. */
export const FUNCTION_FIELDS = ['filter', 'transform', 'routing', 'enrichment'] as const
/** A setting of a sink that names a function. */
export type FunctionField = (typeof FUNCTION_FIELDS)[number]
/** The types of functions that a sandbox runs. What their results mean is told in transforms/: by sandbox/runtime.ts and by stage.ts. */
export type SandboxKind = 'transform' | 'filter' | 'routing'

/** Holds what is particular to a type of function. */
type Kind = Readonly<{
  /** the setting of a sink that takes one */
  field: FunctionField
  written: 'code' | 'path' | 'query'
  /** as what it runs in a sandbox; absent: it doesn't */
  runs?: SandboxKind
  /** the type that its code may import */
  imports?: string
}>
/** Describes every type of function. */
export const FUNCTION_KINDS: Readonly<Record<FunctionType, Kind>> = {
  path: { field: 'transform', written: 'path', runs: 'transform' },
  transform: { field: 'transform', written: 'code', runs: 'transform', imports: 'Transform' },
  filter: { field: 'filter', written: 'code', runs: 'filter', imports: 'Filter' },
  routing: { field: 'routing', written: 'code', runs: 'routing', imports: 'Route' },
  enrichment: { field: 'enrichment', written: 'query' },
}
/** Finds the function of a kind in code that exports none: by its name, at the beginning of a line. */
export const FUNCTION_NAMED: Readonly<Record<SandboxKind, RegExp>> = {
  transform: /^function\s+(transform)\s*\(/m,
  filter: /^function\s+(filter)\s*\(/m,
  routing: /^function\s+(route|routing)\s*\(/m,
}
/** Tells code of a kind from a transform: by the type that it imports, or by its function's name. */
export const TELLING_WORDS = { filter: /\bFilter\b|function\s+filter\b/, routing: /\bRoute\b|function\s+(?:route|routing)\b/ } as const
