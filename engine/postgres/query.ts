/** A row as Postgres answers it: whoever asks knows what its columns hold. */
export type Row = Readonly<Record<string, unknown>>

/** Asks a database, on whichever session: a source, or the state database. */
export type Query = (sql: string, params?: readonly unknown[]) => Promise<Readonly<{ rows: readonly Row[] }>>
