"""No key, token or password is in the repository."""

import re
from pathlib import Path

import pytest

SECRETS = {
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/]{40}"),
    "a cloud's key": re.compile(r"\b(AKIA|ASIA)[0-9A-Z]{16}\b"),
    "a hub's token": re.compile(r"\b(gh[pousr]_[A-Za-z0-9]{30}|glpat-[\w-]{20}|hf_[A-Za-z0-9]{30}|pypi-[\w-]{40})"),
    "a chat's token": re.compile(r"\bxox[abprs]-[\w-]{10}"),
    "a password": re.compile(
        r"""(?i)\b(password|passwd|secret|api_?key|token)["']?\s*[:=]\s*["'][^"'\s{}<>$]{8,}["']"""
    ),
}
ALLOWED = {
    "tests/server/dashboard": "tokens of pages that the tests themselves serve",
    "tests/test_secrets.py": "the samples below",
}
CACHES = {".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", "__pycache__"}
SKIPPED = {".venv", ".venv-vendor", ".git", "build", "dist", "site", "node_modules", "runs", "shared", *CACHES}
LARGEST_BYTES = 2_000_000


def find_files(root: Path) -> list[Path]:
    return [
        path
        for path in sorted(root.rglob("*"))
        if not SKIPPED & set(path.relative_to(root).parts)
        and path.suffix not in {".pyc", ".png", ".parquet", ".safetensors"}
        and path.is_file()
        and path.stat().st_size < LARGEST_BYTES
    ]


def find_secrets(text: str) -> list[str]:
    return [name for name, pattern in SECRETS.items() if pattern.search(text)]


def test_no_file_holds_a_secret(project_root):
    found = {
        str(path.relative_to(project_root)): secrets
        for path in find_files(project_root)
        if (secrets := find_secrets(path.read_text(encoding="utf-8", errors="replace")))
    }

    assert {path: names for path, names in found.items() if not path.startswith(tuple(ALLOWED))} == {}


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN OPENSSH PRIVATE KEY-----\n" + 50 * "A",
        "AKIA" + 16 * "7",
        "ghp_" + 36 * "a",
        'password = "correct-horse"',
        "token: 'abcdefgh1234'",
    ],
)
def test_a_secret_is_found(text):
    assert find_secrets(f"x\n{text}\n")
