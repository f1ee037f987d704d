/** Bounds what a client may take; how long it may wait for an answer is its own choice (wait_for). */
export type Limits = Readonly<{
  /** for the headers of a request */
  headersMs: number
  /** for a whole request */
  requestMs: number
  /** until the next request comes on a connection */
  keepAliveMs: number
  /** of a connection without a byte either way: above the longest wait, below for ever */
  silenceMs: number
  /** of all headers of a request, and the path */
  headerBytes: number
  /** how often the times of requests are looked at */
  checkEveryMs: number
  /** open at once; further ones are closed as they come */
  connections: number
  /** connections of one client on which no request with a token has come yet; further ones are closed as they come */
  strangers: number
  /** requests without a token of one client that may be under way at once; the connection of a further one is closed */
  strangeRequests: number
  /** tokens that are not known which one client may send in a minute; the answers to further ones are slowed */
  wrongTokens: number
}>
/** What they are unless the settings say otherwise. */
export const LIMITS: Limits = {
  headersMs: 20_000,
  requestMs: 60_000,
  keepAliveMs: 75_000,
  silenceMs: 330_000,
  headerBytes: 16_384,
  checkEveryMs: 5_000,
  connections: 20_000,
  strangers: 1_000,
  strangeRequests: 100,
  wrongTokens: 10,
}
