"""Requests for certificates, as boards send them."""

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from experiments.fleet.key_folder import Key, new_key


def board_request(
    *names: str, wishes: tuple[x509.ExtensionType, ...] = (), key: Key | rsa.RSAPrivateKey | None = None
) -> x509.CertificateSigningRequest:
    """What a board of this name, or of several, would send."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    for wish in wishes:
        builder = builder.add_extension(wish, critical=True)
    return builder.sign(key or new_key(), hashes.SHA256())
