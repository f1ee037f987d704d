/** Which member of a group serves which partition: evenly, and each what it had, so that a newcomer moves few. Pure. */

export type GroupMember = Readonly<{ id: string; /** partitions it served until now */ had: readonly number[] }>

/** @returns by member id; every partition of 0 … partitions − 1 once */
export function assignPartitions(members: readonly GroupMember[], partitions: number): Map<string, number[]> {
  const inOrder = [...members].sort((a, b) => (a.id < b.id ? -1 : 1))
  const shares = new Map<string, number[]>(inOrder.map(({ id }) => [id, []]))
  if (inOrder.length === 0) return shares
  const least = Math.floor(partitions / inOrder.length)
  let withOneMore = partitions % inOrder.length
  const taken = new Set<number>()
  // those who had most keep most: they get the shares that are larger by one
  for (const { id, had } of [...inOrder].sort((a, b) => b.had.length - a.had.length)) {
    const share = shares.get(id) as number[]
    for (const partition of had) {
      if (partition >= partitions || taken.has(partition)) continue // two claim it after a member was thought dead
      if (share.length === least && withOneMore > 0) withOneMore--
      else if (share.length >= least) break
      share.push(partition)
      taken.add(partition)
    }
  }
  for (let partition = 0; partition < partitions; partition++) {
    if (taken.has(partition)) continue
    const [, share] = [...shares].reduce((a, b) => (b[1].length < a[1].length ? b : a))
    share.push(partition)
  }
  for (const share of shares.values()) share.sort((a, b) => a - b)
  return shares
}
