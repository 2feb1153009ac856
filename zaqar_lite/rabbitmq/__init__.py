"""Delays of any length on plain RabbitMQ, out of time-to-live queues and dead-letter exchanges.

A message waits in at most one queue per binary digit of its delay; when the last wait is over it
lies in the queue of its destination, and the relay posts it to a Zaqar queue.

`topology`, `drift` and `exports` compute; `amqp` and `management` carry a topology to a broker and
compute nothing.
"""
