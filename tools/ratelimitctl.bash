# Completion of ratelimitctl for bash: commands, their options, and the names of
# limits, which it asks the API for.  "make install" puts it where bash-completion
# looks for it.

# _ratelimitctl_limits ARGUMENT...: names of limits, of the machines on the line

_ratelimitctl_limits()
{
    "$@" --timeout 1 limits --names 2> /dev/null
}


_ratelimitctl()
{
    local line cur prev command= words=0 i word options names
    local ask=("${COMP_WORDS[0]}")
    local commands='advise ban exempt explain help limits machines override
        overrides remove reset servers shard show top unban watch'
    local common='--machine --user --header --timeout --cacert --cert --key
        --insecure --raw --json --help'

    COMPREPLY=()

    # words between blanks: those of bash end at each ":" and "=" of an address

    read -ra line <<< "${COMP_LINE:0:COMP_POINT}"

    if [[ ${COMP_LINE:0:COMP_POINT} == *[[:blank:]] ]]; then
        line+=('')
    fi

    cur=${line[-1]}
    prev=${line[-2]-}

    # the command, how many words follow it, and the options that say whom to ask

    for ((i = 1; i < ${#line[@]} - 1; i++)); do
        word=${line[i]}

        case $word in
            -m | --machine | -u | --user | -H | --header | --cacert | --cert | --key)
                ask+=("$word" "${line[++i]}")
                ;;

            -t | --timeout | -n | --by | --cost | --capacity | --rate | --window \
            | --refill-interval | --method | --interval | --count | --for | --until \
            | --reason)
                ((i++))
                ;;

            --insecure)
                ask+=("$word")
                ;;

            -*)
                ;;

            *)
                if [[ -z $command ]]; then
                    command=$word
                else
                    ((words++))
                fi
                ;;
        esac
    done

    case $prev in
        --by)
            mapfile -t COMPREPLY < <(compgen -W 'rejected seen' -- "$cur")
            return
            ;;

        --method)
            mapfile -t COMPREPLY < <(compgen -W 'GET HEAD POST PUT PATCH DELETE OPTIONS' \
                                             -- "$cur")
            return
            ;;

        --for)
            mapfile -t COMPREPLY < <(compgen -W '10m 1h 1d' -- "$cur")
            return
            ;;

        --cacert | --cert | --key)
            mapfile -t COMPREPLY < <(compgen -f -- "$cur")
            return
            ;;

        -m | --machine)
            names=$(cat ~/.ratelimitctl /etc/ratelimitctl.conf 2> /dev/null \
                    | awk '$1 == "machine" { print $2 }')
            mapfile -t COMPREPLY < <(compgen -W "$names" -- "$cur")
            return
            ;;

        -u | --user | -H | --header | -t | --timeout | -n | --cost | --capacity \
        | --rate | --window | --refill-interval | --interval | --count | --until \
        | --reason)
            return
            ;;
    esac

    if [[ $cur == -* ]]; then
        options=$common

        case $command in
            show | shard) options+=' --cost --capacity --rate --window
                              --refill-interval' ;;
            top)          options+=' --by -n' ;;
            explain)      options+=' --method' ;;
            watch)        options+=' --interval --count' ;;
            override)     options+=' --capacity --rate --cost --for --until --reason
                              --all' ;;
            ban | exempt) options+=' --for --until --reason --all' ;;
            reset | remove | unban) options+=' --all' ;;
        esac

        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
        return
    fi

    if [[ -z $command ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$cur")
        return
    fi

    # names may hold any printable character: they are compared and quoted here;
    # bash wants what follows the last ":" or "="

    if ((words == 0)); then
        case $command in
            show | shard | top | limits | overrides | advise | reset | override | ban \
            | exempt | remove | unban)
                while IFS= read -r word; do
                    if [[ $word == "$cur"* ]]; then
                        word=${word#"${cur%"${cur##*[:=]}"}"}
                        COMPREPLY+=("$(printf '%q' "$word")")
                    fi
                done < <(_ratelimitctl_limits "${ask[@]}")
                ;;
        esac
    fi
}


complete -F _ratelimitctl ratelimitctl
