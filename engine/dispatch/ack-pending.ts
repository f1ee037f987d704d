/** Counts the messages of a sink that are with clients, over all its partitions; the sink's `max_ack_pending` bounds them. */
export class AckPending {
  count = 0
  max: number

  constructor(max: number) {
    this.max = max
  }

  get full(): boolean {
    return this.count >= this.max
  }
}

/**
 * Gives the share of one partition in the bound of its sink. The shares of all partitions are the bound of the sink exactly,
 * so that processes needn't ask each other; whoever serves all of them has all of it. None is without a share: it would
 * never deliver.
 */
export function shareOf(maxAckPending: number, partitions: number, partition: number): number {
  const upTo = (count: number) => Math.floor((maxAckPending * count) / partitions)
  return Math.max(1, upTo(partition + 1) - upTo(partition))
}
