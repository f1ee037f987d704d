/** Names of tables as users write them and as they are compared: "schema.table". */

/** Up to its first dot a name is that of the schema; one without a schema means `public`. */
export const qualified = (table: string): string => (table.includes('.') ? table : `public.${table}`)
