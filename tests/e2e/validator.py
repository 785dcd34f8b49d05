"""A strict checker of its own for the JSON schemas of the tests: what it does not know it refuses."""
import datetime
import ipaddress
import json
import re
import uuid

NOTES = {"title", "description", "default", "examples", "$schema", "$defs", "definitions"}


def parse(text):
    """Standard JSON alone: no NaN, no double keys, no lone surrogates."""
    def refuse(word):
        raise ValueError(f"not JSON: {word}")

    def pairs(members):
        keys = [key for key, _ in members]
        assert len(set(keys)) == len(keys), f"a key stands twice: {keys}"
        return dict(members)
    value = json.loads(text, parse_constant=refuse, object_pairs_hook=pairs)
    json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def is_type(value, name):
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return {"object": isinstance(value, dict), "array": isinstance(value, list),
            "string": isinstance(value, str), "boolean": isinstance(value, bool),
            "null": value is None, "number": number,
            "integer": number and value == int(value)}[name]


def is_format(text, name):
    if name == "date":
        return bool(datetime.date.fromisoformat(text))
    if name == "date-time":
        return bool(datetime.datetime.strptime(re.sub(r"\.\d+|:(?=\d\d$)", "", text.replace("Z", "+0000")),
                                               "%Y-%m-%dT%H:%M:%S%z"))
    if name == "uuid":
        return str(uuid.UUID(text)) == text.lower()
    if name in ("ipv4", "ipv6"):
        return ipaddress.ip_address(text).version == int(name[-1])
    if name == "time":
        return bool(datetime.time.fromisoformat(re.sub(r"\.\d+", "", text.replace("Z", "+00:00"))))
    if name == "email":
        return bool(re.fullmatch(r"[^@\s]+@[^@\s.]+(\.[^@\s.]+)+", text))
    raise AssertionError(f"unknown format {name}")


def same(a, b):
    return type(a) is type(b) and a == b or is_type(a, "number") and is_type(b, "number") and a == b


def resolve(ref, root):
    at = root
    for step in ref.lstrip("#").split("/")[1:]:
        at = at[step]
    return at


def check(value, schema, root=None):
    """Raises AssertionError where value does not validate."""
    root = schema if root is None else root
    if schema is True:
        return
    assert schema is not False
    for word, want in schema.items():
        if word in NOTES:
            continue
        rule = RULES[word]
        assert rule(value, want, schema, root) is not False, f"{value!r}: {word} {want!r}"


def fits(value, schema, root):
    try:
        check(value, schema, root)
    except AssertionError:
        return False
    return True


def properties(value, want, schema, root):
    for name, one in want.items():
        if isinstance(value, dict) and name in value:
            check(value[name], one, root)


def additional(value, want, schema, root):
    for name in value if isinstance(value, dict) else ():
        if name not in schema.get("properties", {}):
            check(value[name], want, root)


def items(value, want, schema, root):
    for one in value[len(schema.get("prefixItems", [])):] if isinstance(value, list) else ():
        check(one, want, root)


def prefix(value, want, schema, root):
    for one, part in zip(value, want) if isinstance(value, list) else ():
        check(one, part, root)


def number(test):
    return lambda v, want, s, root: not is_type(v, "number") or test(v, want)


def sized(kind, test):
    return lambda v, want, s, root: not isinstance(v, kind) or test(len(v), want)


RULES = {
    "type": lambda v, want, s, root: any(is_type(v, t) for t in ([want] if isinstance(want, str) else want)),
    "enum": lambda v, want, s, root: any(same(v, one) for one in want),
    "const": lambda v, want, s, root: same(v, want),
    "anyOf": lambda v, want, s, root: any(fits(v, one, root) for one in want),
    "oneOf": lambda v, want, s, root: sum(fits(v, one, root) for one in want) == 1,
    "allOf": lambda v, want, s, root: [check(v, one, root) for one in want] and None,
    "$ref": lambda v, want, s, root: check(v, resolve(want, root), root),
    "properties": properties, "additionalProperties": additional, "items": items, "prefixItems": prefix,
    "required": lambda v, want, s, root: not isinstance(v, dict) or all(name in v for name in want),
    "minItems": sized(list, lambda n, want: n >= want), "maxItems": sized(list, lambda n, want: n <= want),
    "minLength": sized(str, lambda n, want: n >= want), "maxLength": sized(str, lambda n, want: n <= want),
    "minProperties": sized(dict, lambda n, want: n >= want),
    "maxProperties": sized(dict, lambda n, want: n <= want),
    "pattern": lambda v, want, s, root: not isinstance(v, str) or bool(re.search(want, v)),
    "format": lambda v, want, s, root: not isinstance(v, str) or is_format(v, want),
    "minimum": number(lambda v, want: v >= want), "maximum": number(lambda v, want: v <= want),
    "exclusiveMinimum": number(lambda v, want: v > want),
    "exclusiveMaximum": number(lambda v, want: v < want),
}
