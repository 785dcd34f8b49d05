"""Holds every #include to the house: a folder may use the folders below it, never one above.

The order is the one that docs/architecture.md draws; ALLOWED is that drawing as data."""
import pathlib
import re
import sys

BELOW = {
    "base": [],
    "formats": ["base"],
    "text": ["base", "formats"],
    "kernels": ["base"],
    "ipc": ["base", "kernels"],
    "ranks": ["base", "kernels", "ipc"],
    "model": ["base", "formats", "kernels", "ipc"],
    "serve": ["base", "formats", "text", "kernels", "ipc", "ranks", "model"],
    "train": ["base", "formats", "text", "kernels", "ipc", "ranks", "model"],
    "daemon": ["base", "formats", "text", "kernels", "ipc", "ranks", "model", "serve", "train"],
    "client": ["base"],
}
PRIVATE = {  # headers that stay in their folder
    "text": ["text/internal.h", "text/chat_builtin.h", "text/jinja/arena.h", "text/jinja/ast.h",
             "text/jinja/parse.h", "text/jinja/render.h", "text/jinja/strings.h", "text/jinja/value.h"],
    "model": ["model/config_parts.h", "model/shard.h", "model/tensors.h", "model/rope.h",
              "model/trainee.h", "model/adapter_private.h"],
    "ipc": ["ipc/cpu.h", "ipc/cuda.h", "ipc/sum.h", "ipc/world.h"],
    "formats": ["formats/gguf_names.h", "formats/gguf_types.h", "formats/gguf_value.h",
                "formats/name_index.h", "formats/safetensors.h", "formats/store_dir.h"],
    "serve": ["serve/engine_private.h", "serve/runner.h", "serve/sequence.h", "serve/sizes.h"],
    "train": ["train/jobs_private.h", "train/dataset_private.h", "train/records.h", "train/example.h",
              "train/chat.h", "train/cache.h", "train/mark.h", "train/run.h", "train/task.h", "train/tensors.h"],
}
root = pathlib.Path(__file__).resolve().parent.parent
problems = []
for folder, below in BELOW.items():
    for path in sorted((root / folder).rglob("*.[ch]")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not match or "/" not in match.group(1):
                continue
            top = match.group(1).split("/")[0]
            where = f"{path.relative_to(root)}:{number}: "
            if top not in BELOW and not (folder == "client" and top == "tpd"):
                problems.append(where + f"includes {match.group(1)}, a folder the house does not have")
            elif top in BELOW and top != folder and top not in below:
                problems.append(where + f"{folder}/ may not use {top}/ (only {', '.join(below)})")
            elif top in BELOW and top != folder and match.group(1) in PRIVATE.get(top, []):
                problems.append(where + f"{match.group(1)} is private to {top}/")
    if not (root / folder / "README.md").exists():
        problems.append(f"{folder}/README.md is missing: it says what lives there and what may use it")
print("\n".join(problems) or f"{len(BELOW)} folders keep the order")
sys.exit(1 if problems else 0)
