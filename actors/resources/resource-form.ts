/** What a type of resource is in requests, in the configuration file and in answers. Nothing here does I/O. */
import type { TObject } from 'typebox'
import type { ResourceType, StoredOf } from '../../engine/state/resource-store.ts'

/** Fields by name, as JSON or YAML brings them. */
export type Form = Readonly<Record<string, unknown>>

/**
 * Holds what an entry of a file may refer to. @property known what is stored under its name: secrets may be given as they are
 * shown, and stay @property textOf gives the text of a file beside the configuration; absent: none can be named
 */
export type EntryContext<S> = Readonly<{ known: S | undefined; textOf: ((path: string) => string) | undefined }>

/** Describes how a resource stands in a configuration file. */
export type FileSection<S, I> = Readonly<{
  section: string
  /** what an entry may have, before it is looked at */
  schema: TObject
  /** fields that are known, and not supported yet */
  notYet?: readonly string[]
  /** Brings former spellings of an entry to its form. */
  flat?: (entry: unknown) => unknown
  /** Gives what an entry says. @throws EngineError VALIDATION_FAILED: a reason for each field that is wrong */
  read: (entry: Form, context: EntryContext<S>) => I
}>

/** Describes a section of a file whose resources are exported as they are read. */
export type ResourceForm<T extends ResourceType, I> = FileSection<StoredOf<T>, I> &
  Readonly<{
    /** Gives the entry of a resource: nothing that has its default. @param secret shows one */
    entry: (stored: StoredOf<T>, secret: (text: string) => string) => Form
  }>
