/** Options of commands that speak to a running service: for who parses a command, and for who only checks it. */
const text = { type: 'string' } as const

export const ACCESS_OPTIONS = { token: text, url: text } as const
export const REPLAY_OPTIONS = { ...ACCESS_OPTIONS, to: text, lsn: text, offset: text, partition: text, generation: text } as const
