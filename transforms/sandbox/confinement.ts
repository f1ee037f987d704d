/**
 * What a sandbox may not do even when code gets out of its isolate: taken from the process by programs of Linux (util-linux) that start it
 * in their own place. What a system lacks or forbids is left out, and said once. From the most to the least:
 *
 *   a user of its own   no file or process of the service's user is in its reach; root only
 *   no network          a namespace with nothing in it; for users who aren't root where the system lets them have namespaces
 *   no capabilities     and none to be had from any program that it could start
 */
import { platform } from 'node:process'

/** A user that nobody else has: what runs as `nobody` could be ended from here. */
const OWN_USER = '65533'
const NO_PRIVILEGES = ['setpriv', '--no-new-privs']
const NO_CAPABILITIES = [...NO_PRIVILEGES, '--inh-caps=-all', '--bounding-set=-all']
const OWN = [...NO_CAPABILITIES, `--reuid=${OWN_USER}`, `--regid=${OWN_USER}`, '--clear-groups']
/** It opens no files but those of its own program, one after the other. */
const FEW_FILES = ['prlimit', '--nofile=512', '--core=0']

type Level = Readonly<{
  /** what stands before the command */
  command: readonly string[]
  /** it can read what the service's user has kept for itself, such as compiled sources */
  isSameUser: boolean
  /** for people: what is missing */
  lacks: string
}>

const level = (lacks: string, isSameUser: boolean, ...programs: readonly (readonly string[])[]): Level => ({
  command: programs.flatMap((program) => [...program, '--']),
  isSameUser,
  lacks,
})
const PLAIN: Level = { command: [], isSameUser: true, lacks: 'its own user, no network, no privileges' }
const OF_ROOT: readonly Level[] = [
  level('', false, ['unshare', '--net'], OWN, FEW_FILES),
  level('no network', false, OWN, FEW_FILES),
  level('its own user', true, ['unshare', '--net'], NO_CAPABILITIES, FEW_FILES),
  level('its own user, no network', true, NO_CAPABILITIES, FEW_FILES),
  PLAIN,
]
const OF_USERS: readonly Level[] = [
  level('its own user', true, ['unshare', '--user', '--net'], NO_PRIVILEGES, FEW_FILES),
  level('its own user, no network', true, NO_PRIVILEGES, FEW_FILES),
  PLAIN,
]
const LEVELS = platform !== 'linux' ? [PLAIN] : process.getuid?.() === 0 ? OF_ROOT : OF_USERS

/** What the system keeps from sandboxes: less, once one did not start under it. */
export class Confinement {
  readonly #levels: readonly Level[]
  #at = 0

  /** @param levels from the most to the least */
  constructor(levels = LEVELS) {
    this.#levels = levels
  }

  get level(): Level {
    return this.#levels[this.#at] ?? PLAIN
  }

  /** Goes to the next level when a sandbox did not start under one. @returns false: that was the last */
  weaken(failed: Level): boolean {
    if (failed === this.level && this.#at < this.#levels.length - 1) this.#at++
    return failed !== this.level
  }
}

/** The confinement of the sandboxes of this process: what the system allows is found out once. */
export const confinement = new Confinement()
