"""HDFS: a namenode and a datanode, from the jar that Hadoop's own tests run."""

import importlib.util
from pathlib import Path

import httpx

from tests.services.environments import HADOOP
from tests.services.process import (
    Process,
    Service,
    find_program,
    free_ports,
    make_data_directory,
    missing,
    run_program,
)

_SERVER = "org.apache.hadoop.hdfs.server"
_STATE = "Hadoop:service=NameNode,name=FSNamesystemState"


def hdfs_from(url: str) -> Service:
    """Describe an HDFS that somebody else runs: `hdfs://NAMENODE:PORT`."""
    return Service(url=url)


def start_hdfs() -> Service:
    """Start an HDFS of one datanode; `url` is what Spark calls it."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        missing("pyspark", "pip install -e '.[test]'")
    jars = Path(found.origin).parent / "jars"
    java = [
        find_program("java", "default-jre-headless"),
        *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m"),
        *("-cp", f"{HADOOP.path}:{jars}/*"),
    ]
    data = make_data_directory("hdfs")
    names, web, blocks, blocks_web, blocks_ipc = free_ports(5)
    url = f"hdfs://127.0.0.1:{names}"
    settings = {
        "fs.defaultFS": url,
        "dfs.namenode.name.dir": (data / "name").as_uri(),
        "dfs.namenode.http-address": f"127.0.0.1:{web}",
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.datanode.data.dir": (data / "data").as_uri(),
        "dfs.datanode.address": f"127.0.0.1:{blocks}",
        "dfs.datanode.http.address": f"127.0.0.1:{blocks_web}",
        "dfs.datanode.ipc.address": f"127.0.0.1:{blocks_ipc}",
        "dfs.replication": "1",
    }
    given = [word for name, value in settings.items() for word in ("-D", f"{name}={value}")]
    namenode = [*java, f"{_SERVER}.namenode.NameNode", *given]
    datanode = [*java, f"{_SERVER}.datanode.DataNode", *given]
    run_program([*namenode, "-format"], check=True, cwd=data)
    return Service(
        url=url,
        data=data,
        processes=(
            Process(namenode, log=data / "namenode.log", cwd=data),
            Process(datanode, log=data / "datanode.log", cwd=data),
        ),
        ready=lambda: _takes_files(web),
    ).start()


def _takes_files(web: int) -> bool:
    try:
        answer = httpx.get(f"http://127.0.0.1:{web}/jmx", params={"qry": _STATE}, timeout=2)
    except httpx.TransportError:
        return False
    state = answer.json()["beans"] if answer.status_code == 200 else []
    return bool(state) and state[0]["NumLiveDataNodes"] > 0 and state[0]["FSState"] == "Operational"
