"""A signature next to audit.json, made and checked by OpenSSH: no network, and keys that users already have."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from remanence.core.checks import refusing
from remanence.core.exceptions import InputError
from remanence.scale.reading import KIB, UNREADABLE, read_bytes

_NAMESPACE = "remanence-audit"  # a signature made for another purpose is not valid here


def signature_of(document: Path) -> Path:
    """The path of a document's signature."""
    return document.with_name(f"{document.name}.sig")


def sign(document: Path, key: Path) -> Path:
    """Sign a document, which includes the hash of its arrays; ssh-keygen asks for a passphrase on the terminal."""
    signature_of(document).unlink(missing_ok=True)
    made = _openssh("-Y", "sign", "-q", "-f", str(key), "-n", _NAMESPACE, str(document))
    if made.returncode:
        raise _failed("The result could not be signed.", "a private key that OpenSSH can use", made, key)
    return signature_of(document)


def check(document: Path, public_key: Path) -> None:
    """Refuse a document without a valid signature by the owner of this key."""
    needs, hint = "a public key, such as id_ed25519.pub", "the file that ends in .pub"
    with refusing(UNREADABLE, "The signature cannot be checked.", needs=needs, got=public_key, hint=hint):
        key = read_bytes(public_key, 64 * KIB).decode().strip()
        signed = read_bytes(document)
    with tempfile.TemporaryDirectory() as folder:
        signers = Path(folder) / "signers"
        signers.write_text(f"signer {key}\n")
        options = ["-Y", "verify", "-f", str(signers), "-I", "signer", "-n", _NAMESPACE]
        found = _openssh(*options, "-s", str(signature_of(document)), given=signed)
    if found.returncode:
        needs = f"{document.name} as the owner of {public_key} signed it"
        raise _failed("The signature does not hold.", needs, found, signature_of(document))


def _openssh(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    program = shutil.which("ssh-keygen")
    if program is None:
        raise InputError(
            "Signatures need OpenSSH.", needs="ssh-keygen", got="none on the path", hint="install OpenSSH"
        )
    return subprocess.run([program, *arguments], input=given, capture_output=True, check=False)  # noqa: S603


def _failed(summary: str, needs: str, found: subprocess.CompletedProcess[bytes], path: Path) -> InputError:
    told = (found.stderr or found.stdout).decode(errors="replace").strip()[-300:]
    return InputError(summary, needs=needs, got=f"{path}: {told}", hint="ssh-keygen -t ed25519 makes a key")
