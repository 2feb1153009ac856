"""S3: moto's server from PyPI; it keeps everything in memory and accepts any credentials."""

from dataclasses import dataclass

import httpx

from tests.services.environments import MOTO
from tests.services.process import Process, Service, answers, free_port, make_data_directory


@dataclass(frozen=True, kw_only=True)
class S3Server(Service):
    """An object store that speaks S3, addressed by path."""

    access_key: str = "testing"
    secret_key: str = "testing"
    region: str = "us-east-1"

    def make_bucket(self, name: str) -> None:
        """Make a bucket; the stand-in asks for no signature."""
        httpx.put(f"{self.url}/{name}").raise_for_status()


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
    return S3Server(url=url, data=data, processes=(process,), ready=lambda: answers(url)).start()
