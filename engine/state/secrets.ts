/** Secrets at rest: AES-256-GCM under one key, and the form in which they may be shown. */
import { createCipheriv, createDecipheriv, randomBytes } from 'node:crypto'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { EngineError } from '../errors.ts'

const NONCE_BYTES = 12
const TAG_BYTES = 16
const VERSION = 1

/** Encrypts secrets, and opens them again. */
export class Vault {
  readonly #key: Buffer

  /** @param key 32 bytes */
  constructor(key: Buffer) {
    this.#key = key
  }

  /** @returns version u8 · nonce · tag · encrypted text */
  encrypt(text: string): Buffer {
    const nonce = randomBytes(NONCE_BYTES)
    const cipher = createCipheriv('aes-256-gcm', this.#key, nonce)
    const body = Buffer.concat([cipher.update(text, 'utf8'), cipher.final()])
    return Buffer.concat([Buffer.of(VERSION), nonce, cipher.getAuthTag(), body])
  }

  /** @throws EngineError SECRET_UNREADABLE: encrypted under another key, or damaged */
  decrypt(secret: Buffer): string {
    try {
      const nonce = secret.subarray(1, 1 + NONCE_BYTES)
      const decipher = createDecipheriv('aes-256-gcm', this.#key, nonce, { authTagLength: TAG_BYTES })
      decipher.setAuthTag(secret.subarray(1 + NONCE_BYTES, 1 + NONCE_BYTES + TAG_BYTES))
      return decipher.update(secret.subarray(1 + NONCE_BYTES + TAG_BYTES), undefined, 'utf8') + decipher.final('utf8')
    } catch (cause) {
      throw new EngineError('SECRET_UNREADABLE', "a stored secret can't be decrypted with this VAULT_KEY", {}, { cause })
    }
  }
}

/** Reads the key of a data folder, and makes it at the first start. */
export function folderKey(folder: string): Buffer {
  const file = join(folder, 'vault.key')
  if (!existsSync(file)) writeFileSync(file, randomBytes(32).toString('base64'), { mode: 0o600, flag: 'wx' })
  return Buffer.from(readFileSync(file, 'utf8'), 'base64')
}
