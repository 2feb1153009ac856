"""`python -m tests.services`: install the programs that tests start, so that no test waits."""

import os
from concurrent.futures import ThreadPoolExecutor

from tests.services.environments import ENVIRONMENTS, Environment
from tests.services.keystone import keystone_directory


def _prepare(environment: Environment) -> str:
    environment.install()
    return f"{environment.package} {environment.version} in {environment.home}"


wanted = [one for one in ENVIRONMENTS if not one.is_rare or "ZAQAR_TEST_ALL" in os.environ]
# Together: each of them waits for the network half of the time.
with ThreadPoolExecutor(len(wanted)) as installing:
    for line in installing.map(_prepare, wanted):
        print(line)
print(f"a new cloud of Keystone in {keystone_directory()}")
