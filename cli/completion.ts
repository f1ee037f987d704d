/** `tailrace completion`: prints the script by which a shell completes commands, their verbs and their options. */
import type { Command } from './command.ts'

/** The shells that scripts are there for. */
export const SHELLS = { bash: 'for ~/.bashrc', zsh: 'for ~/.zshrc', fish: 'for ~/.config/fish/completions' } as const
type Commands = Readonly<Record<string, Command>>
/** What can be typed behind a command: its verbs first, then options. */
type Words = Readonly<{ name: string; summary: string; verbs: readonly string[]; options: readonly string[] }>

/** Makes the script of a shell. */
export function completion(shell: keyof typeof SHELLS, commands: Commands): string {
  const all = Object.entries(commands).map(([name, { summary, verbs, options }]): Words => {
    const own = name === 'help' ? Object.keys(commands) : verbs
    return { name, summary, verbs: own, options: Object.keys(options).map((option) => `--${option}`) }
  })
  return { bash, zsh, fish }[shell](all)
}

const HEAD = '# Completion of tailrace. Made by "tailrace completion".'
/** In the place of a file name nothing is offered by us: the shell completes files by itself. */
const bash = (all: readonly Words[]): string => `${HEAD}
_tailrace() {
  local cur=\${COMP_WORDS[COMP_CWORD]} verbs= options=
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '${all.map(({ name }) => name).join(' ')}' -- "$cur"))
    return
  fi
  case \${COMP_WORDS[1]} in
${all.map(({ name, verbs, options }) => `    ${name}) verbs='${verbs.join(' ')}' options='${options.join(' ')}' ;;`).join('\n')}
  esac
  if [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$cur"))
  elif [ "$COMP_CWORD" -eq 2 ]; then
    COMPREPLY=($(compgen -W "$verbs" -- "$cur"))
  fi
}
complete -o default -F _tailrace tailrace
`

const zsh = (all: readonly Words[]): string => `#compdef tailrace
${HEAD}
_tailrace() {
  local -a commands verbs options
  commands=(
${all.map(({ name, summary }) => `    ${quoted(`${name}:${summary}`)}`).join('\n')}
  )
  if (( CURRENT == 2 )); then
    _describe 'command' commands
    return
  fi
  case $words[2] in
${all.map(({ name, verbs, options }) => `    ${name}) verbs=(${verbs.join(' ')}) options=(${options.join(' ')}) ;;`).join('\n')}
  esac
  if [[ $words[CURRENT] == -* ]]; then
    compadd -- $options
  elif (( CURRENT == 3 && $#verbs > 0 )); then
    compadd -- $verbs
  else
    _files
  fi
}
compdef _tailrace tailrace
`

const fish = (all: readonly Words[]): string => `${HEAD}
${all
  .flatMap(({ name, summary, verbs, options }) => [
    `complete -c tailrace -n __fish_use_subcommand -a ${name} -d ${quoted(summary)} -f`,
    ...(verbs.length === 0
      ? []
      : [
          `complete -c tailrace -n '__fish_seen_subcommand_from ${name}; and test (count (commandline -opc)) -eq 2' -a '${verbs.join(' ')}' -f`,
        ]),
    ...options.map((option) => `complete -c tailrace -n '__fish_seen_subcommand_from ${name}' -l ${option.slice(2)}`),
  ])
  .join('\n')}
`

const quoted = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`
