/** A source begins to work in this process: what it is given, and what is said of it in the log. */
import { BACKFILL_LIMITS, type BackfillLimits } from '../../engine/backfill/backfill-limits.ts'
import type { Log } from '../../engine/log/log.ts'
import type { Logger } from '../../engine/logger.ts'
import type { SourceMeter } from '../../engine/meters.ts'
import type { NodeRegistry } from '../../engine/state/node-registry.ts'
import type { Database } from '../../engine/state/resources.ts'
import type { Store } from '../../engine/state/store.ts'
import type { SourceSettings } from '../../engine/wal/source-settings.ts'
import { SOURCE_DEFAULTS } from '../../engine/wal/source-settings.ts'
import { SourceActor } from './source-actor.ts'
import type { MessageTraces } from '../tracing/message-traces.ts'
import { SourceBackfills, type BackfillHome } from './source-backfills.ts'

/** Holds what a source is given in this process. */
export type SourceHome = Readonly<{
  log: Log
  logger: Logger
  /** the state database */
  store: Pick<Store, 'query'>
  nodes: Pick<NodeRegistry, 'id' | 'live' | 'nameOf'>
  /** settings that are not as usual */
  source?: Partial<SourceSettings>
  /** the backfills of its sinks */
  backfills: Pick<BackfillHome, 'running' | 'takes' | 'ended' | 'sink'>
  /** settings of them that are not as usual */
  backfillLimits?: Partial<BackfillLimits>
  /** absent: nothing is traced */
  traces?: MessageTraces | undefined
  /** it streams */
  streaming: () => void
  /** generations of its sinks may be read that could not be before */
  routed: () => void
}>

/** Starts the source of a database, and says in the log how it is. */
export function beginSource(
  database: Database,
  meter: SourceMeter,
  home: SourceHome,
): SourceActor & Readonly<{ backfills: SourceBackfills }> {
  const { log, store, nodes, source: settings, traces, streaming, routed } = home
  const nameOf = (id: string) => nodes.live.get(id)?.name ?? id
  const logger = home.logger.child({ database: database.name, slot: database.slot.name })
  const backfills = new SourceBackfills(database, {
    ...home.backfills,
    state: store.query,
    logger,
    maxMessageBytes: settings?.maxMessageBytes ?? SOURCE_DEFAULTS.maxMessageBytes,
    limits: { ...BACKFILL_LIMITS, ...home.backfillLimits },
    log,
    meter,
  })
  /** what was said of tables */
  const limits = new Map<string, string>()
  const source = new SourceActor({
    backfills,
    database,
    log,
    state: store.query,
    holder: nodes.id,
    settings,
    nameOf,
    ingested: () => meter.messages,
    onStandby: (owner) => {
      const say = (name?: string) => logger.info({ owner }, `standby: the source is held by node ${name ?? owner}`)
      nodes.nameOf(owner).then(say, () => say()) // asked: the list of live nodes may not be read yet
    },
    observer: {
      ingested: (changes, bytes) => meter.ingested(changes, bytes),
      appended: (append, latencyUs) => {
        meter.appended(append.records, latencyUs)
        traces?.appended(append)
      },
      notice: (notice) => logger.warn(notice),
      routed: () => {
        routed()
        backfills.look()
      },
      truncated: (table) => logger.info({ table }, 'a table was emptied by TRUNCATE: its rows bring no deletes'),
      relationWarnings: (table, warnings) => {
        const text = JSON.stringify(warnings)
        if (limits.get(table) === text) return // Postgres announces a table again after each ANALYZE
        limits.set(table, text)
        logger.warn({ table, warnings }, "a table has limits: some changes of it can't be followed")
      },
    },
  })
  source.watch((state) => {
    const { lastError } = source
    if (state === 'waiting' || state === 'failed') {
      logger[lastError?.course === 'soon' ? 'warn' : 'error'](
        { state, code: lastError?.code, remedy: lastError?.remedy },
        `the source does not stream: ${lastError?.message ?? ''}`,
      )
    } else logger.info({ state }, 'source')
    if (state === 'streaming') streaming()
  })
  return Object.assign(source, { backfills })
}
