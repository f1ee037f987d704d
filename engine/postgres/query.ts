/** Holds a row as Postgres answers it; `rowsOf` gives its columns types. */
export type Row = Readonly<Record<string, unknown>>

/** Asks a database, on whichever session: a source, or the state database. */
export type Query = (sql: string, params?: readonly unknown[]) => Promise<Readonly<{ rows: readonly Row[] }>>
