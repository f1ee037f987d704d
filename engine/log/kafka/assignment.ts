/**
 * Decides which member of a group serves which partition: evenly, and each what it had, so that a newcomer moves few. The groups of one
 * topic have the same processes for members, and each partition is to be served by the same process in all of them, so that it
 * is fetched once: they follow the one of them whose name comes first. Pure.
 */
import { createHash } from 'node:crypto'

/** A member of a group, by what it says of itself when it joins. */
export type GroupMember = Readonly<{
  id: string
  /** partitions it served until now */
  had: readonly number[]
  /** the process, whatever the group; absent: of a version that doesn't say */
  node?: string | undefined
  /** what the process serves in the group of the topic whose name comes first of those it is in */
  first?: Readonly<{ group: string; partitions: readonly number[] }> | undefined
}>

/**
 * Shares the partitions of a topic as the first group of the topic has them. @returns by member id; every partition of 0 …
 * partitions − 1 once
 */
export function assignLikeFirst(
  { group, topic }: Readonly<{ group: string; topic: string }>,
  members: readonly GroupMember[],
  partitions: number,
): Map<string, number[]> {
  const [first = group] = members.flatMap((member) => member.first?.group ?? []).sort()
  const inOrder = members
    .map(({ id, node, had, first: its }) => ({
      id,
      had: first < group && its?.group === first ? its.partitions : had,
      // of the topic too: what is left over of each would go to the same process otherwise
      order: createHash('sha1')
        .update(`${topic}/${node ?? id}`)
        .digest('hex'),
    }))
    .sort((a, b) => (a.order < b.order ? -1 : 1))
  return assignPartitions(inOrder, partitions)
}

/**
 * Shares partitions evenly, so that each member keeps what it had as far as that goes.
 * @param inOrder what can't be shared evenly goes to those who come first @returns by member id; every partition of 0 … partitions − 1 once
 */
export function assignPartitions(inOrder: readonly GroupMember[], partitions: number): Map<string, number[]> {
  const members = inOrder.map(({ id, had }): Readonly<{ id: string; had: readonly number[]; share: number[] }> => ({ id, had, share: [] }))
  if (members.length === 0) return new Map()
  const least = Math.floor(partitions / members.length)
  let withOneMore = partitions % members.length
  const taken = new Set<number>()
  // those who had most keep most: they get the shares that are larger by one
  for (const { had, share } of members.toSorted((a, b) => b.had.length - a.had.length)) {
    for (const partition of had) {
      if (partition >= partitions || taken.has(partition)) continue // two claim it after a member was thought dead
      if (share.length === least && withOneMore > 0) withOneMore--
      else if (share.length >= least) break
      share.push(partition)
      taken.add(partition)
    }
  }
  for (let partition = 0; partition < partitions; partition++)
    if (!taken.has(partition)) members.reduce((a, b) => (b.share.length < a.share.length ? b : a)).share.push(partition)
  return new Map(members.map(({ id, share }) => [id, share.sort((a, b) => a - b)]))
}
