"""Real servers for the tests: started on free loopback ports, or taken from the environment.

Every `start_*` starts a server of its own, in a temporary directory, and returns a frozen record
that is a context manager: leaving it stops the server and removes its data. The `*_from` functions
describe a server that somebody else runs, by its URL. A program that is not installed makes the
test skip, and fail where the environment variable CI is set.
"""

from tests.services.hdfs import hdfs_from, start_hdfs
from tests.services.keystone import KeystoneServer, start_keystone
from tests.services.mongodb import MongoServer, describe_mongo, mongo_from, start_mongo
from tests.services.process import Process, Service, free_port, free_ports
from tests.services.rabbitmq import RabbitServer, rabbit_from, start_rabbit
from tests.services.redis import (
    RedisCluster,
    RedisSentinel,
    RedisServer,
    redis_from,
    start_redis,
    start_redis_cluster,
    start_redis_sentinel,
)
from tests.services.s3 import S3Server, s3_from, start_s3
from tests.services.sharing import shared
from tests.services.swift import SwiftServer, start_swift, swift_from

__all__ = [
    "KeystoneServer",
    "MongoServer",
    "Process",
    "RabbitServer",
    "RedisCluster",
    "RedisSentinel",
    "RedisServer",
    "S3Server",
    "Service",
    "SwiftServer",
    "describe_mongo",
    "free_port",
    "free_ports",
    "hdfs_from",
    "mongo_from",
    "rabbit_from",
    "redis_from",
    "s3_from",
    "shared",
    "start_hdfs",
    "start_keystone",
    "start_mongo",
    "start_rabbit",
    "start_redis",
    "start_redis_cluster",
    "start_redis_sentinel",
    "start_s3",
    "start_swift",
    "swift_from",
]
