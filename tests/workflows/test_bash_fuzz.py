"""Commands generated from a grammar of bash, with hostile values: a real bash executes no value."""

from __future__ import annotations

import subprocess

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.workflows.test_bash_values import ARRAY, MARKER, SUBSCRIPT, TOUCH, WORDS, execute

from perdure.kernel.errors import InvalidInput
from perdure.workflows import templates
from perdure.workflows.bash_rules import RefusedValue
from perdure.workflows.shell import check_command, shell_command

NAMES = ("v", "w", "x")
HOSTILE = [
    SUBSCRIPT,
    f"a[$({TOUCH})]=1",
    ARRAY,
    WORDS,
    f"[$({TOUCH})]=1",
    f"-v{SUBSCRIPT}",
    f"-p{SUBSCRIPT}",
    f"-C{TOUCH};",
    f"-W$({TOUCH})",
    f"-v {SUBSCRIPT}",
    f"$({TOUCH})",
    f"`{TOUCH}`",
    f"'; {TOUCH}; '",
    f'"; {TOUCH}; "',
    f"; {TOUCH} #",
    f"\n{TOUCH}\n",
    f"END\n{TOUCH}\n",
    f"x) {TOUCH} ;; y",
    f") ; {TOUCH} ; (",
    f"}}; {TOUCH}; {{",
    f"]]; {TOUCH}; [[",
    f"${{y:-$({TOUCH})}}",
    f"$(( {SUBSCRIPT} ))",
    f"{SUBSCRIPT} - 1",
    f"BASH_ENV=$({TOUCH})",
    "-v",
    "-i",
    "!",
    "-eq",
    "=",
    "(",
    "",
    "\\",
    "$'",
    "'",
    '"',
    "`",
    "*",
    "&",
    "x y",
]


