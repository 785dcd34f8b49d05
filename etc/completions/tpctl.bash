# bash completion for tpctl. Commands and options are read from tpctl's own help.

_tpctl_commands() {
    tpctl help 2>/dev/null | awk '/^commands:/ { on = 1; next } /^$/ { on = 0 } on { print $1 }'
}

_tpctl() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command= i
    case $previous in
    --socket | --file | --output | -o | --json-schema | --grammar | --model | -m | --draft)
        COMPREPLY=($(compgen -f -- "$current"))
        return
        ;;
    esac
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        --socket | --deadline) ((i++)) ;;
        -*) ;;
        *)
            command=${COMP_WORDS[i]}
            break
            ;;
        esac
    done
    if [[ -z $command || $command == help ]] && [[ $current != -* ]]; then
        COMPREPLY=($(compgen -W "$(_tpctl_commands)" -- "$current"))
    elif [[ $command == model && $current != -* ]]; then
        if ((COMP_CWORD == i + 1)); then
            COMPREPLY=($(compgen -W "info load unload merge" -- "$current"))
        elif [[ $previous == load ]]; then
            COMPREPLY=($(compgen -f -- "$current"))
        elif [[ $previous == merge ]]; then
            COMPREPLY=($(compgen -W "$(tpctl adapters --plain 2>/dev/null | cut -f2)" -- "$current"))
        fi
    elif [[ $command == adapters && $current != -* ]]; then
        if ((COMP_CWORD == i + 1)); then
            COMPREPLY=($(compgen -W "list load unload activate rollback" -- "$current"))
        elif [[ $previous == unload || $previous == activate ]]; then
            COMPREPLY=($(compgen -W "$(tpctl adapters --plain 2>/dev/null | cut -f2)" -- "$current"))
        fi
    elif [[ $command == tensors && $current != -* ]]; then
        COMPREPLY=($(compgen -W "$(tpctl tensors --plain 2>/dev/null | cut -f1)" -- "$current"))
    elif [[ $command == jobs && $current != -* ]]; then
        if ((COMP_CWORD == i + 1)); then
            COMPREPLY=($(compgen -W "list show log watch plot cancel pause resume rm" -- "$current"))
        elif [[ $previous == show || $previous == log || $previous == watch || $previous == plot ||
            $previous == cancel || $previous == pause || $previous == resume || $previous == rm ]]; then
            COMPREPLY=($(compgen -W "$(tpctl jobs --plain 2>/dev/null | cut -f1,2)" -- "$current"))
        fi
    elif [[ ($command == finetune || $command == plan) && $current != -* ]]; then
        COMPREPLY=($(compgen -f -- "$current"))
    elif [[ $current == -* ]]; then
        case $command in
        model | jobs | adapters) ((COMP_CWORD > i + 1)) && command+=" ${COMP_WORDS[i + 1]}" ;;
        esac
        # shellcheck disable=SC2086
        COMPREPLY=($(compgen -W "$(tpctl help $command 2>/dev/null |
            grep -oE '^ {2,}(-., )?--[a-z-]+' | grep -oE -- '--[a-z-]+')" -- "$current"))
    fi
}
complete -o default -F _tpctl tpctl
