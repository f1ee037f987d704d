/** Does work for each item, for so many of them side by side. @returns what it returns, in the order of the items */
export async function atOnce<T, R>(count: number, items: readonly T[], work: (item: T) => Promise<R>): Promise<R[]> {
  const done: R[] = []
  for (let from = 0; from < items.length; from += count) done.push(...(await Promise.all(items.slice(from, from + count).map(work))))
  return done
}
