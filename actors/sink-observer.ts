/** What a sink tells those who count: metrics. Every call is for a batch, never for a message. */
export interface SinkObserver {
  /** @param sinceCommitUs from the commit in Postgres of the batch's first message to now */
  delivered(batch: Readonly<{ messages: number; bytes: number; sinceCommitUs: number }>): void
  /** @param heldMs from the delivery of the first message of the call to its ack */
  acked(batch: Readonly<{ messages: number; heldMs: number }>): void
  lapsed(messages: number): void
  parked(messages: number): void
  discarded(messages: number): void
}
