/**
 * Texts that make a regular expression slow if any do: what leads to one of its repetitions, then what that repeats or what
 * begins the whole again, many times, then what makes it fail. Read from the expression itself.
 */
export type Attack = Readonly<{ lead: string; pump: string; end: string }>

/** @property samples characters that it matches, for a set of them; else its parts */
type Node =
  | Readonly<{ kind: 'set'; samples: readonly string[] }>
  | Readonly<{ kind: 'sequence' | 'choice'; parts: readonly Node[] }>
  | Readonly<{ kind: 'repeat'; part: Node; max: number }>

const ENDS = ['', '\u0001', '\n!']
const COMMON = ['a', '0', ' ', '\n', '-', '"', '\\']
const NOTHING: Node = { kind: 'sequence', parts: [] }
/** what is repeated up to there is no matter */
const FEW = 64
const MAX_SAMPLES = 12

export function attacksOn(source: string, flags: string): Attack[] {
  const attacks = new Map<string, Attack>()
  const tree = parsed(source, flags)
  const add = (lead: string, pump: string) => {
    if (pump !== '') for (const end of ENDS) attacks.set(JSON.stringify([lead, pump, end]), { lead, pump, end })
  }
  walk(tree, '', (lead, part) => {
    for (const pump of [sampleOf(part), ...samplesIn(part)]) {
      add(lead, pump)
      add('', pump)
    }
    add('', lead) // begun again and again
    add('', lead + sampleOf(part))
  })
  return [...attacks.values()]
}

/** Every repetition without a small bound, with a text that leads to it. */
function walk(node: Node, lead: string, tell: (lead: string, part: Node) => void): string {
  if (node.kind === 'set') return lead + sampleOf(node)
  if (node.kind === 'repeat') {
    if (node.max > FEW) tell(lead, node.part)
    return walk(node.part, lead, tell)
  }
  if (node.kind === 'choice') return node.parts.map((part) => walk(part, lead, tell))[0] ?? lead
  return node.parts.reduce((before, part) => walk(part, before, tell), lead)
}

function sampleOf(node: Node): string {
  if (node.kind === 'set') return node.samples[0] ?? ''
  if (node.kind === 'repeat') return sampleOf(node.part)
  if (node.kind === 'choice') return node.parts[0] ? sampleOf(node.parts[0]) : ''
  return node.parts.map(sampleOf).join('')
}

function samplesIn(node: Node): readonly string[] {
  if (node.kind === 'set') return node.samples
  return node.kind === 'repeat' ? samplesIn(node.part) : [...new Set(node.parts.flatMap(samplesIn))].slice(0, MAX_SAMPLES)
}

function parsed(source: string, flags: string): Node {
  const modes = flags.replaceAll(/[^iuvs]/g, '')
  const candidates = [...new Set([...COMMON, ...source.replaceAll(/\\[a-zA-Z]/g, ''), ...'_.:/=@'])]
  let at = 0
  const setOf = (text: string): Node => {
    const matcher = new RegExp(`^(?:${text})$`, modes)
    return { kind: 'set', samples: candidates.filter((char) => matcher.test(char)).slice(0, MAX_SAMPLES) }
  }
  const choice = (): Node => {
    const parts = [sequence()]
    while (source[at] === '|') {
      at++
      parts.push(sequence())
    }
    return parts.length === 1 ? (parts[0] as Node) : { kind: 'choice', parts }
  }
  const sequence = (): Node => {
    const parts: Node[] = []
    while (at < source.length && source[at] !== '|' && source[at] !== ')') {
      const part = atom()
      const [quantifier] = /^(?:[*+?]|\{\d+(?:,\d*)?\})\??/.exec(source.slice(at)) ?? []
      if (quantifier === undefined) parts.push(part)
      else {
        at += quantifier.length
        const [, , max] = /^\{(\d+)(?:,(\d*))?/.exec(quantifier) ?? []
        const most = quantifier.startsWith('?') ? 1 : !quantifier.startsWith('{') || max === '' ? Infinity : Number(max ?? 1)
        parts.push({ kind: 'repeat', part, max: most })
      }
    }
    return { kind: 'sequence', parts }
  }
  const atom = (): Node => {
    const rest = source.slice(at)
    const [group] = /^\((?:\?(?:[:=!]|<[=!]|<\w+>))?/.exec(rest) ?? []
    if (group !== undefined) {
      at += group.length
      const inner = choice()
      at++
      return /[=!]$/.test(group) ? { kind: 'choice', parts: [NOTHING, inner] } : inner
    }
    const [set] = /^\[(?:[^\]\\]|\\[^])*\]/.exec(rest) ?? []
    const [escape] = /^\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|u\{[0-9a-f]+\}|p\{[^}]+\}|[^])/i.exec(rest) ?? []
    const text = set ?? escape ?? (rest[0] as string)
    at += text.length
    if (/^(?:\^|\$|\\b|\\B|\\[1-9])$/.test(text)) return NOTHING
    return /^[^\\[.]$/.test(text) ? { kind: 'set', samples: [text] } : setOf(text)
  }
  return choice()
}
