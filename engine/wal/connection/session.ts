/**
 * Settings that Postgres' text output follows. A database or a role may have others by default, and then keys of stream
 * and page differ and digits get lost: every connection to a source pins them, replication and queries alike
 * (correctness 10). Startup options rank above `alter database` and `alter role`.
 */

/** For the `options` of a connection. Offsets are +00, intervals read "1 mon -3 days +04:05:06", floats round-trip. */
export const PINNED_OPTIONS = [
  'DateStyle=ISO',
  'IntervalStyle=postgres',
  'extra_float_digits=1',
  'bytea_output=hex',
  'TimeZone=UTC',
  'lc_monetary=C',
  'client_encoding=UTF8',
]
  .map((setting) => `-c ${setting}`)
  .join(' ')
