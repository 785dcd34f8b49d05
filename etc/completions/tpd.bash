# bash completion for tpd. Flags and their values are read from tpd's own help.

_tpd_flags() {
    local command=$1
    if [[ $command == plan ]]; then
        tpd plan --help 2>/dev/null | grep -oE '^ +--[a-z-]+' | grep -oE -- '--[a-z-]+'
    elif [[ -n $command ]]; then
        tpd --help 2>/dev/null | grep -E "^ +tpd $command " | grep -oE -- '--[a-z-]+'
    else
        tpd --help 2>/dev/null | grep -oE '^ +--[a-z-]+|--help|--version' | grep -oE -- '--[a-z-]+'
    fi
}

# "none|q8|q4" of "    --quant none|q8|q4 [none]", a word each.
_tpd_values() {
    tpd --help 2>/dev/null | sed -nE "s/^ +$1 ([a-z0-9|]+) \[.*/\1/p" | grep -F '|' | tr '|' '\n'
}

_tpd() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command= values
    case ${COMP_WORDS[1]} in
    inspect | plan | merge | quantize | tokenize | detokenize | template) ((COMP_CWORD > 1)) && command=${COMP_WORDS[1]} ;;
    esac
    [[ $previous == --* ]] && values=$(_tpd_values "$previous")
    if [[ -n $values ]]; then
        COMPREPLY=($(compgen -W "$values" -- "$current"))
    elif [[ $current == -* ]]; then
        COMPREPLY=($(compgen -W "$(_tpd_flags "$command")" -- "$current"))
    elif ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "inspect plan merge quantize tokenize detokenize template" -- "$current"))
    elif [[ $command == quantize ]] && ((COMP_CWORD == 4)); then
        COMPREPLY=($(compgen -W "q8 q4" -- "$current"))
    else
        COMPREPLY=($(compgen -f -- "$current"))
    fi
}
complete -o default -F _tpd tpd
