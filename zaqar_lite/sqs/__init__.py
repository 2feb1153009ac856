"""Amazon SQS's JSON protocol over the same queues: any SQS client, unmodified.

`protocol` finds the operation of a request, whoever sent it (`authentication`), and its queue. The
operations are in `queues`, `messages` and `move_tasks`; they call the services that Zaqar's routes
call, under the same rules of access.
"""
