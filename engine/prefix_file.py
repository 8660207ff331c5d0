"""A TOML file of named prefixes: name -> text, messages or token ids, as the tokens that a request would begin with.

    [terms]
    text = "These are the terms of ..."
    salt = "terms"                                               # the cache_salt of the requests that begin so
    tenant = "acme"                                              # whose they are, where callers have keys
    adapter = "legal"                                            # the adapter that they name as their model

    [support]
    messages = [{ role = "system", content = "You answer ..." }]  # written by the model's chat template

    [raw]
    token_ids = [1, 2, 3]

Knows the file's form and the tokenizer. Invariant: what is wrong is refused with the file's and the prefix's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pagewire.core.document_files import read_toml
from pagewire.core.errors import InvalidRequest
from pagewire.engine.pin import NamedPrefix
from pagewire.text.tokenizer import Tokenizer

FORMS = ("text", "messages", "token_ids")
WHOSE = ("salt", "tenant", "tenant_salt", "adapter")  # tenant_salt where the key file gives the tenant one


def read(path: Path, model: Path) -> tuple[NamedPrefix, ...]:
    """Return the prefixes of a file in its order, in the tokens of the model folder `model`.

    Raises OSError where the file cannot be read, ValueError on anything in it that is not as above.
    """
    table = read_toml(path)
    tokenizer = Tokenizer(model)
    try:
        return tuple(_prefix(f"{path}: prefix {name!r}", name, entry, tokenizer) for name, entry in table.items())
    finally:
        tokenizer.close()


def _prefix(where: str, name: str, entry: Any, tokenizer: Tokenizer) -> NamedPrefix:
    if not isinstance(entry, Mapping):
        raise ValueError(f"{where} is no table: write [{name}] and, below it, one of {', '.join(FORMS)}")
    unknown = sorted(set(entry) - {*FORMS, *WHOSE})
    forms = [form for form in FORMS if form in entry]
    if unknown:
        raise ValueError(f"{where}: there is no {', '.join(unknown)}; known are {', '.join((*FORMS, *WHOSE))}")
    if len(forms) != 1:
        raise ValueError(f"{where} has {' and '.join(forms) or 'no tokens'}: give one of {', '.join(FORMS)}")
    whose = {field: entry.get(field, "") for field in WHOSE}
    for field, value in whose.items():
        if not isinstance(value, str):
            raise ValueError(f"{where}: {field} is not a text")
    return NamedPrefix(name=name, tokens=_tokens(where, forms[0], entry[forms[0]], tokenizer), **whose)


def _tokens(where: str, form: str, value: Any, tokenizer: Tokenizer) -> tuple[int, ...]:
    if form == "text" and isinstance(value, str):
        return tuple(tokenizer.encode_now(value))
    if form == "token_ids" and isinstance(value, list) and all(type(token) is int for token in value):
        return tuple(value)
    if form == "messages" and isinstance(value, list) and all(isinstance(message, Mapping) for message in value):
        try:
            text = tokenizer.render_chat(value, add_generation_prompt=False)
        except InvalidRequest as error:
            raise ValueError(f"{where}: {error.message}") from error
        return tuple(tokenizer.encode_now(text, add_special_tokens=False))
    kinds = {"text": "a text", "messages": "a list of messages", "token_ids": "a list of token ids"}
    raise ValueError(f"{where}: {form} is not {kinds[form]}")
