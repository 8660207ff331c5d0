"""Block hashes: golden vectors that every process of a cluster must agree on, and what equal hashes mean."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagewire.core.block_hash import HASH_BYTES, chain, extend, is_indexed, max_hit_blocks, root_hash, tenant_salt

ROOT = root_hash(model_digest="model", kv_fingerprint="layout", adapter="", salt="tenant", key=b"secret")
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=80)


def test_golden_vectors() -> None:
    assert root_hash(model_digest="m", kv_fingerprint="f").hex() == "2a9e1ebf4cdcc250419fc3e3ab0deff9"
    assert ROOT.hex() == "e1669b4899786fc1e32edab42bc04f1c"
    assert [block.hex() for block in chain(ROOT, range(32), 16)] == [
        "5d77cecf061640ff54f2a5ac7c1b163e",
        "b193545e73a81a67bf11a5c4ef6e093a",
    ]


def test_a_tenants_salt_is_the_same_everywhere_and_needs_the_secret() -> None:
    assert tenant_salt("acme", b"secret") == "dc5e2d5548742ff34fdfd7d488e85ce83e9c0bfc7ce4f9de5be9cb9b1c951193"
    salts = {tenant_salt("acme", b"secret"), tenant_salt("acme", b"other"), tenant_salt("else", b"secret")}
    assert len(salts) == 3


def test_every_part_of_the_root_counts() -> None:
    roots = {
        ROOT,
        root_hash(model_digest="modell", kv_fingerprint="ayout", salt="tenant", key=b"secret"),
        root_hash(model_digest="model", kv_fingerprint="layout", salt="other", key=b"secret"),
        root_hash(model_digest="model", kv_fingerprint="layout", adapter="tenant", key=b"secret"),
        root_hash(model_digest="model", kv_fingerprint="layout", salt="tenant", key=b"other"),
        root_hash(model_digest="model", kv_fingerprint="layout", salt="tenant"),
    }
    assert len(roots) == 6
    assert all(len(root) == HASH_BYTES for root in roots)


def test_of_a_secret_64_bytes_count() -> None:
    roots = [root_hash(model_digest="m", kv_fingerprint="f", key=b"k" * 63 + end) for end in (b"", b"k", b"l", b"kxyz")]
    assert roots[3] == roots[1]
    assert len(set(roots)) == 3


@given(TOKENS, st.sampled_from([16, 32]))
def test_a_chain_covers_full_blocks_and_a_prefix_has_a_prefix_of_it(tokens: list[int], block_size: int) -> None:
    hashes = chain(ROOT, tokens, block_size)
    assert len(hashes) == len(tokens) // block_size
    assert chain(ROOT, tokens[: block_size * 2], block_size) == hashes[:2]
    if hashes:
        assert hashes[0] == extend(ROOT, tokens[:block_size])
        changed = [tokens[0] ^ 1, *tokens[1:]]
        assert not {*hashes} & {*chain(ROOT, changed, block_size)}


@given(TOKENS, st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), min_size=2, max_size=2, unique=True))
def test_two_tenants_or_adapters_have_no_block_in_common(tokens: list[int], who: list[tuple[str, str]]) -> None:
    one, other = (
        chain(root_hash(model_digest="m", kv_fingerprint="k", adapter=adapter, salt=salt), tokens, 16)
        for adapter, salt in who
    )
    assert not {*one} & {*other}


def test_the_last_token_is_never_a_hit() -> None:
    assert [max_hit_blocks(num_tokens, 16) for num_tokens in (0, 1, 16, 17, 32, 33)] == [0, 0, 0, 1, 1, 2]


def test_every_eighth_block_of_a_chain_is_in_the_index() -> None:
    assert [depth for depth in range(24) if is_indexed(depth)] == [7, 15, 23]
