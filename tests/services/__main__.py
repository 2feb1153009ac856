"""`python -m tests.services`: install the servers that come from PyPI, so that no test waits."""

from tests.services.environments import ENVIRONMENTS
from tests.services.keystone import keystone_directory

for environment in ENVIRONMENTS:
    environment.install()
    print(f"{environment.package} {environment.version} in {environment.home}")
print(f"a new cloud of Keystone in {keystone_directory()}")