def joined(*parts: str | st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(*(st.just(part) if isinstance(part, str) else part for part in parts)).map("".join)


value = st.sampled_from([f"{{{{{name}}}}}" for name in NAMES])
plain = st.sampled_from(["a", "b c", "1", "$HOME", "-n", "", "#", "it", "~"])


def words(command: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return words with values in every kind of quotes and expansions."""
    return st.one_of(
        value,
        value,
        st.sampled_from(
            ["a", "'b c'", "1", '"$HOME"', "$y", "${z[0]}", "$((1 + 1))", "x=1", "*", "$#", "$$"]
        ),
        joined("'", plain, value, "'"),
        joined('"', plain, value, '"'),
        joined("$'\\t", value, "\\''"),
        joined("pre", value, "'post'"),
        joined('"${y:-', value, '}"'),
        joined("${y:-", value, "}"),
        joined('${y:+"', value, '"}'),
        joined("${y:=", value, "}"),
        joined('"${y/a/', value, '}"'),
        joined("${y//", value, "/x}"),
        joined("${y#", value, "}"),
        joined("${y%%", value, "}"),
        joined('"${y^^', value, '}"'),
        joined("${y?", value, "}"),
        joined("{a,", value, " ,b}"),
        joined("$(", command, ")"),
        joined('"$(', command, ')"'),
        joined("$(\n", command, "\n)"),
        joined("`echo ", value, "`"),
        joined('"`echo ', value, '`"'),
        joined("<(", command, ")"),
        joined("\\a", value, "\\ b"),
    )


def commands(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return commands that have values, words and other commands in them."""
    word = words(inner)
    return st.one_of(
        joined("echo ", word, " ", word),
        joined(": ", word),
        joined("printf '%s\\n' ", word, " ", word),
        joined("printf -- ", word, " ", word),
        joined("y=", word),
        joined("y+=", word, " true ", word),
        joined("y=", word, " z=(", word, " ", word, ")"),
        joined("z+=(", word, "\n# it's a comment ", value, "\n", word, ")"),
        joined("z[1]=", word, "; z[ 1 + 1 ]+=", word),
        joined("export q=", word, " r=", word),
        joined("declare -x q=", word, " s=(", word, ")"),
        joined("readonly r", st.integers(0, 999).map(str), "=", word),
        joined("f() { local l=", word, "; ", inner, "; }; f ", word),
        joined("function g {\n", inner, "\n}; g ", word),
        joined("[ -n ", word, " ] || [ ", value, " = ", value, " ]"),
        joined("test ", value, " != x -a -f ", value),
        joined("[ ", value, " -eq 3 ] || [ ! -e ", value, " ]"),
        joined("[[ ", word, " == ", word, " && ( -z ", value, " || ! -f ", value, " ) ]]"),
        joined("[[ ", value, " =~ (a|", value, ")+x ]]"),
        joined("[[ ", value, " < ", value, " ]] && [[ 3 -eq 3 ]]"),
        joined("case ", word, " in\n  ", value, "|b) ", inner, ";;\n  (*) ", inner, "\nesac"),
        joined("for i in ", word, " ", word, "; do ", inner, "; done"),
        joined("for ((i = 0; i < 2; i++)); do ", inner, "; done"),
        joined("select i in ", word, "; do ", inner, "; break; done <<< 1"),
        joined("if ", inner, "; then ", inner, "; else\n", inner, "\nfi"),
        joined("while ", inner, "; do ", inner, "; break; done"),
        joined("if [[ -n ", value, " ]] then ", inner, "; fi"),
        joined("if (( 1 )) then ", inner, "; elif ( ", inner, " ) then ", inner, "; fi"),
        joined("while { ", inner, "; } do ", inner, "; break; done < ", value),
        joined("coproc X { ", inner, "; }\nwait"),
        joined("case a in\n  a) cat <<END ;;\n", value, "\nEND\n  *) ", inner, " ;;\nesac"),
        joined("until ", inner, "; do ", inner, "; break; done"),
        joined("( ", inner, " )"),
        joined("(", inner, "; ( ", inner, " ) )"),
        joined("{ ", inner, "; } 2>&1"),
        joined("! ", inner),
        joined("time ", inner),
        joined(inner, " | ", inner),
        joined(inner, " && ", inner),
        joined(inner, " || ", inner),
        joined(inner, " &\nwait"),
        joined(inner, "\n", inner),
        joined("echo ", value, " # it's a comment ", value, "\n", inner),
        joined("cat <<END\n", value, " $(", inner, ") ${y:-", value, "} `echo ", value, "`\nEND\n", inner),
        joined("cat <<-A - <<'B'\n\t", value, "\n\tA\n$((x '\nB\n", inner),
        joined("$(cat <<END\n", value, "\nEND\n)"),
        joined("cat <<< ", word, " ", word),
        joined("cat < ", value, " 2> ", value, ".err >> ", value, ".out"),
        joined("echo ", value, " &> ", value, ".both"),
        joined("exec 3< ", value, "; cat <&3"),
        joined("read -r y <<< ", word),
        joined("mapfile -t z <<< ", word),
        joined("read -r y < <(", inner, ")"),
        joined("cd ", value, "; pushd ", value, "; set -- ", value, "; shift"),
        joined("command echo ", word, "; builtin echo ", word),
        joined("echo \\\n  ", word, " \\\n  ", word),
        joined("(( 1 < 2 )) && ", inner),
        joined("let n=1+2; declare -i n=4; ", inner),
        joined("n=$((n + 1)) ", "; echo ${z[0]} ${y:0:2} ", word),
        joined("coproc ", inner, "\nwait"),
        joined("{{#if v}}", inner, "\n{{/if}}{{#if !w}}", inner, "\n{{/if}}true"),
        joined(
            "umask ", value, "; ulimit -c ", value, "; type ", value, "; hash ", value, "; kill -l ", value
        ),
        joined("f() { return ", value, "; }; f; for i in 1; do break ", value, "; done"),
        joined("getopts ", value, " o ", value, "; dirs ", value, "; caller ", value, "; shopt ", value),
    )


simple = joined("echo ", value)
command = st.recursive(simple, commands, max_leaves=6)
scopes = st.fixed_dictionaries({name: st.sampled_from(HOSTILE) for name in NAMES})
patient = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@patient
@given(command, scopes)
def test_no_value_is_executed_by_a_command_of_the_grammar(text: str, scope: dict[str, str]) -> None:
    template = templates.parse(text)
    try:
        rendered = shell_command(template, scope)
    except RefusedValue:
        # Some combinations are refused, such as a value in the arguments of a builtin that evaluates names.
        return
    assert execute(rendered) is not None


@patient
@given(command)
def test_every_command_of_the_grammar_is_understood(text: str) -> None:
    literal = templates.parse(text).render(dict.fromkeys(NAMES, "a"))
    done = subprocess.run(["bash", "-n", "-c", literal], capture_output=True, check=False)
    # A nested here-document with the same end word is not a valid command.
    assume(done.returncode == 0)
    try:
        check_command(text)
    except RefusedValue:
        return


SIGNS = (
    r"""$( ) (( )) $(( ${ } [ ] [[ ]] $[ ' " ` \ $' $" ; & | > < <<< >& <( = += =( : - :- := @ ! # * ? ;;"""
)
WORDS_OF_BASH = """
a a= a[ a[0]= x 1 + let declare -a -i export local unset read printf -v -eq test if then fi case in esac
for do done { f() echo true wait trap } while until else exec command coproc X PS4= OPTIND= mapfile !( @(
"""
TOKENS = [
    *["{{v}}", "{{w}}"] * 6,
    *[" ", "\n"] * 4,
    *SIGNS.split(),
    *WORDS_OF_BASH.split(),
    "<<END\n",
    "<<END ",
    "<<$END\n",
    "\nEND\n",
    "\nEND)",
    "\\\n",
    "if [[ x ]] then ",
    "while ((1)) do ",
    "; break; done\n",
    "; fi\n",
]


@settings(patient, max_examples=400)
@given(st.lists(st.sampled_from(TOKENS), min_size=2, max_size=14).map("".join), scopes)
def test_no_value_is_executed_by_any_sequence_of_tokens(text: str, scope: dict[str, str]) -> None:
    try:
        rendered = shell_command(templates.parse(text), scope)
    except InvalidInput:
        return
    assert execute(rendered) is not None


def test_the_marker_shows_what_is_executed() -> None:
    assert execute(shell_command(templates.parse("eval {{v}}"), {"v": TOUCH})) is None
    assert execute(shell_command(templates.parse("sh -c {{v}}"), {"v": TOUCH})) is None
    assert execute(shell_command(templates.parse("n={{v}}; echo $((n))"), {"v": SUBSCRIPT})) is None
    assert MARKER in TOUCH
