"""docs/schema/ as a judge of results: the few words of JSON Schema that these files use."""
import json
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parent.parent.parent / "docs/schema"
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def is_type(value, name):
    if name in ("integer", "number"):
        return isinstance(value, int if name == "integer" else (int, float)) and \
            not isinstance(value, bool)
    return isinstance(value, TYPES[name])


def faults(value, schema, root, where="result"):
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    if "anyOf" in schema:
        if all(list(faults(value, s, root)) for s in schema["anyOf"]):
            yield f"{where}: none of anyOf"
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(is_type(value, t) for t in types):
        yield f"{where}: {value!r} is not {types}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is not one of {schema['enum']}"
    if isinstance(value, dict) and "properties" in schema:
        for name in set(schema.get("required", [])) - set(value):
            yield f"{where}: no {name}"
        for name, member in value.items():
            if name not in schema["properties"]:
                yield f"{where}: {name} is not in the schema"
            else:
                yield from faults(member, schema["properties"][name], root, f"{where}.{name}")
    if isinstance(value, list) and "items" in schema:
        for i, item in enumerate(value):
            yield from faults(item, schema["items"], root, f"{where}[{i}]")


def check(method, value, part="result"):
    root = json.loads((FOLDER / f"{method}.json").read_text())
    schema = root["notifications"]["token"]["params"] if part == "token" else root[part]
    found = list(faults(value, schema, root, part))
    assert not found, found
