/** How much backfills may ask of a source, and how much of them may wait for a sink: settings of the process. */

/** Bounds what backfills do. */
export type BackfillLimits = Readonly<{
  /** of one database, read side by side; of small tables more */
  atOnce: number
  /** of one database, all of its backfills together; Infinity: as fast as it goes */
  rowsPerSecond: number
  /** rows that wait before a sink that delivers nothing */
  maxPending: number
  /** nothing is read while a standby of the source is further behind; Infinity: it doesn't matter */
  maxStandbyLagBytes: number
}>

/** The limits that nobody has set otherwise. */
export const BACKFILL_LIMITS: BackfillLimits = {
  atOnce: 2,
  rowsPerSecond: Infinity,
  maxPending: 1_000_000,
  maxStandbyLagBytes: 1024 * 1024 * 1024,
}
