"""Text from an untrusted model as pieces of C: string literals and comments."""

from __future__ import annotations


def quote(value: str) -> str:
    """A C string literal: plain ASCII stays, every other byte is octal; `?` for trigraphs."""
    plain = (
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
        for byte in value.encode("utf-8", "surrogatepass")
        if byte
    )
    return f'"{"".join(plain)}"'


def comment(value: str) -> str:
    """Text that cannot end a comment or a line."""
    printable = "".join(c if 32 <= ord(c) < 127 and c != "\\" else "?" for c in value)
    return printable.replace("*/", "* /").replace("/*", "/ *")
