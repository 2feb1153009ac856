"""S3: moto's server from PyPI; it keeps everything in memory and accepts any credentials."""

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import httpx

from tests.services.environments import MOTO
from tests.services.process import Process, Service, free_port, make_data_directory

# The stand-in wants to see a signature on reads of objects, and accepts any.
_SIGNED = "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/s3/aws4_request, Signature=any"


@dataclass(frozen=True, kw_only=True)
class S3Server(Service):
    """An object store that speaks S3, addressed by path."""

    access_key: str = "testing"
    secret_key: str = "testing"
    region: str = "us-east-1"

    def make_bucket(self, name: str) -> None:
        """Make a bucket; the stand-in asks for no signature."""
        httpx.put(f"{self.url}/{name}").raise_for_status()

    def download(self, name: str, prefix: str, directory: Path) -> None:
        """Copy a bucket's objects under a prefix into a directory, as any S3 tool does."""
        listing = httpx.get(f"{self.url}/{name}", params={"list-type": "2", "prefix": prefix})
        found = ET.fromstring(listing.raise_for_status().content)  # noqa: S314 - our own
        for key in (element.text or "" for element in found.iterfind("{*}Contents/{*}Key")):
            file = directory / key.removeprefix(prefix).lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            answer = httpx.get(f"{self.url}/{name}/{key}", headers={"Authorization": _SIGNED})
            file.write_bytes(answer.raise_for_status().content)


def s3_from(url: str) -> S3Server:
    """Describe an S3 server that somebody else runs, and that asks for no signature."""
    return S3Server(url=url)


def start_s3() -> S3Server:
    """Start moto's S3."""
    program = MOTO.program("moto_server")
    data = make_data_directory("s3")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = Process([program, "-H", "127.0.0.1", "-p", str(port)], log=data / "log", cwd=data)
    return S3Server(url=url, data=data, processes=(process,), ready=lambda: _answers(url)).start()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code == 200
    except httpx.TransportError:
        return False
