"""`python -m tests.services`: install servers from PyPI and by Maven, so that no test waits."""

from concurrent.futures import ThreadPoolExecutor

from tests.services.environments import ENVIRONMENTS, Environment
from tests.services.keystone import keystone_directory


def _prepare(environment: Environment) -> str:
    environment.install()
    return f"{environment.package} {environment.version} in {environment.home}"


# Together: each of them waits for the network half of the time.
with ThreadPoolExecutor(len(ENVIRONMENTS)) as installing:
    for line in installing.map(_prepare, ENVIRONMENTS):
        print(line)
print(f"a new cloud of Keystone in {keystone_directory()}")
