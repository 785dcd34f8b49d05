"""Every command and option that a program's help tells stands in its man page and in its completion."""
import os
import re
import shutil
import subprocess

import pytest

from daemon import BUILD, ROOT

TPD_COMMANDS = ("inspect", "plan", "merge", "quantize", "tokenize", "detokenize", "template")
TPCTL = subprocess.run([BUILD / "tpctl", "help"], capture_output=True, text=True, check=True).stdout
TPCTL_COMMANDS = re.findall(r"^  ([a-z]+(?: [a-z]+)?) {2,}", TPCTL.split("\n\n")[2], re.MULTILINE)


def help_of(*words):
    return subprocess.run([BUILD / words[0], *words[1:]], capture_output=True, text=True, check=True).stdout


def options(text):
    return re.findall(r"^ {2,}(?:-\w, )?--([a-z][a-z0-9-]*)", text, re.MULTILINE)


def tpd_options(command):
    """Of a command without a help of its own, what its line in the overview says."""
    if command == "plan":
        return options(help_of("tpd", "plan", "--help"))
    overview = help_of("tpd", "--help")
    if command:
        return re.findall(r"--([a-z-]+)", re.search(rf"^ +tpd {command} .*", overview, re.MULTILINE)[0])
    return options(overview) + ["help", "version"]


def in_page(page):
    """Options of a page in mdoc: ".Fl -name", also several in a line."""
    text = (ROOT / "docs/man" / page).read_text()
    lines = [line for line in text.splitlines() if re.search(r"\bFl\b", line)]
    return text, {word for line in lines for word in re.findall(r"(?<= )-([a-z][a-z0-9-]*)", line)}


def completed(program, *words):
    if not shutil.which("bash"):
        pytest.skip("no bash here")
    line = f"source etc/completions/{program}.bash; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _{program}; " \
           "printf '%s\\n' \"${COMPREPLY[@]}\""
    env = {**os.environ, "PATH": f"{BUILD}:{os.environ['PATH']}"}
    run = subprocess.run(["bash", "-c", line, "bash", program, *words], capture_output=True, text=True, cwd=ROOT,
                         env=env, check=True)
    assert run.stderr == ""
    return set(run.stdout.split())


def test_the_help_is_understood():
    assert {"generate", "jobs rm", "model load", "adapters rollback"} <= set(TPCTL_COMMANDS)
    assert {"quant", "draft-tp", "log-json"} <= set(tpd_options(""))
    assert {"draft", "grad-checkpointing"} <= set(tpd_options("plan")) and tpd_options("merge") == ["json"]


@pytest.mark.parametrize("group", ["model", "jobs", "adapters"])
def test_the_first_word_of_two_tells_of_the_second(group):
    told = help_of("tpctl", "help", group)
    assert told == help_of("tpctl", group, "--help") == help_of("tpctl", "-h", group)
    theirs = [command for command in TPCTL_COMMANDS if command.startswith(group + " ")]
    assert len(theirs) > 2 and all(re.search(rf"^  {command} {{2,}}", told, re.MULTILINE) for command in theirs)


def test_every_flag_of_tpd_says_what_it_takes():
    flags = re.findall(r"^    --.*", help_of("tpd", "--help"), re.MULTILINE)
    assert len(flags) > 40
    for flag in flags:
        assert re.fullmatch(r" +--[a-z-]+( [A-Za-z0-9|]+|\[=true\|false\])( \[[^ ]+\])?", flag), flag


def test_the_man_page_of_tpctl_has_all_options():
    text, told = in_page("tpctl.1")
    for command in TPCTL_COMMANDS:
        assert re.search(rf"^\.It (Cm .*)?Cm .*\b{command.split()[-1]}\b", text, re.MULTILINE) or command == "help", command
        missing = set(options(help_of("tpctl", "help", *command.split()))) - told
        assert not missing, (command, missing)


def test_the_man_page_of_tpd_has_all_options_and_no_others():
    text, told = in_page("tpd.1")
    known = {o for command in ("", *TPD_COMMANDS) for o in tpd_options(command)} | {"chat-template"}
    assert told == known
    for command in TPD_COMMANDS:
        assert f".It Cm {command} " in text


def test_tpctl_is_completed_by_all_its_commands_and_options():
    first = {command.split()[0] for command in TPCTL_COMMANDS}
    assert completed("tpctl", "") == first
    for command in TPCTL_COMMANDS:
        words = command.split()
        got = completed("tpctl", *words, "--")
        assert got == {"--" + o for o in options(help_of("tpctl", "help", *words))}, command
        if len(words) == 2:
            assert words[1] in completed("tpctl", words[0], ""), command


def test_tpd_is_completed_by_all_its_commands_and_options():
    assert completed("tpd", "") == set(TPD_COMMANDS)
    for command in ("", *TPD_COMMANDS):
        got = completed("tpd", *([command] if command else []), "--")
        assert got == {"--" + o for o in tpd_options(command)}, command
    assert completed("tpd", "--quant", "") == {"none", "q8", "q4"}
    assert completed("tpd", "--kv-type", "f") == {"f32", "f16"}


def test_options_of_the_configuration_stand_in_the_example():
    text = (ROOT / "etc/tpd.conf").read_text()
    for option in set(tpd_options("")) - {"config", "help", "version"}:
        assert re.search(rf"^#? ?{option.replace('-', '_')} =", text, re.MULTILINE), option
