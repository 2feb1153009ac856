"""ElasticMQ: a server of SQS's protocol in Java, with its queues in memory."""

import http.client

from tests.services.environments import ELASTICMQ
from tests.services.process import (
    Process,
    Service,
    find_program,
    free_port,
    make_data_directory,
)


def start_elasticmq() -> Service:
    """Start a server without queues; it runs as long as the caller measures."""
    java = find_program("java", "default-jre-headless")
    port = free_port()
    data = make_data_directory("elasticmq")
    settings = {
        "rest-sqs.bind-hostname": "127.0.0.1",
        "rest-sqs.bind-port": port,
        "node-address.host": "127.0.0.1",
        "node-address.port": port,
        "rest-stats.enabled": "false",
    }
    given = [f"-D{name}={value}" for name, value in settings.items()]
    main = ["-cp", ELASTICMQ.classpath, "org.elasticmq.server.Main"]
    return Service(
        url=f"http://127.0.0.1:{port}",
        data=data,
        processes=(Process([java, *given, *main], log=data / "log", cwd=data),),
        ready=lambda: _answers(port),
    ).start()


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
