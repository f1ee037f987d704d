import type { Logger } from '../../engine/logger.ts'
import type { SinkMeter } from '../../engine/meters.ts'

/** Says why messages were given up. */
export type Discarded = 'attempts' | 'size' | 'hand'

/** Hears from a sink what is counted. Every call is for a batch, never for a message. */
export interface SinkObserver {
  /** handed to a client, or to the sender. @param sinceCommitUs from the commit in Postgres of the batch's first message to now */
  handedOut(batch: Readonly<{ messages: number; bytes: number; sinceCommitUs: number }>): void
  /** @param heldMs from the delivery of the first message of the call to its ack */
  acked(batch: Readonly<{ messages: number; heldMs: number }>): void
  /** the visibility time of these passed without an ack. @param heldMs that time */
  lapsed(batch: Readonly<{ messages: number; heldMs: number }>): void
  /**
   * given back by their client, or by an answer that could not be written; or refused by the destination. @param heldMs since they
   * were handed out
   */
  returned(batch: Readonly<{ messages: number; heldMs: number }>): void
  parked(messages: number): void
  /** given up, on record: too many attempts, too large to be kept, or by hand */
  discarded(messages: number, why: Discarded): void
  /** of a sink that sends: held as under way although nothing has them; they are sent again */
  forgotten(messages: number): void
}

/** Makes the observer of a sink, which counts into the metrics, and tells the log what an operator should see. */
export function observeSink({ name: sink }: Readonly<{ name: string }>, meter: SinkMeter, logger: Logger): SinkObserver {
  return {
    handedOut: ({ messages, bytes, sinceCommitUs }) => {
      meter.attempted(messages, bytes)
      meter.waited(messages, sinceCommitUs)
    },
    acked: ({ messages, heldMs }) => meter.delivered(messages, heldMs * 1000),
    lapsed: ({ messages, heldMs }) => {
      meter.failed(messages, heldMs * 1000)
      logger.debug({ sink, messages }, 'visibility timeouts passed without an ack')
    },
    returned: ({ messages, heldMs }) => meter.failed(messages, heldMs * 1000),
    parked: (messages) => logger.info({ sink, messages }, 'blocked messages were parked so that others can go on'),
    discarded: (messages, why) => {
      meter.gaveUp(messages)
      logger.warn({ sink, messages }, `messages were discarded: ${WHY[why]}`)
    },
    forgotten: (messages) => {
      meter.forgot(messages)
      logger.error({ sink, messages, code: 'MESSAGES_FORGOTTEN' }, 'messages were held although no request had them; they are sent again')
    },
  }
}

/**
 * Makes the observer of partitions whose messages are sent: there the sender itself reports how deliveries end, for it knows more
 * of them.
 */
export const withoutEnds = (observer: SinkObserver): SinkObserver => ({
  handedOut: (batch) => observer.handedOut(batch),
  acked: () => undefined,
  returned: () => undefined,
  lapsed: () => undefined,
  parked: (messages) => observer.parked(messages),
  discarded: (messages, why) => observer.discarded(messages, why),
  forgotten: (messages) => observer.forgotten(messages),
})

const WHY: Readonly<Record<Discarded, string>> = {
  attempts: 'max_retry_count was reached',
  size: 'larger than MAX_MESSAGE_MB',
  hand: 'somebody asked for it',
}
