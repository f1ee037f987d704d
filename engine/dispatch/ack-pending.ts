/** How many messages of a sink are delivered and unacknowledged, over all its partitions; the sink's `max_ack_pending` bounds it. */
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
