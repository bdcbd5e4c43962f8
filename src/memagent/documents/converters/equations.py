"""Office equations as text on one line: x^(2), a_(i), (a)/(b)."""

from __future__ import annotations

from typing import Any

_BETWEEN = {"eqArr": "; ", "m": "; ", "mr": ", "}  # equations below each other, matrices and their rows


def as_text(node: Any) -> str:
    """An equation, or a part of one."""
    kind = node.tag.rpartition("}")[2]
    if kind == "t":
        return node.text or ""
    parts = [(child.tag.rpartition("}")[2], as_text(child)) for child in node]
    inner = dict(parts)
    if kind == "f":
        return f"({inner.get('num', '')})/({inner.get('den', '')})"
    if kind == "rad":
        return f"{inner.get('deg', '')}√({inner.get('e', '')})"
    if kind in ("sup", "sub", "lim"):
        text = "".join(text for _, text in parts)
        return f"{'^' if kind == 'sup' else '_'}({text})" if text else ""
    if kind == "d":
        within = _sign(node, "sepChr", "|").join(text for name, text in parts if name == "e")
        return _sign(node, "begChr", "(") + within + _sign(node, "endChr", ")")
    before = _sign(node, "chr", "∫") if kind == "nary" else ""
    between = _BETWEEN.get(kind, "")
    return before + between.join(text for name, text in parts if text or name == "e")


def _sign(node: Any, name: str, default: str) -> str:
    """A sign among an element's properties: a bracket, a sum."""
    found = node.find(f"{{*}}{node.tag.rpartition('}')[2]}Pr/{{*}}{name}")
    return default if found is None else "".join(found.attrib.values())
