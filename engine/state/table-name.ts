/** Names of tables as users write them and as they are compared: "schema.table". */

/** A name without a schema means `public`. */
export const qualified = (table: string): string => (table.includes('.') ? table : `public.${table}`)
