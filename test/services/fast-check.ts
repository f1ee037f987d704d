/** fast-check with the same cases in every run of `npm test`, so that none fails by chance; with --long it makes up new ones. */
import * as fc from 'fast-check'
import { LONG } from '../faults/size.ts'

if (!LONG) fc.configureGlobal({ seed: 20_251 })

export default fc
