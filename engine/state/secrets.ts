/** Secrets at rest: AES-256-GCM under one key, and the form in which they may be shown. */
import { createCipheriv, createDecipheriv, hash, randomBytes } from 'node:crypto'
import { closeSync, existsSync, fsyncSync, openSync, readFileSync, renameSync, writeFileSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { codeOf, EngineError } from '../errors.ts'

const NONCE_BYTES = 12
const TAG_BYTES = 16
const VERSION = 1

/** Names a key in the state database: nobody learns the key from it. */
export const printOfKey = (key: Buffer): string => hash('sha256', Buffer.concat([Buffer.from('tailrace vault key '), key]), 'base64url')

/** Encrypts secrets, and opens them again. While the key is changed it knows more than one. */
export class Vault {
  readonly #own: Buffer
  #keys: readonly Buffer[]
  readonly #others: () => readonly Buffer[]

  /** @param key 32 bytes @param others are asked for when a secret does not open: keys that are accepted, too */
  constructor(key: Buffer, others: () => readonly Buffer[] = () => []) {
    this.#own = key
    this.#keys = [key]
    this.#others = others
  }

  /** The print of its own key. */
  get print(): string {
    return printOfKey(this.#own)
  }

  /**
   * @param print of the key that is in use since the last rotation; absent, or of a key that is not known here: its own
   * @returns version u8 · nonce · tag · encrypted text
   */
  encrypt(text: string, print?: string): Buffer {
    const nonce = randomBytes(NONCE_BYTES)
    const cipher = createCipheriv('aes-256-gcm', this.#keyOf(print), nonce)
    const body = Buffer.concat([cipher.update(text, 'utf8'), cipher.final()])
    return Buffer.concat([Buffer.of(VERSION), nonce, cipher.getAuthTag(), body])
  }

  /** @throws EngineError SECRET_UNREADABLE: encrypted under another key, or damaged */
  decrypt(secret: Buffer): string {
    const found = this.#opened(secret) ?? (this.#learn() ? this.#opened(secret) : undefined)
    if (found === undefined) throw new EngineError('SECRET_UNREADABLE', "a stored secret can't be decrypted with this VAULT_KEY")
    return found
  }

  #opened(secret: Buffer): string | undefined {
    for (const key of this.#keys) {
      try {
        return decrypted(secret, key)
      } catch {} // another key, or damaged
    }
    return undefined
  }

  #keyOf(print: string | undefined): Buffer {
    const known = () => this.#keys.find((key) => printOfKey(key) === print)
    if (print === undefined) return this.#own
    return known() ?? (this.#learn() ? known() : undefined) ?? this.#own
  }

  /** @returns whether there are keys that it did not know */
  #learn(): boolean {
    const more = this.#others().filter((one) => !this.#keys.some((key) => key.equals(one)))
    this.#keys = [...this.#keys, ...more]
    return more.length > 0
  }
}

function decrypted(secret: Buffer, key: Buffer): string {
  const nonce = secret.subarray(1, 1 + NONCE_BYTES)
  const decipher = createDecipheriv('aes-256-gcm', key, nonce, { authTagLength: TAG_BYTES })
  decipher.setAuthTag(secret.subarray(1 + NONCE_BYTES, 1 + NONCE_BYTES + TAG_BYTES))
  return decipher.update(secret.subarray(1 + NONCE_BYTES + TAG_BYTES), undefined, 'utf8') + decipher.final('utf8')
}

const KEY_FILE = 'vault.key'
const NEXT_FILE = 'vault.key.next'

/** Reads the keys of a data folder that are accepted: the one in use, and one that a rotation is about to put in its place. */
export const folderKeys = (folder: string): readonly Buffer[] =>
  [KEY_FILE, NEXT_FILE].flatMap((name) => {
    const text = readIfThere(join(folder, name))
    return text === undefined ? [] : [Buffer.from(text, 'base64')]
  })

/** Makes the key that a rotation of a data folder goes to; one that was interrupted goes on with its own. */
export function nextFolderKey(folder: string): Buffer {
  const file = join(folder, NEXT_FILE)
  const known = readIfThere(file)
  if (known !== undefined) return Buffer.from(known, 'base64')
  const key = randomBytes(32)
  const draft = `${file}.${process.pid}`
  const handle = openSync(draft, 'wx', 0o600)
  writeSync(handle, key.toString('base64'))
  fsyncSync(handle)
  closeSync(handle)
  renameSync(draft, file)
  syncFolder(folder)
  return key
}

/** Puts the next key in the place of the one in use, once the secrets are encrypted by it. */
export function keepNextFolderKey(folder: string): void {
  renameSync(join(folder, NEXT_FILE), join(folder, KEY_FILE))
  syncFolder(folder)
}

function syncFolder(folder: string): void {
  const handle = openSync(folder, 'r')
  fsyncSync(handle)
  closeSync(handle)
}

function readIfThere(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8')
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return undefined
    throw error
  }
}

/** Reads the key of a data folder, and makes it at the first start. */
export function folderKey(folder: string): Buffer {
  const file = join(folder, KEY_FILE)
  if (!existsSync(file)) writeFileSync(file, randomBytes(32).toString('base64'), { mode: 0o600, flag: 'wx' })
  return Buffer.from(readFileSync(file, 'utf8'), 'base64')
}
