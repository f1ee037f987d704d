/** Names of tables as users write them and as they are compared: "schema.table". */

/** Gives the full name of a table: what stands before the first dot is the schema, and a name without one means `public`. */
export const qualified = (table: string): string => (table.includes('.') ? table : `public.${table}`)
