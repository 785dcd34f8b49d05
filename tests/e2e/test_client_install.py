"""What strangers get: the header alone, the library with clean names, pkg-config, the manual."""
import json
import os
import re
import shutil
import subprocess

import pytest

from fake_server import FakeServer

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("TPD_BUILD", "build"))
PROGRAM = r"""
#include <tpd/client.h>
#include <stdio.h>

/* Names that a program may well have; the library must not have them, too. */
int error_set(void);
int error_set(void) { return 7; }

static int on_piece(void *user, const char *method, const json_t *params) {
    (void)method;
    (void)params;
    return ++*(int *)user == 3;
}

int main(int argc, char **argv) {
    struct tpd_client *client;
    struct tpd_error error = {0};
    struct tpd_options options = {0};
    json_t *result = NULL, *params = json_pack("{s:s, s:b}", "prompt", "slow", "stream", 1);
    int pieces = 0;
    if (argc < 2) return 64;
    options.socket = argv[1];
    if (tpd_connect(&client, &options, &error) != 0) return 1;
    if (tpd_call(client, "no_such", NULL, &result, &error) != -1 || result) return 2;
    printf("%d %s %d\n", error.code, error.message, error.exit_code);
    if (tpd_stream(client, "generate", params, on_piece, &pieces, &result, &error) != -1) return 3;
    printf("%d %s %d %s\n", pieces, error.kind, error.exit_code,
           json_string_value(json_object_get(result, "finish_reason")));
    json_decref(result);
    json_decref(params);
    tpd_cancel(client); /* before a call: it counts for the next one */
    if (tpd_call(client, "generate", NULL, NULL, &error) != -1) return 4;
    printf("%s\n", error.kind);
    if (tpd_call(client, "ping", NULL, NULL, &error) != 0 || error.code) return 5;
    tpd_error_clear(&error);
    tpd_close(client);
    return error_set() == 7 ? 0 : 6;
}
"""


def run(*words, **more):
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60,
                          **more).stdout


def test_only_tpd_names_are_global():
    shown = run("nm", "-g", "--defined-only", os.path.join(BUILD, "libtpdclient.a"))
    names = [line.split()[-1] for line in shown.splitlines() if len(line.split()) == 3]
    assert "tpd_call" in names and all(n.startswith("tpd_") for n in names), names


def test_what_is_installed_knows_where_it_is(tmp_path):
    """With any PREFIX, into a DESTDIR as packagers do it."""
    run("make", "-s", "-o", "all", "install", "B=" + os.path.relpath(BUILD, ROOT),
        "PREFIX=/opt/tpd", "DESTDIR=" + str(tmp_path), cwd=ROOT)
    opt = tmp_path / "opt/tpd"
    unit = (opt / "lib/systemd/system/tpd.service").read_text()
    assert "ExecStart=/opt/tpd/bin/tpd " in unit and "/usr/local" not in unit
    assert (opt / "share/doc/tpd/README.md").exists()  # which the unit names
    for document in re.findall(r"docs/[a-z]+\.md", (opt / "share/doc/tpd/README.md").read_text()):
        assert (opt / "share/doc/tpd" / document).exists(), document
    assert (opt / "share/doc/tpd/docs/schema/generate.json").exists()
    assert "prefix=/opt/tpd\n" in (opt / "lib/pkgconfig/tpdclient.pc").read_text()
    assert "@PREFIX@" not in "".join(path.read_text() for path in opt.rglob("*.pc"))
    said = json.loads(run(str(opt / "bin/tpd"), "inspect", str(opt / "share/tpd/models/alder"), "--json"))
    assert said["kind"] == "model"
    for name in ("tpd", "tpctl"):
        assert run(str(opt / "bin" / name), "--version").startswith(name + " ")


@pytest.mark.skipif("asan" in BUILD, reason="a library with sanitizers wants a program with them")
@pytest.mark.parametrize("compiler, flags", [("gcc", ["-std=c99", "-pedantic"]),
                                             ("g++", ["-std=c++11", "-x", "c++"])])
def test_a_stranger_builds_with_header_library_and_pkg_config(tmp_path, compiler, flags):
    if not shutil.which(compiler):
        pytest.skip(compiler + " is not installed")
    for folder in ("include/tpd", "lib/pkgconfig"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(os.path.join(ROOT, "client/lib/tpd/client.h"), tmp_path / "include/tpd")
    shutil.copy(os.path.join(BUILD, "libtpdclient.a"), tmp_path / "lib")
    with open(os.path.join(ROOT, "client/lib/tpdclient.pc.in"), encoding="utf-8") as template:
        (tmp_path / "lib/pkgconfig/tpdclient.pc").write_text(
            template.read().replace("@PREFIX@", str(tmp_path)))
    env = dict(os.environ, PKG_CONFIG_PATH=str(tmp_path / "lib/pkgconfig"))
    found = run("pkg-config", "--cflags", "--libs", "tpdclient", env=env).split()
    (tmp_path / "program.c").write_text(PROGRAM)
    run(compiler, *flags, "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror",
        str(tmp_path / "program.c"), "-x", "none", "-o", str(tmp_path / "program"), *found)
    with FakeServer(tmp_path / "tpd.sock") as server:
        shown = run(str(tmp_path / "program"), server.path)
    assert shown == "-32601 unknown method 64\n3 cancelled 130 cancelled\ncancelled\n"


def test_header_pkg_config_and_python_client_have_one_version():
    with open(os.path.join(ROOT, "client/lib/tpd/client.h"), encoding="utf-8") as header:
        version = re.search(r'TPD_CLIENT_VERSION "(.*)"', header.read()).group(1)
    with open(os.path.join(ROOT, "client/lib/tpdclient.pc.in"), encoding="utf-8") as template:
        assert "Version: %s\n" % version in template.read()
    with open(os.path.join(ROOT, "client/python/tpd.py"), encoding="utf-8") as python:
        assert '__version__ = "%s"' % version in python.read()


def test_the_manual_has_every_command_and_option():
    with open(os.path.join(ROOT, "docs/man/tpctl.1"), encoding="utf-8") as page:
        manual = page.read()
    tpctl = os.path.join(BUILD, "tpctl")
    listed = run(tpctl, "help").split("commands:\n")[1].split("\n\n")[0]
    commands = [re.split(r" {2,}", line.strip())[0] for line in listed.splitlines()]
    assert "model info" in commands
    for command in commands:
        assert "Cm " + command in manual
        for option in re.findall(r"^ +(?:-., )?--([a-z-]+)", run(tpctl, "help", *command.split()),
                                 re.MULTILINE):
            assert "Fl -" + option in manual, (command, option)


def test_completion_offers_commands_and_options():
    script = ('. etc/completions/tpctl.bash; complete_it() { COMP_WORDS=("$@"); '
              'COMP_CWORD=$(($# - 1)); _tpctl; echo "${COMPREPLY[@]}"; }; '
              'complete_it tpctl ge; complete_it tpctl generate --top-; complete_it tpctl model ""')
    env = dict(os.environ, PATH=BUILD + ":" + os.environ["PATH"])
    assert run("bash", "-c", script, cwd=ROOT, env=env) == "generate\n--top-p --top-k\ninfo load unload merge\n"
