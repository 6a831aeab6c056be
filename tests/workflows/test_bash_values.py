"""Values in commands are never executed: a real bash shows what it would execute, and what is refused."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from perdure.kernel.errors import InvalidInput
from perdure.workflows import templates
from perdure.workflows.bash_rules import RefusedValue
from perdure.workflows.building import phase, workflow
from perdure.workflows.loading import load_text
from perdure.workflows.shell import ShellCommand, check_command, shell_command

MARKER = "marker"
TOUCH = f"touch {MARKER}"
SUBSCRIPT = f"a[$(touch${{IFS}}{MARKER})]"
ARRAY = f"([$({TOUCH})]=1)"
WORDS = f"($({TOUCH}))"


def execute(command: ShellCommand) -> str | None:
    """Execute a command in an empty directory. Return its output, or None if the marker was created."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["bash", "-c", command.text],
            cwd=folder,
            env={"PATH": os.environ["PATH"], **command.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
        return None if Path(folder, MARKER).exists() else done.stdout.decode(errors="replace")


EVALUATED: dict[str, Sequence[str]] = {
    # arithmetic
    "echo $(({{v}}))": [SUBSCRIPT],
    "echo $((1 + ({{v}})))": [SUBSCRIPT],
    'echo "$(({{v}}))"': [SUBSCRIPT],
    "echo $[{{v}}]": [SUBSCRIPT],
    "(({{v}}))": [SUBSCRIPT],
    "(( ( {{v}} ) ))": [SUBSCRIPT],
    "x=5; (( x == {{v}} )) && echo": [SUBSCRIPT],
    "while (( {{v}} )); do break; done": [SUBSCRIPT],
    "for ((i={{v}}; i<1; i++)); do :; done": [SUBSCRIPT],
    "for (( ; {{v}}; )); do break; done": [SUBSCRIPT],
    "case $(({{v}})) in x) ;; esac": [SUBSCRIPT],
    "echo $((\n1 +\n{{v}}))": [SUBSCRIPT],
    "echo $(( $(echo {{v}}) ))": [SUBSCRIPT],
    "echo `echo $(({{v}}))`": [SUBSCRIPT],
    "echo $(echo $(({{v}})))": [SUBSCRIPT],
    "cat <<END\n$(({{v}}))\nEND": [SUBSCRIPT],
    "cat <<-END\n\t$[{{v}}]\n\tEND": [SUBSCRIPT],
    "cat <<END\n$(let {{v}})\nEND": [SUBSCRIPT],
    "cat <<END\n`let {{v}}`\nEND": [SUBSCRIPT],
    "let {{v}}": [SUBSCRIPT],
    "let 'x='{{v}}": [SUBSCRIPT],
    "let 'x={{v}}'": [SUBSCRIPT],
    "let 'x = 1' {{v}}": [SUBSCRIPT],
    "builtin let {{v}}": [SUBSCRIPT],
    "command let {{v}}": [SUBSCRIPT],
    "command -p let {{v}}": [SUBSCRIPT],
    "builtin -- let {{v}}": [SUBSCRIPT],
    "\\let {{v}}": [SUBSCRIPT],
    '"let" {{v}}': [SUBSCRIPT],
    "$'let' {{v}}": [SUBSCRIPT],
    "l'e't {{v}}": [SUBSCRIPT],
    "le\\\nt {{v}}": [SUBSCRIPT],
    "echo $\\\n(({{v}}))": [SUBSCRIPT],
    "echo $(\\\n({{v}}))": [SUBSCRIPT],
    "(\\\n( {{v}} ))": [SUBSCRIPT],
    "x=1 let {{v}}": [SUBSCRIPT],
    ">x let {{v}}": [SUBSCRIPT],
    "! let {{v}}": [SUBSCRIPT],
    "time let {{v}}": [SUBSCRIPT],
    "time -p let {{v}}": [SUBSCRIPT],
    "{ let {{v}}; }": [SUBSCRIPT],
    "(let {{v}})": [SUBSCRIPT],
    "true && let {{v}}": [SUBSCRIPT],
    "true | let {{v}}": [SUBSCRIPT],
    "if let {{v}}; then :; fi": [SUBSCRIPT],
    "if true; then let {{v}}; fi": [SUBSCRIPT],
    "if false; then :; elif let {{v}}; then :; fi": [SUBSCRIPT],
    "case x in (x) let {{v}} ;; esac": [SUBSCRIPT],
    "case x in y) ;; x) let {{v}}; esac": [SUBSCRIPT],
    "f() { let {{v}}; }; f": [SUBSCRIPT],
    "f() (let {{v}}); f": [SUBSCRIPT],
    "function f { let {{v}}; }; f": [SUBSCRIPT],
    "coproc let {{v}}; wait": [SUBSCRIPT],
    "coproc X { let {{v}}; }; wait": [SUBSCRIPT],
    "cat <(let {{v}})": [SUBSCRIPT],
    "# it's a comment {{v}}\nlet {{v}}": [SUBSCRIPT],
    "{{#if v}}let {{/if}}{{v}}": [SUBSCRIPT],
    "{{#if none}}echo{{/if}}{{#if !none}}let{{/if}} {{v}}": [SUBSCRIPT],
    # conditions
    "[[ {{v}} -eq 1 ]]": [SUBSCRIPT],
    "[[ {{v}} -ne 1 ]]": [SUBSCRIPT],
    "[[ 1 -lt {{v}} ]]": [SUBSCRIPT],
    "[[ {{v}} -le 1 ]]": [SUBSCRIPT],
    "[[ ! {{v}} -gt 1 ]]": [SUBSCRIPT],
    "[[ ( {{v}} -ge 1 ) && x ]]": [SUBSCRIPT],
    "[[ $(echo {{v}}) -eq 1 ]]": [SUBSCRIPT],
    "until [[ {{v}} -gt 0 ]]; do break; done": [SUBSCRIPT],
    "[[ -v {{v}} ]]": [SUBSCRIPT],
    "[[ x && -v {{v}} ]]": [SUBSCRIPT],
    "test -v {{v}}": [SUBSCRIPT],
    "test ! -v {{v}}": [SUBSCRIPT],
    "test -n x -a -v {{v}}": [SUBSCRIPT],
    "[ -v {{v}} ]": [SUBSCRIPT],
    "[ -v x[{{v}}] ]": [SUBSCRIPT],
    "builtin test -v {{v}}": [SUBSCRIPT],
    "[ {{v}} {{w}} ]": ["-v", SUBSCRIPT],
    "[ ! {{v}} {{w}} ]": ["-v", SUBSCRIPT],
    "[ \\( {{v}} {{w}} \\) ]": ["-v", SUBSCRIPT],
    "[ -{{v}} {{w}} ]": ["v", SUBSCRIPT],
    "[ $(echo {{v}}) ]": [f"-v {SUBSCRIPT}"],
    # subscripts, offsets and names
    "echo ${a[{{v}}]}": [SUBSCRIPT],
    'echo "${a[{{v}}]}"': [SUBSCRIPT],
    "echo ${a\\\n[{{v}}]}": [SUBSCRIPT],
    "echo ${!x[{{v}}]}": [SUBSCRIPT],
    "a[{{v}}]=1": [SUBSCRIPT],
    "a[ 1 + {{v}} ]=2": [SUBSCRIPT],
    "a[1 + $(echo {{v}})]=2": [SUBSCRIPT],
    "x[{{v}}]+=1": [SUBSCRIPT],
    "x=([{{v}}]=1)": [SUBSCRIPT],
    "declare x=([{{v}}]=1)": [SUBSCRIPT],
    "a=1; echo ${a:{{v}}}": [SUBSCRIPT],
    "a=123; echo ${a:0:{{v}}}": [SUBSCRIPT],
    "a=123; echo ${a: {{v}}}": [SUBSCRIPT],
    "echo ${@:{{v}}}": [SUBSCRIPT],
    "echo ${*:{{v}}}": [SUBSCRIPT],
    "set -- 1; echo ${1:{{v}}}": [SUBSCRIPT],
    "x=(1); echo ${x[@]:0:{{v}}}": [SUBSCRIPT],
    "cat <<END\n${a[{{v}}]}\nEND": [SUBSCRIPT],
    "a=(1); unset a[{{v}}]": [SUBSCRIPT],
    "a=(1); unset 'a['{{v}}']'": [SUBSCRIPT],
    "printf -v {{v}} x": [SUBSCRIPT],
    "printf -v{{v}} x": [SUBSCRIPT],
    "printf {{v}} x": [f"-v{SUBSCRIPT}"],
    "printf {{v}} {{w}} x": ["-v", SUBSCRIPT],
    "printf -v x {{v}} y": [f"-v{SUBSCRIPT}"],
    "read {{v}} <<< x": [SUBSCRIPT],
    "read x[{{v}}] <<< 1": [SUBSCRIPT],
    "while IFS= read -r {{v}}; do break; done <<< x": [f"a[$({TOUCH})]"],
    "sleep 0 & wait -p {{v}} -n": [SUBSCRIPT],
    "sleep 0 & wait -n {{v}}": [f"-p{SUBSCRIPT}"],
    # declarations
    "declare -i x={{v}}": [SUBSCRIPT],
    "typeset -i x={{v}}": [SUBSCRIPT],
    "f() { local -i x={{v}}; }; f": [SUBSCRIPT],
    "declare -i x; readonly x={{v}}": [SUBSCRIPT],
    "declare -i x; export x={{v}}": [SUBSCRIPT],
    "declare -i x; x={{v}}": [SUBSCRIPT],
    "declare -i x; x+={{v}}": [SUBSCRIPT],
    "declare -i x; x=({{v}})": [SUBSCRIPT],
    "declare -i x; x[0]={{v}}": [SUBSCRIPT],
    "declare -ia x=(1); x+=({{v}})": [SUBSCRIPT],
    "declare -i x; for x in {{v}}; do :; done": [SUBSCRIPT],
    "declare -i x; select x in {{v}}; do break; done <<< 1": [SUBSCRIPT],
    "declare -i x; read -r x <<< {{v}}": [SUBSCRIPT],
    "declare -i x; mapfile x <<< {{v}}": [SUBSCRIPT],
    "declare -i x; printf -v x %s {{v}}": [SUBSCRIPT],
    "declare -i x; : ${x:={{v}}}": [SUBSCRIPT],
    "declare {{v}}": [f"{SUBSCRIPT}=1"],
    "declare -g {{v}}": [f"{SUBSCRIPT}=1"],
    "declare a[{{v}}]=1": [SUBSCRIPT],
    "typeset {{v}}": [f"{SUBSCRIPT}=1"],
    "f() { local {{v}}; }; f": [f"{SUBSCRIPT}=1"],
    "declare {{v}} x={{w}}": ["-i", SUBSCRIPT],
    "export {{v}} x={{w}}": ["-a", WORDS],
    "declare -a x={{v}}": [ARRAY],
    "declare -a 'x={{v}}'": [WORDS],
    "declare -A x={{v}}": [ARRAY],
    "export -a x={{v}}": [WORDS],
    "readonly -a x={{v}}": [WORDS],
    "readonly -A x={{v}}": [ARRAY],
    "f() { local -a x={{v}}; }; f": [WORDS],
    "x=(); declare x={{v}}": [WORDS],
    "declare -a x; declare x={{v}}": [WORDS],
    "declare -n x={{v}}; echo $x": [SUBSCRIPT],
    "declare -n x={{v}}; x=1": [SUBSCRIPT],
    "declare -n x; x={{v}}; echo $x": [SUBSCRIPT],
    "declare -n x; for x in {{v}}; do echo $x; done": [SUBSCRIPT],
    "OPTIND={{v}}": [SUBSCRIPT],
    "RANDOM={{v}}": [SUBSCRIPT],
    "export OPTIND={{v}}": [SUBSCRIPT],
    "for SECONDS in {{v}}; do :; done": [SUBSCRIPT],
    "read OPTIND <<< {{v}}": [SUBSCRIPT],
    # arguments that builtins execute or expand again
    "mapfile -C {{v}} -c 1 x <<< y": [f"{TOUCH};"],
    "compgen -W {{v}}": [f"$({TOUCH})"],
    "compgen {{v}}": [f"-C{TOUCH};"],
    "trap {{v}} EXIT": [TOUCH],
    "trap 'true {{v}}' EXIT": [f"; {TOUCH}"],
    "shopt -s expand_aliases; alias x={{v}}\nx": [TOUCH],
    "history -s {{v}}; fc -s": [TOUCH],
    "jobs {{v}} {{w}} marker": ["-x", "touch"],
    "PS4={{v}}; set -x; :": [f"$({TOUCH})"],
    "BASH_ENV={{v}} bash -c :": [f"$({TOUCH})"],
    "env BASH_ENV={{v}} bash -c :": [f"$({TOUCH})"],
    "export BASH_ENV={{v}}; bash -c :": [f"$({TOUCH})"],
    "$(echo {{v}})": [TOUCH],
    "x=1 command $(cat <<END\n{{v}}\nEND\n)": [TOUCH],
    "`echo {{v}}`": [TOUCH],
    "echo x >&{{v}}": [f"$({TOUCH})"],
    "echo x 1>&p{{v}}": [f"$({TOUCH})"],
    "{ echo x; } >& {{v}}": [f"$({TOUCH})"],
    # a reserved word right after a compound command
    "if [[ -n x ]] then let {{v}}; fi": [SUBSCRIPT],
    "if [[ -n x ]] then (( {{v}} )); fi": [SUBSCRIPT],
    "if [[ -n x ]] then [[ {{v}} -eq 1 ]]; fi": [SUBSCRIPT],
    "if (( 1 )) then let {{v}}; fi": [SUBSCRIPT],
    "if (true) then let {{v}}; fi": [SUBSCRIPT],
    "if { true; } then let {{v}}; fi": [SUBSCRIPT],
    "if ((0)) then :; elif ((1)) then let {{v}}; fi": [SUBSCRIPT],
    "if if true; then true; fi then let {{v}}; fi": [SUBSCRIPT],
    "if case x in x) true;; esac then let {{v}}; fi": [SUBSCRIPT],
    "while (( 1 )) do let {{v}}; break; done": [SUBSCRIPT],
    "coproc X (( {{v}} )); wait": [SUBSCRIPT],
    "!(( {{v}} ))": [SUBSCRIPT],
    ">x [[ a || let {{v}} ]]": [SUBSCRIPT],
    # substitutions that become several words
    "[ ${none:-$(echo {{v}})} ]": [f"-v {SUBSCRIPT}"],
    "[ ${none=`echo {{v}}`} ]": [f"-v {SUBSCRIPT}"],
    "${none:-$(echo {{v}})}": [TOUCH],
    "exec $(echo {{v}})": [TOUCH],
    '"declare" x=$(echo {{v}})': [f"1 {SUBSCRIPT}=2"],
    "builtin declare x=$(echo {{v}})": [f"1 {SUBSCRIPT}=2"],
    "command declare x=$(echo {{v}})": [f"1 {SUBSCRIPT}=2"],
    "f() { \\local x=$(echo {{v}}); }; f": [f"1 {SUBSCRIPT}=2"],
    # variables that bash evaluates, filled in other ways
    "read -ra x <<< 'a b'; declare x={{v}}": [WORDS],
    "mapfile -t x <<< a; declare x={{v}}": [WORDS],
    "declare DIRSTACK={{v}}": [WORDS],
    "declare -i x; while read -r x; do :; done <<< {{v}}": [SUBSCRIPT],
    "declare -i x; { read -r x; } <<< {{v}}": [SUBSCRIPT],
    "declare -i x; f() { read x; }; f <<< {{v}}": [SUBSCRIPT],
    "declare -i x; echo {{v}} | { read x; }": [SUBSCRIPT],
    "declare -i x; read -r x <<END\n{{v}}\nEND": [SUBSCRIPT],
    "PS4[0]={{v}}; set -x; :": [f"$({TOUCH})"],
    "read -r PS4 <<< {{v}}; set -x; :": [f"$({TOUCH})"],
    "for PS4 in {{v}}; do set -x; :; done": [f"$({TOUCH})"],
    "printf -v PS4 %s {{v}}; set -x; :": [f"$({TOUCH})"],
    ": ${BASH_ENV:={{v}}}; export BASH_ENV; bash -c :": [f"$({TOUCH})"],
    "PROMPT_COMMAND={{v}} bash --norc -i <<< :": [TOUCH],
    "PS1={{v}} bash --norc -i <<< :": [f"$({TOUCH})"],
    "shopt -s expand_aliases; BASH_ALIASES[x]={{v}}\nx": [TOUCH],
    "exec {a[{{v}}]}> x": [SUBSCRIPT],
    # line continuations
    "echo ${a\\\nb[{{v}}]}": [SUBSCRIPT],
    "for OPTIND i\\\nn {{v}}; do :; done": [SUBSCRIPT],
    "cat <<END\nEN\\\nD\nlet {{v}}\nEND": [SUBSCRIPT],
    "cat <<-END\n\tEN\\\nD\nlet {{v}}\nEND": [SUBSCRIPT],
    # here-documents with an unexpected end
    "cat <<A $(cat <<B\nB\nlet {{v}}\n)\nA\nB\n)": [SUBSCRIPT],
    "cat <<A; for x\nA\nin y; do :; done\nlet {{v}}\nA": [SUBSCRIPT],
    "cat <<A; case x in\nA\nx) ;; esac\nlet {{v}}\nA": [SUBSCRIPT],
    "cat <<A; [[ x == x &&\nA\nx ]]\nlet {{v}}\nA": [SUBSCRIPT],
    "shopt -s extglob\n: @(# ) ; let {{v}}\n)": [SUBSCRIPT],
    "a[ #] ; let {{v}}": [SUBSCRIPT],
}
"""Commands in which bash evaluates a value, with values that prove it."""


def without_refusal(command: str, values: Sequence[str]) -> ShellCommand:
    """Return the command as it was before such values were refused: each value in a quoted variable."""
    text = command.replace("{{#if v}}", "").replace("{{#if none}}echo{{/if}}", "")
    for tag in ("{{#if !none}}", "{{/if}}"):
        text = text.replace(tag, "")
    env = {}
    for name, value in zip(("v", "w"), values, strict=False):
        if ("'" in text and f"'x={{{{{name}}}}}'" in text) or f"true {{{{{name}}}}}'" in text:
            text = text.replace(f"{{{{{name}}}}}'", f'\'"${{{name}}}"')
        text = text.replace(
            f"{{{{{name}}}}}", f"${{{name}}}" if is_expanded_already(text) else f'"${{{name}}}"'
        )
        env[name] = value
    return ShellCommand(text, env)


def is_expanded_already(text: str) -> bool:
    """Return whether a value is in a here-document or in double quotes."""
    return "<<END" in text or "<<-END" in text or 'echo "$' in text


@pytest.mark.parametrize("command", EVALUATED)
def test_a_value_that_bash_would_evaluate_is_refused(command: str) -> None:
    values = EVALUATED[command]
    assert execute(without_refusal(command, values)) is None, "this bash does not evaluate the value"
    with pytest.raises(RefusedValue) as loaded:
        check_command("# first line\n" + command)
    with pytest.raises(RefusedValue) as rendered:
        shell_command(templates.parse(command), dict(zip(("v", "w"), values, strict=False)))
    assert loaded.value.line == rendered.value.line + 1
    assert f"line {rendered.value.line} of the command" in rendered.value.message
    text = command.splitlines()[rendered.value.line - 1]
    assert "{{v}}" in text or "{{w}}" in text


AMBIGUOUS = {
    "cat <<$x\na\n$x\nlet {{v}}": "not fixed",
    "cat <<`x`\na\n`x`\nlet {{v}}": "not fixed",
    "x=$(cat <<END\na\nEND) ; let {{v}}\nEND\n)": "in one line",
    'cat <<A "$(echo\n)"\nlet {{v}}\nA': "in the middle of an expansion",
    "cat <<A && x=(\n1); let {{v}}\nA\n)": "in the middle of an array",
    "echo $(cat <<END) {{v}}\nEND": "in the middle of an expansion",
    'echo "${x#\'"\'}"\nlet {{v}}\necho "" }"': "let|missing|not closed",
    'echo "${x:-\'"\'}"\nlet {{v}}\necho "" }"': "let|missing|not closed",
    'echo "${x:-it\'s}" {{v}}': "single quote",
}
"""Commands that bash parses differently than a reader expects, with their refusals."""


@pytest.mark.parametrize("command", AMBIGUOUS)
def test_a_command_whose_parts_are_unclear_is_refused(command: str) -> None:
    with pytest.raises(InvalidInput, match=AMBIGUOUS[command]):
        check_command(command)
    with pytest.raises(InvalidInput, match=AMBIGUOUS[command]):
        shell_command(templates.parse(command), {"v": SUBSCRIPT})


def test_subscripts_in_one_another_are_read_once() -> None:
    command = "a[ $(" * 18 + "echo {{v}}" + ") ]" * 18
    started = time.process_time()
    with pytest.raises(RefusedValue):
        check_command(command)
    assert time.process_time() - started < 0.5


ACCEPTED = {
    "echo {{v}} \"{{v}}\" '{{v}}' $'{{v}}' x{{v}}x": "{0} {0} {0} {0} x{0}x",
    'x={{v}}; echo "$x"': "{0}",
    'export x={{v}} y=1; echo "$x"': "{0}",
    'f() { local x={{v}}; echo "$x"; }; f': "{0}",
    'x=({{v}} b); echo "${x[0]}"': "{0}",
    'declare -a x=({{v}}); echo "${x[0]}"': "{0}",
    'x=(a); x+=({{v}}); echo "${x[1]}"': "{0}",
    'echo "${none:-{{v}}}"': "{0}",
    'echo "$(echo {{v}})"': "{0}",
    'echo "`echo {{v}}`"': "{0}",
    "if [[ {{v}} == {{v}} && -n {{v}} && ! {{v}} < a ]]; then echo {{v}}; fi": "{0}",
    "[[ {{v}} =~ (x|{{v}}) ]] && echo {{v}}": "{0}",
    "[ {{v}} = {{v}} ] && [ -n {{v}} -a ! -z {{v}} ] && echo {{v}}": "{0}",
    "case {{v}} in (a|b) ;; {{v}}) echo {{v}};; esac": "{0}",
    'for x in {{v}}; do echo "$x"; done': "{0}",
    "for x in 1\ndo\n  echo {{v}}\ndone": "{0}",
    "for ((i=0; i<1; i++)); do echo {{v}}; done": "{0}",
    "( ( echo {{v}} ) )": "{0}",
    'f() { echo "$1"; }; f {{v}}': "{0}",
    "cat <<END\n{{v}} $((1 + 1))\nEND": "{0} 2",
    "cat <<A; cat <<-B\n{{v}}\nA\n\t{{v}}\n\tB": "{0}\n{0}",
    "cat <<'A'\n$x\nA\necho {{v}}": "$x\n{0}",
    "cat <<< {{v}}": "{0}",
    "cat < <(echo {{v}})": "{0}",
    'read -r x <<< {{v}}; echo "$x"': "{0}",
    "printf '%s\\n' {{v}}": "{0}",
    'printf -v x %s {{v}}; echo "$x"': "{0}",
    "printf {{v}}": "{0}",
    "echo {{v}} # it's {{v}}": "{0}",
    "true && echo \\\n  {{v}}": "{0}",
    "echo $((1 + 1)) {{v}} $[2]": "2 {0} 2",
    "n=3; (( n > 2 )) && echo {{v}}": "{0}",
    "a=(1 2); echo ${a[1]} ${#a[@]} ${a[@]:0:1} {{v}}": "2 2 1 {0}",
    "let n=1+1; echo $n {{v}}": "2 {0}",
    "sh -c 'echo \"$1\"' sh {{v}}": "{0}",
    "command -v {{v}} || echo {{v}}": "{0}",
    "trap 'echo end' EXIT; echo {{v}}": "{0}\nend",
    "time -p echo {{v}}": "{0}",
    "{ echo {{v}}; } 2>&1 | cat": "{0}",
    "echo {{v}} &> file; cat file": "{0}",
    "if [[ -n {{v}} ]] then echo {{v}}; fi": "{0}",
    "[[ x == x # it's a comment\n]] && echo {{v}}": "{0}",
    "echo \"${none:-'none'}\" {{v}}": "'none' {0}",
    'x=$(cat <<END\n{{v}}\nEND\n)\necho "$x"': "{0}",
    "cat <<END\nA\\\n{{v}}\nEND": "A{0}",
    'mapfile -t x <<< {{v}}; echo "${x[0]}"': "{0}",
    'export x=$(echo {{v}}) && echo "$x"': "{0}",
    "function f { (echo {{v}}); }; f": "{0}",
    "function f (echo {{v}}); f": "{0}",
    "case x in\n  x) cat <<A ;;\n{{v}}\nA\n  y) ;;\nesac": "{0}",
    "echo a {{v}} > x; { cat x; } 2>&1": "a {0}",
}
"""Commands in which a value is data, with their output."""
DATA = f"{SUBSCRIPT} '; {TOUCH}; \" `{TOUCH}` $({TOUCH}) * \\ ; {TOUCH}"


@pytest.mark.parametrize("command", ACCEPTED)
def test_everywhere_else_a_value_stays_as_it_is(command: str) -> None:
    check_command(command)
    assert (execute(shell_command(templates.parse(command), {"v": "plain"})) or "").strip() == ACCEPTED[
        command
    ].format("plain")
    output = execute(shell_command(templates.parse(command), {"v": DATA}))
    assert output is not None
    if "printf {{v}}" not in command and "sh -c" not in command:
        assert output.strip() == ACCEPTED[command].format(DATA)


INTEGERS = {
    "echo $(({{int v}} + 1))": "{1}",
    "echo $((1 -{{int v}} + {{int v}}))": "1",
    "echo $[{{int v}} + 1]": "{1}",
    "(( {{int v}} != 99 )) && echo {{int v}}": "{0}",
    "let n={{int v}}+1; echo $n": "{1}",
    "declare -i n={{int v}}+1; echo $n": "{1}",
    "[[ {{int v}} -eq {{int v}} ]] && echo {{int v}}": "{0}",
    "a[{{int v}} + 100]=x; echo ${a[{{int v}} + 100]}": "x",
    "for ((i={{int v}}; i<={{int v}}; i++)); do echo $i; done": "{0}",
    "printf -v x %d {{int v}}; echo $x": "{0}",
    "echo '{{int v}}' \"{{int v}}\" {{int v}}": "{0} {0} {0}",
    "s=abcdefghijkl; echo ${s: {{int v}}*0:2}": "ab",
}


@pytest.mark.parametrize("command", INTEGERS)
def test_a_checked_integer_may_be_where_bash_evaluates(command: str) -> None:
    check_command(command)
    template = templates.parse(command)
    for value, number in ((7, 7), (" 42\n", 42), ("-3", -3), ("0009", 9), ("+5", 5)):
        expected = INTEGERS[command].format(number, number + 1)
        assert (execute(shell_command(template, {"v": value})) or "").strip() == expected, value
    wrong_values: list[object] = [
        SUBSCRIPT,
        "",
        None,
        True,
        1.5,
        "1 + 1",
        "0x10",
        "٣",
        "1e3",
        2**63,
        "9" * 400,
        [1],
        {},
    ]
    for wrong in wrong_values:
        with pytest.raises(InvalidInput, match="needs a whole number"):
            shell_command(template, {"v": wrong})


def test_a_builtin_with_hostile_arguments_executes_none_of_them() -> None:
    listed = subprocess.run(["bash", "-c", "compgen -b"], capture_output=True, check=True, text=True)
    builtins = set(listed.stdout.split()) - {"eval", "suspend", "kill"}
    assert len(builtins) > 50
    refused = set()
    shapes = (
        "{{v}}",
        "x {{v}}",
        "{{v}} x",
        "-p {{v}}",
        "-n {{v}}",
        "x={{v}}",
        "x y {{v}} <<< z",
        "{{v}} {{v}}",
    )
    for payload in (
        SUBSCRIPT,
        f"-v{SUBSCRIPT}",
        f"-p{SUBSCRIPT}",
        f"-C{TOUCH};",
        f"$({TOUCH})",
        f"{SUBSCRIPT}=1",
    ):
        lines = []
        for name in sorted(builtins):
            for shape in shapes:
                line = f"( {name} {shape} )"
                try:
                    check_command(line)
                except RefusedValue:
                    refused.add(name)
                else:
                    lines.append(line)
        assert execute(shell_command(templates.parse("\n".join(lines)), {"v": payload})) is not None, payload
    assert {
        "let",
        "unset",
        "read",
        "printf",
        "declare",
        "export",
        "wait",
        "mapfile",
        "trap",
        "test",
    } <= refused
    assert not refused & {"echo", "cd", "set", "shift", "exit", "return", "break", "umask", "ulimit", "pushd"}


def test_an_integer_variable_of_this_bash_is_known() -> None:
    listed = subprocess.run(["bash", "-c", "declare -pi"], capture_output=True, check=True, text=True)
    names = [line.split("=")[0].split()[-1] for line in listed.stdout.splitlines()]
    assert "RANDOM" in names
    for name in names:
        with pytest.raises(RefusedValue, match=f"a value of {name}"):
            check_command(f"{name}={{{{v}}}}")


UNCLEAR = (
    "echo '{{v}}",
    'echo "{{v}}',
    "echo $({{v}}",
    "echo ${x:-{{v}}",
    "((1 + {{int v}}",
    "echo `{{v}}",
    "[[ {{v}}",
)
MISPLACED = (
    "echo \\{{v}}",
    "echo ${{v}}",
    'echo "\\{{v}}"',
    "echo $'\\{{v}}'",
    "cat <<{{v}}\nx",
    "echo `echo \\$x {{v}}`",
)


@pytest.mark.parametrize("command", [*UNCLEAR, *MISPLACED])
def test_a_command_that_is_not_understood_gets_no_value(command: str) -> None:
    with pytest.raises(InvalidInput, match="in line 1 of the command"):
        check_command(command)
    check_command(command.replace("{{v}}", "x").replace("{{int v}}", "x"))


def test_nesting_is_bounded() -> None:
    for opening in ("$(", "$((", "${x:-", "(", "$[", '"$(', "case x in x) "):
        with pytest.raises(InvalidInput):
            check_command(opening * 3000 + "{{v}}")


FILE = """
name: w
phases:
  - name: build
    type: command
    command: |
      # the build
      make {{title}}
      echo $(( {{title}} + 1 ))
  - {name: test, type: command, command: "let x={{title}}"}
"""


def test_a_file_with_such_a_command_is_refused_with_its_line() -> None:
    loaded = load_text(FILE)
    assert loaded.definition is None
    assert [problem.line for problem in loaded.problems] == [9, 10]
    assert "{{title}} in line 3 of the command is in arithmetic" in loaded.problems[0].message
    assert (
        load_text(FILE.replace("(( {{title}}", "(( {{int title}}").replace("={{", "={{int ")).problems == []
    )
    with pytest.raises(InvalidInput, match="line 1 of the command is in arithmetic"):
        workflow("w", phase("a", type="command", command="echo $(({{n}}))"))
