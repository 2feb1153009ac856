"""The rules: what each operation of the API means, over any store. A feature a module or a folder.

Messages        queues, messages, post_validation, routing, policy, claims, long_polling,
                event_streams, jobs, schedules
Subscribers     subscriptions, topics, delivery
Who may what    identity, presigned_urls, quotas, audit, encryption
Operating       pooling, metrics, health, janitor, startup
Shared by them  records (with bounds), background, yielding
"""
