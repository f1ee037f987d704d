/** Holds a data folder until it is killed. */
import { openDataFolder } from '../../engine/data-folder.ts'

const folder = openDataFolder(process.argv[2] as string)
process.send?.(folder.path)
process.on('disconnect', () => process.exit())
