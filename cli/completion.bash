# Completes the command's words in bash: subcommands, their options and specs, which are asked of the
# command itself; targets, passes, devices and compilers, which are listed here.
_attune() {
  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
  local -a commands=()
  local word
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    [[ $word == -* ]] && continue
    # A group, `cache` say, has commands of its own.
    [[ ${#commands[@]} -eq 0 || (${#commands[@]} -eq 1 && ${commands[0]} == @(cache|sweep)) ]] || break
    commands+=("$word")
  done
  local words
  case $before in
    --target) words="sm_80 sm_86 sm_89 sm_90a sm_100 sm_120 cpu" ;;
    --pass) words="forward backward both" ;;
    --device) words="cpu cuda:0" ;;
    --compiler) words="auto nvrtc llvm llvm-list" ;;
    --cache | --svg | -o | --output | --tensor | --shape | --data) words="" ;;
    *)
      local help
      help=$("${COMP_WORDS[0]}" "${commands[@]}" --help 2> /dev/null)
      if [[ $current == -* ]]; then
        words=$(grep -oE '^  (-[a-z],)?--[a-z-]+' <<< "$help" | grep -oE -e '--[a-z-]+')
      elif [[ $help == *Subcommands:* ]]; then
        words=$(sed -n '/^Subcommands:/,/^$/s/^  \([a-z]\+\) .*/\1/p' <<< "$help")
      elif [[ $help == *"  SPEC "* ]]; then
        words=$("${COMP_WORDS[0]}" check --list 2> /dev/null | awk '{print $1}')
      fi
      ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}
complete -o default -F _attune attune
