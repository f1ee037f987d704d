/** Holds a data folder until it is killed. */
import { openDataFolder } from '../../engine/data-folder.ts'

openDataFolder(process.argv[2] as string)
globalThis.gc?.() // nobody refers to the folder any more, and it is held all the same
process.send?.('held')
process.on('disconnect', () => process.exit())
